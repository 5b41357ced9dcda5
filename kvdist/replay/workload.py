"""Replay the prompts of real requests through the block manager, and count what it finds again.

Owns:   the manager of one replay, and the counts.
Knows nothing of: output tokens, time, concurrency: requests are served one after the other.
Units:  `num_tokens` is tokens of the workload, all other counts are blocks or requests.
Source: the format is that of Mooncake's traces (tests/data/workload/README.md).

A workload has no tokens, only hash ids, each for a block of the prompt; equal ids mean equal
prefixes up to there. Since nothing but whole blocks is ever found again, a replay's blocks have two
tokens, both the id: two is the least with which a block can be partly filled, and the number has no
other influence. So a hit ends one block early exactly when it would with real tokens (S9).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from kvdist.cache import BlockHasher, FullAttentionSpec, KVCacheConfig, KVCacheManager, Request
from kvdist.errors import ConfigError, FormatError
from kvdist.replay.json_lines import Json, read_json_lines

#: Tokens of a replay's block.
_BLOCK_SIZE: Final = 2
#: Above all token ids.
_MAX_HASH_ID: Final = 0xFFFFFFFF
_MAX_TOKENS: Final = 1 << 31


class Lengths(StrEnum):
    """How long a prompt is taken to be."""

    #: As long as its hash ids: each stands for a full block, the last one too.
    HASH_IDS = "hash-ids"
    #: `input_length`: the last block is partly filled, unless the length is a multiple.
    TRUE = "true"


class Prompt(NamedTuple):
    """One request of a workload."""

    #: Of its full blocks.
    hash_ids: Sequence[int]
    num_tokens: int
    #: Whether a block follows that is partly filled.
    has_tail: bool

    def tokens(self) -> list[int]:
        """It in the replay's tokens."""
        return [i for i in self.hash_ids for _ in range(_BLOCK_SIZE)] + [0] * self.has_tail


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts in the order of their arrival."""

    #: Tokens of the workload in one block.
    block_size: int
    lengths: Lengths
    prompts: Sequence[Prompt]

    @property
    def num_tokens(self) -> int:
        """Of all prompts."""
        return sum(prompt.num_tokens for prompt in self.prompts)

    @property
    def num_full_blocks(self) -> int:
        """Of all prompts, as if none were shared."""
        return sum(len(prompt.hash_ids) for prompt in self.prompts)

    @property
    def num_blocks(self) -> int:
        """Of all prompts with their tails: a pool of so many never evicts."""
        return self.num_full_blocks + sum(prompt.has_tail for prompt in self.prompts)

    def references(self) -> list[int]:
        """The hash ids of all full blocks, one after the other."""
        return [i for prompt in self.prompts for i in prompt.hash_ids]


def read_workload(path: Path, block_size: int, lengths: Lengths) -> Workload:
    """The workload in a file; `block_size` is the number of tokens that one hash id stands for.

    Raises: FormatError if the file is not a workload with blocks of that size, ConfigError if no
    block can have that size.
    """
    if not 1 <= block_size <= _MAX_TOKENS:
        raise ConfigError(f"block size {block_size}")
    prompts = []
    for number, row in read_json_lines(path):
        try:
            prompts.append(_prompt(row, block_size, lengths))
        except FormatError as error:
            raise FormatError(f"{path}:{number}: {error}") from error
    if not prompts:
        raise FormatError(f"{path}: empty")
    return Workload(block_size, lengths, prompts)


def _prompt(row: Json, block_size: int, lengths: Lengths) -> Prompt:
    ids, length = row.get("hash_ids"), row.get("input_length")
    if not isinstance(ids, list) or not ids or {*map(type, ids)} != {int}:
        raise FormatError("hash_ids is not a list of numbers")
    if min(ids) < 0 or max(ids) >= _MAX_HASH_ID:
        raise FormatError(f"a hash id is not within 0 .. {_MAX_HASH_ID - 1}")
    if type(length) is not int or not 1 <= length <= _MAX_TOKENS:
        raise FormatError(f"input_length is not within 1 .. {_MAX_TOKENS}")
    if len(ids) != -(-length // block_size):
        raise FormatError(
            f"{len(ids)} hash ids for {length} tokens: not blocks of {block_size} tokens"
        )
    if lengths is Lengths.HASH_IDS:
        return Prompt(ids, len(ids) * block_size, False)
    num_full_blocks = length // block_size
    return Prompt(ids[:num_full_blocks], length, num_full_blocks < len(ids))


@dataclass(slots=True)
class Counts:
    """What came of the prompts that were served."""

    #: Requests that needed more blocks than the pool has; all their blocks count as not found.
    refused_requests: int = 0
    hit_blocks: int = 0
    #: Full blocks that were found and computed anew all the same: they end a prompt, whose last
    #: token is always computed, for its logits (S9).
    given_up_blocks: int = 0
    #: Blocks whose content went because another request took them.
    evicted_blocks: int = 0


class WorkloadReplay:
    """A manager with `num_blocks` usable blocks (None: as many as are ever needed).

    Raises: ConfigError for less than one block.

    >>> first, longer = Prompt([1, 2], 1024, False), Prompt([1, 2, 3], 1400, True)
    >>> replay = WorkloadReplay(Workload(512, Lengths.TRUE, [first, longer]), None)
    >>> replay.serve(first), replay.serve(longer), replay.counts.hit_blocks
    (True, True, 2)
    """

    def __init__(self, workload: Workload, num_blocks: int | None) -> None:
        if num_blocks is None or num_blocks > workload.num_blocks:
            num_blocks = workload.num_blocks
        spec = FullAttentionSpec(block_size=_BLOCK_SIZE)
        # One more than usable: the null block.
        self.manager = KVCacheManager(KVCacheConfig.single(spec, num_blocks=num_blocks + 1))
        self.counts = Counts()
        self._hasher = BlockHasher(_BLOCK_SIZE)

    def serve(self, prompt: Prompt) -> bool:
        """Look up, allocate, compute and free one prompt. False if it needs more than the pool."""
        request = Request("request", prompt.tokens(), self._hasher)
        hit = self.manager.get_computed_blocks(request)
        num_given_up = self._num_given_up(request, prompt, hit.num_tokens)
        if self.manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit) is None:
            self.counts.refused_requests += 1
            return False
        request.num_computed_tokens = request.num_tokens
        self.manager.free(request)
        self.counts.hit_blocks += hit.num_tokens // _BLOCK_SIZE
        self.counts.given_up_blocks += num_given_up
        self.counts.evicted_blocks = self.manager.block_pool.num_evicted_blocks
        return True

    def _num_given_up(self, request: Request, prompt: Prompt, num_hit_tokens: int) -> int:
        """How many blocks more a prompt with one more token would hit, 0 or 1."""
        if prompt.has_tail or request.num_tokens - num_hit_tokens > _BLOCK_SIZE:
            return 0
        longer = Request("longer", [*request.all_token_ids, 0], self._hasher)
        return (self.manager.get_computed_blocks(longer).num_tokens - num_hit_tokens) // _BLOCK_SIZE
