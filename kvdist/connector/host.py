"""What the halves and their host know of each other: the few roles that any scheduler can play.

Owns:   nothing.
Knows nothing of: who the host is: our scheduler, vLLM's, a fake in a test.
Units:  tokens; block ids are nested `[group][block]`, with 0 where a group skips a position.
Source: the names are those of vLLM's `Request` (vllm/v1/request.py, 0.32) and of its connectors'
        contract (vllm/distributed/kv_transfer/kv_connector/v1/base.py).

All that is asked of a host is here and in the effects (`effects`); what a host has to do, and when,
is in docs/protocol.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from kvdist.connector.messages import Blocks
from kvdist.ids import BlockHash, BlockId, RequestId

BlockTables: TypeAlias = Sequence[Sequence[BlockId]]


class KVRequest(Protocol):
    """What the connector asks of a request; its host's own class will do."""

    @property
    def request_id(self) -> RequestId:
        """Unique among the host's requests, for ever: never a client's own id."""

    @property
    def all_token_ids(self) -> Sequence[int]:
        """Prompt and output."""

    @property
    def num_tokens(self) -> int:
        """How many tokens are known."""

    @property
    def num_prompt_tokens(self) -> int:
        """How many of them are the prompt's."""

    @property
    def block_hashes(self) -> Sequence[BlockHash]:
        """One for each whole block of `hash_block_size` known tokens; each covers all before it."""

    @property
    def hash_block_size(self) -> int | None:
        """Tokens a hash; None: it has none."""

    def key_bytes(self, start: int, end: int) -> bytes:
        """What beside tokens decides the K/V of tokens [start, end): images, embeddings; from the
        first token on also what concerns the whole request: adapter, salt. Equal bytes, equal keys.
        """


class Holdings(Protocol):
    """What a lender asks of the host's blocks."""

    @property
    def pool_blocks(self) -> int:
        """Blocks of the pool, the null block left out."""

    @property
    def longest_blocks(self) -> int:
        """Blocks of one longest sequence."""

    def lend(
        self, hashes: tuple[BlockHash, ...], hash_block_size: int, most_blocks: int
    ) -> tuple[Blocks, int] | None:
        """Hold the longest settled prefix of these hashes, at most so many blocks and only out of
        what nobody needs (T1, T13); its blocks and tokens, or None. `BlocksReturned` ends it.
        """


# -- answers to a host -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Match:
    """What can be loaded for a request after its local hit."""

    #: Tokens after the local ones; 0: nothing.
    num_tokens: int = 0
    #: True: not known yet, or somebody else is loading the same. It waits and holds nothing.
    pending: bool = False
    #: Why it ends with an error, since what was to be loaded won't come, and isn't to be computed
    #: here either; empty: it doesn't.
    refused: str = ""
    #: That is for now: somebody else may have room, or we later (`Settings.max_recompute_tokens`).
    is_busy: bool = False


NOTHING: Final = Match()
PENDING: Final = Match(pending=True)


@dataclass(frozen=True, slots=True)
class Loaded:
    """All bytes are there and verified: they may be published (S15)."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The bytes are worthless, and may still be landing until `LoadQuiet` (T2)."""

    request_id: RequestId
    reason: str
    #: False: the request ends with an error. True: it waits again, and `match` is asked again.
    again: bool
    #: See `Match.is_busy`.
    is_busy: bool = False


@dataclass(frozen=True, slots=True)
class LoadQuiet:
    """No byte of a failed load can land any more in these blocks (T3)."""

    request_id: RequestId
    block_ids: Sequence[BlockId]


@dataclass(frozen=True, slots=True)
class BlocksReturned:
    """Blocks that `finished` kept, or that were lent by hash: no peer reads them any more."""

    #: Whose they were; None: they were lent by hash.
    request_id: RequestId | None
    block_ids: Sequence[BlockId]


Moved: TypeAlias = Loaded | LoadFailed | LoadQuiet | BlocksReturned
