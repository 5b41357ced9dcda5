"""What the block manager has to know of a request: its tokens, their hashes, what is computed.

Owns:   the known tokens of a request and their block hashes.
Knows nothing of: blocks, sampling, scheduling. A scheduler keeps the rest beside it.
Units:  all counts are tokens.
Source: the names are those of vLLM's `Request` (vllm/v1/request.py, 0.32).
"""

from collections.abc import Sequence
from typing import TypeGuard

from kvdist.cache.block_hash import BlockHasher, pack_tokens
from kvdist.cache.extra_keys import FRAME_MARKER, ExtraKeys, frame
from kvdist.errors import InvalidRequest
from kvdist.ids import BlockHash, RequestId

_NO_KEYS = ExtraKeys()


class Request:
    """One sequence of tokens.

    `num_computed_tokens`, `num_in_flight_tokens` and `num_preemptions` are the scheduler's to set,
    `shared_prefix_boundary` is set by a lookup. Without `hasher` nothing of it is published or hit.

    Raises: InvalidRequest for an empty or non-text id, an empty prompt, a token out of range, or
    keys out of range; see `ExtraKeys`.

    >>> request = Request("r0", [1, 2, 3], BlockHasher(2))
    >>> request.append_output_token_ids(4)
    >>> request.num_tokens, len(request.block_hashes)
    (4, 2)
    """

    __slots__ = (
        "_chain",
        "_next_hash_tokens",
        "_tokens",
        "block_hashes",
        "extra_keys",
        "hash_block_size",
        "num_computed_tokens",
        "num_in_flight_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "request_id",
        "shared_prefix_boundary",
        "skip_reading_prefix_cache",
    )

    def __init__(
        self,
        request_id: RequestId,
        prompt_token_ids: Sequence[int],
        hasher: BlockHasher | None = None,
        *,
        extra_keys: ExtraKeys = _NO_KEYS,
        skip_reading_prefix_cache: bool = False,
    ) -> None:
        if not isinstance(request_id, str) or not request_id:
            raise InvalidRequest(f"a request id is a text, not {request_id!r}")
        if not isinstance(hasher, BlockHasher | None) or not isinstance(extra_keys, ExtraKeys):
            raise InvalidRequest(f"request {request_id}: not a BlockHasher or not ExtraKeys")
        if _is_sequence(prompt_token_ids) and not len(prompt_token_ids):
            raise InvalidRequest(f"request {request_id}: the prompt is empty")
        if extra_keys.last_position > len(prompt_token_ids):
            raise InvalidRequest(f"request {request_id}: extra keys reach past its prompt")
        self.request_id = request_id
        self.num_prompt_tokens = len(prompt_token_ids)
        self.extra_keys = extra_keys
        #: True: its lookups find nothing; its blocks are published as usual.
        self.skip_reading_prefix_cache = skip_reading_prefix_cache
        #: Tokens whose K/V exist or are being written by steps already planned.
        self.num_computed_tokens = 0
        #: Of those, how many belong to steps that still run (S13).
        self.num_in_flight_tokens = 0
        #: How often it has been preempted.
        self.num_preemptions = 0
        #: Junction found by the latest lookup, or 0; see `CacheHit`.
        self.shared_prefix_boundary = 0
        #: One hash for each whole block of `hash_block_size` known tokens.
        self.block_hashes: list[BlockHash] = []
        self._tokens: list[int] = list(prompt_token_ids)
        self._chain = hasher.start(extra_keys) if hasher else None
        #: Tokens a hash; None if the request isn't hashed.
        self.hash_block_size = hasher.hash_block_size if hasher else None
        self._next_hash_tokens = 0
        if self._chain is None:
            pack_tokens(self._tokens)
        else:
            self.block_hashes = self._chain.extend(self._tokens)
            self._next_hash_tokens = (len(self.block_hashes) + 1) * self._chain.block_size

    @property
    def all_token_ids(self) -> Sequence[int]:
        """Prompt and appended tokens; read only."""
        return self._tokens

    @property
    def num_tokens(self) -> int:
        """How many tokens are known: the prompt and all appended ones."""
        return len(self._tokens)

    def key_bytes(self, start: int, end: int) -> bytes:
        """The extra keys of tokens [start, end); from the first on, those of the request too."""
        keys = [] if start else self.extra_keys.of_request()
        return frame(keys + self.extra_keys.of_block(start, end))

    def append_output_token_ids(self, token_ids: int | Sequence[int]) -> None:
        """Add verified tokens; hashes only blocks that became full (S8).

        Raises: InvalidRequest for a token out of range; nothing has changed then.
        """
        tokens = self._tokens
        if type(token_ids) is int:
            if not 0 <= token_ids < FRAME_MARKER:
                raise InvalidRequest(f"request {self.request_id}: no token id: {token_ids}")
            tokens.append(token_ids)
        elif _is_sequence(token_ids):
            pack_tokens(token_ids)
            tokens.extend(token_ids)
        if self._chain is not None and len(tokens) >= self._next_hash_tokens:
            num_hashed = len(self.block_hashes) * self._chain.block_size
            self.block_hashes += self._chain.extend(tokens[num_hashed:])
            self._next_hash_tokens = (len(self.block_hashes) + 1) * self._chain.block_size

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, num_tokens={self.num_tokens}, "
            f"num_computed_tokens={self.num_computed_tokens})"
        )


def _is_sequence(token_ids: object) -> TypeGuard[Sequence[int]]:
    """True for a list, tuple or the like. Raises: InvalidRequest for anything else."""
    if not isinstance(token_ids, Sequence) or isinstance(token_ids, bytes | bytearray | str):
        raise InvalidRequest(f"token ids are a sequence, not {type(token_ids).__name__}")
    return True
