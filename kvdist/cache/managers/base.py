"""What all kinds of layers share: block tables, prediction, adoption of hits, publishing (S4).

Owns:   `req_to_blocks`, the block table of each request in this group, and how much of it is
        published.
Knows nothing of: other groups, the whole pool's capacity, models.
Units:  tokens and blocks, by name.
Source: the document's `SingleTypeKVCacheManager`; behaviour as vLLM 0.32
        (vllm/v1/core/single_type_kv_cache_manager.py), shown by the recorded traces.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final

from kvdist.cache.block import KVCacheBlock
from kvdist.cache.block_pool import BlockPool
from kvdist.cache.hash_index import BlockHashToBlockMap
from kvdist.cache.holds import HoldKind
from kvdist.cache.request import Request
from kvdist.cache.spec import KVCacheConfig
from kvdist.cache.token_space import TokenSpace
from kvdist.ids import BlockHash, GroupId, RequestId

#: A position that is never reached.
NEVER: Final = 1 << 62

#: Hit blocks for each of the groups that were looked up together, and the hit's tokens.
GroupHit = tuple[list[list[KVCacheBlock]], int]


def cdiv(dividend: int, divisor: int) -> int:
    """Quotient, rounded up."""
    return -(-dividend // divisor)


class SingleTypeKVCacheManager(ABC):
    """Translates tokens into the blocks of one group."""

    #: Lookups may end inside a block, at a hash boundary.
    supports_partial_hits: ClassVar[bool] = False
    #: Blocks are given back while the request runs.
    recycles: ClassVar[bool] = False
    #: Prediction may say 0 and still change something: no quiet bounds for such groups (ADR-0008).
    has_quiet_bounds: ClassVar[bool] = True

    def __init__(self, config: KVCacheConfig, group_id: GroupId, pool: BlockPool) -> None:
        spec = config.kv_cache_groups[group_id].kv_cache_spec
        self.block_size = spec.block_size
        self.group_id = group_id
        self.pool = pool
        self.index: BlockHashToBlockMap = pool.cached_block_hash_to_block[group_id]
        self.hash_block_size = config.hash_block_size
        self.enable_partial_hits = config.enable_partial_hits
        self.retention_interval = config.retention_interval
        #: Hits of all groups together end at multiples of this many tokens.
        self.alignment = config.scheduler_block_size
        #: The last matched block is dropped in this group; set by the coordinator.
        self.use_eagle = False
        #: Most blocks one request holds here at a time, for the whole-sequence gate.
        self.max_admission_blocks: int = NEVER
        self.req_to_blocks: dict[RequestId, list[KVCacheBlock]] = {}
        #: Blocks of a request that are published or never will be; only requests that have adopted
        #: a hit or published something.
        self.num_cached_block: dict[RequestId, int] = {}
        #: Requests whose hit ended inside a block: its index, and the block to copy from.
        self.partial_hits: dict[RequestId, tuple[int, KVCacheBlock]] = {}
        #: (source, target) of block copies to run before the next step.
        self.pending_copies: list[tuple[KVCacheBlock, KVCacheBlock]] = []

    # -- lookup --------------------------------------------------------------------------------

    @abstractmethod
    def find_longest_cache_hit(
        self,
        block_hashes: Sequence[BlockHash],
        max_length: int,
        indexes: Sequence[BlockHashToBlockMap],
        drop_eagle_block: bool,
    ) -> GroupHit:
        """The longest prefix of at most `max_length` tokens that all of `indexes` can resume at.

        `block_hashes` are those of the request, one for each `hash_block_size` tokens; `indexes`
        are those of this group and of others with the same spec. With `drop_eagle_block` the last
        matched unit is given up again.
        """

    def hashes_of_blocks(self, block_hashes: Sequence[BlockHash]) -> Sequence[BlockHash]:
        """One hash for each block of this group."""
        scale = self.block_size // self.hash_block_size
        return block_hashes if scale == 1 else block_hashes[scale - 1 :: scale]

    # -- prediction ----------------------------------------------------------------------------

    def get_num_blocks_to_allocate(
        self, space: TokenSpace, hit_blocks: Sequence[KVCacheBlock], apply_admission_cap: bool
    ) -> int:
        """Blocks that the allocation takes out of the free queue here: new ones and idle hits."""
        request_id = space.request_id
        num_required = cdiv(space.slots, self.block_size)
        if apply_admission_cap:
            num_required = min(num_required, self.max_admission_blocks)
        num_owned = len(self.req_to_blocks.get(request_id, ()))
        if request_id in self.num_cached_block:
            return max(num_required - num_owned, 0)
        num_skipped = self.get_num_skipped_tokens(space.total) // self.block_size
        num_new = max(num_required - max(num_skipped, len(hit_blocks) + num_owned), 0)
        if self._ends_inside_a_block(hit_blocks, space.local):
            num_new += 1  # the private copy
        kept = hit_blocks[max(0, num_skipped - num_owned) :]
        return num_new + sum(not block.ref_cnt for block in kept)

    def get_num_blocks_taken(self, space: TokenSpace, hit_blocks: Sequence[KVCacheBlock]) -> int:
        """Blocks that really leave the free queue; for kinds whose prediction isn't exact."""
        return self.get_num_blocks_to_allocate(space, hit_blocks, False)

    def _ends_inside_a_block(self, hit_blocks: Sequence[KVCacheBlock], local: int) -> bool:
        return bool(hit_blocks) and local % self.block_size != 0

    # -- the two phases ------------------------------------------------------------------------

    def add_local_computed_blocks(
        self, space: TokenSpace, hit_blocks: Sequence[KVCacheBlock]
    ) -> None:
        """First phase: reference the hit blocks and begin the request's table with them."""
        num_skipped = self.get_num_skipped_tokens(space.total) // self.block_size
        hit_blocks = hit_blocks[num_skipped:]
        self.pool.touch(hit_blocks)
        table = [self.pool.null_block] * num_skipped
        table += hit_blocks
        self.req_to_blocks[space.request_id] = table
        num_cached = len(table)
        if self._ends_inside_a_block(hit_blocks, space.local):
            num_cached = space.local // self.block_size
            self.partial_hits[space.request_id] = (num_cached, hit_blocks[-1])
        self.num_cached_block[space.request_id] = num_cached

    def allocate_external_computed_blocks(self, space: TokenSpace) -> None:
        """Second phase, first half: take blocks for external tokens that are still to be read."""
        if self.get_num_skipped_tokens(space.total) >= space.total:
            return
        table = self.req_to_blocks[space.request_id]
        num_new = cdiv(space.total, self.block_size) - len(table)
        if num_new > 0:
            table += self.pool.get_new_blocks(num_new, self.group_id)

    def allocate_new_blocks(self, space: TokenSpace) -> list[KVCacheBlock]:
        """Second phase, second half: take blocks up to `space.slots`; returns the new entries."""
        table = self.req_to_blocks.setdefault(space.request_id, [])
        redirected = []
        if partial_hit := self.partial_hits.pop(space.request_id, None):
            block_idx, source = partial_hit
            (copy,) = self.pool.get_new_blocks(1, self.group_id)
            self.redirect_to_copy(table, block_idx, source, copy)
            redirected = [copy]
        num_new = cdiv(space.slots, self.block_size) - len(table)
        if num_new <= 0:
            return redirected
        new_blocks = self.pool.get_new_blocks(num_new, self.group_id)
        table += new_blocks
        return redirected + new_blocks

    def redirect_to_copy(
        self, table: list[KVCacheBlock], block_idx: int, source: KVCacheBlock, copy: KVCacheBlock
    ) -> None:
        """Put a private copy in the place of a shared block; both are pinned until it is made.

        The reference that the hit put on `source` goes on as its pin.
        """
        table[block_idx] = copy
        self.pool.holds.add((source,), HoldKind.COPY)
        self.pool.hold((copy,), HoldKind.COPY)
        self.pending_copies.append((source, copy))

    def take_pending_copies(self) -> list[tuple[KVCacheBlock, KVCacheBlock]]:
        """Return and forget the copies that became due since the last call."""
        copies, self.pending_copies = self.pending_copies, []
        return copies

    # -- publishing ----------------------------------------------------------------------------

    def cache_blocks(
        self, request: Request, num_tokens: int, replay_boundaries: Sequence[int]
    ) -> None:
        """Publish the full blocks within the first `num_tokens` that aren't yet."""
        request_id = request.request_id
        num_cached = self.num_cached_block.get(request_id, 0)
        num_full = num_tokens // self.block_size
        if num_cached >= num_full:
            return
        boundaries = list(replay_boundaries)
        if request.shared_prefix_boundary:
            boundaries.append(request.shared_prefix_boundary)
        reachable = self.reachable_blocks(num_cached, num_full, boundaries)
        table = self.req_to_blocks.get(request_id, [])
        for start, end in self._runs_to_publish(table, num_cached, num_full, reachable):
            self.pool.cache_full_blocks(
                request, table[start:end], start, self.block_size, self.group_id
            )
        self.num_cached_block[request_id] = num_full

    def _runs_to_publish(
        self, table: list[KVCacheBlock], start: int, end: int, reachable: Sequence[int] | None
    ) -> list[tuple[int, int]]:
        """Runs [first, last) of real blocks among `reachable`, or among all of [start, end)."""
        null = self.pool.null_block
        if reachable is None:
            if null not in table[start:end]:
                return [(start, end)]
            reachable = range(start, end)
        runs: list[tuple[int, int]] = []
        for i in reachable:
            if table[i] is null:
                continue
            if runs and runs[-1][1] == i:
                runs[-1] = (runs[-1][0], i + 1)
            else:
                runs.append((i, i + 1))
        return runs

    def reachable_blocks(
        self, start: int, end: int, boundaries: Sequence[int]
    ) -> Sequence[int] | None:
        """Indices in [start, end) of blocks that can serve a hit, ascending; None: all of them.

        `boundaries` are token positions at which requests are known to resume.
        """
        return None

    def roll_back_publication(self, request_id: RequestId, first_block: int) -> None:
        """Let blocks from `first_block` on be published again."""
        if request_id in self.num_cached_block:
            cached = self.num_cached_block[request_id]
            self.num_cached_block[request_id] = min(cached, first_block)

    # -- giving back ---------------------------------------------------------------------------

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """How many leading tokens no later step reads, once so many are computed."""
        return 0

    def remove_skipped_blocks(
        self, request_id: RequestId, num_processed_tokens: int, last_step: int
    ) -> None:
        """Give back what no step reads any more; null blocks keep the later indices (S13).

        While `last_step`, the latest that names the blocks, is open they stay held (S27).
        """
        num_skipped = self.get_num_skipped_tokens(num_processed_tokens) // self.block_size
        if num_skipped > 0 and (table := self.req_to_blocks.get(request_id)):
            null, freed = self.pool.null_block, []
            for i in range(min(num_skipped, len(table)) - 1, -1, -1):
                if table[i] is null:
                    break  # what is left of it went before
                freed.append(table[i])
                table[i] = null
            self.pool.release_after(last_step, freed)

    def pop_blocks_for_free(self, request_id: RequestId) -> list[KVCacheBlock]:
        """Forget the request; returns its blocks, still referenced, in order of reuse."""
        self.num_cached_block.pop(request_id, None)
        self.partial_hits.pop(request_id, None)
        blocks = self.req_to_blocks.pop(request_id, [])
        blocks.reverse()
        null = self.pool.null_block
        # Where windows leave blocks the first goes first, so the others need no look.
        return [b for b in blocks if b is not null] if blocks and blocks[-1] is null else blocks

    def new_step_starts(self) -> None:  # noqa: B027 - most kinds have nothing to do
        """A new step is planned."""

    # -- quiet bounds (ADR-0008) ---------------------------------------------------------------

    def num_slots(self, request_id: RequestId) -> int:
        """Tokens that have slots: up to here nothing has to be taken."""
        return len(self.req_to_blocks.get(request_id, ())) * self.block_size

    def next_publication(self, request: Request) -> int:
        """Up to this many tokens (exclusive) there is nothing to publish."""
        return (self.num_cached_block.get(request.request_id, 0) + 1) * self.block_size

    def next_skip(self, num_processed_tokens: int) -> int:
        """Up to this many processed tokens (exclusive) there is nothing more to give back."""
        return NEVER

    # -- for the auditor -----------------------------------------------------------------------

    def resumable_blocks(self, num_computed_tokens: int) -> range:
        """Table indices that must be real blocks to go on after so many tokens (I3)."""
        first = self.get_num_skipped_tokens(num_computed_tokens) // self.block_size
        return range(first, cdiv(num_computed_tokens, self.block_size))
