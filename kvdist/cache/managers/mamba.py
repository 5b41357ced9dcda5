"""Mamba: a block is a recurrent state, not per-token K/V.

Owns:   which of a request's blocks is its running state, and what this step published.
Knows nothing of: how states are computed or copied.
Source: the document's Mamba manager; tables, scratch blocks and prompt tails as vLLM 0.32.

Mode `align` keeps the state at block boundaries, so that others can resume there:

    table   [null, null, state, running, scratch, scratch]
                         ^ read by the next step   ^ num_speculative_blocks for draft tokens

A step reads the state of the step before it, so the one before that is given back. When the
running state moves on, scratch blocks left behind move up and are used again.
"""

from collections.abc import Sequence

from kvdist.cache.block import KVCacheBlock
from kvdist.cache.block_pool import BlockPool
from kvdist.cache.hash_index import BlockHashToBlockMap
from kvdist.cache.holds import HoldKind
from kvdist.cache.managers.base import GroupHit, SingleTypeKVCacheManager, cdiv
from kvdist.cache.request import Request
from kvdist.cache.spec import KVCacheConfig, MambaSpec
from kvdist.cache.token_space import TokenSpace
from kvdist.ids import BlockHash, GroupId, RequestId


class MambaManager(SingleTypeKVCacheManager):
    """Keeps the running state and, in mode `align`, the states others may resume at."""

    recycles = True
    supports_partial_hits = True
    has_quiet_bounds = False

    def __init__(self, config: KVCacheConfig, group_id: GroupId, pool: BlockPool) -> None:
        super().__init__(config, group_id, pool)
        spec = config.kv_cache_groups[group_id].kv_cache_spec
        assert isinstance(spec, MambaSpec)
        self.align = spec.mamba_cache_mode == "align"
        self.num_speculative_blocks = spec.num_speculative_blocks
        # Where the attention groups drop a unit, the state has to lie one unit lower.
        self.lower_checkpoints = config.use_eagle
        #: Keys whose states are computed only in the step that is being planned.
        self.cached_this_step: set[BlockHash] = set()
        #: Table index of the state that the latest allocation's step starts from.
        self._last_state: dict[RequestId, int] = {}
        #: Table entries left of this index have been given back.
        self._num_retired: dict[RequestId, int] = {}
        #: Requests whose table ends with a running state and scratch blocks.
        self._running: set[RequestId] = set()

    def new_step_starts(self) -> None:
        """What the last step published is computed by the time the next one runs."""
        self.cached_this_step.clear()

    # -- lookup --------------------------------------------------------------------------------

    def find_longest_cache_hit(
        self,
        block_hashes: Sequence[BlockHash],
        max_length: int,
        indexes: Sequence[BlockHashToBlockMap],
        drop_eagle_block: bool,
    ) -> GroupHit:
        """The last position with a state in all groups: one real block behind null ones."""
        unit = min(self.alignment, self.block_size)
        step = self.alignment // unit
        hashes = block_hashes[unit // self.hash_block_size - 1 :: unit // self.hash_block_size]
        for num_units in range(min(max_length // unit, len(hashes)), 0, -1):
            if num_units % step:
                continue
            states = [index.oldest.get(hashes[num_units - 1]) for index in indexes]
            if None not in states:
                nulls = [self.pool.null_block] * (cdiv(num_units * unit, self.block_size) - 1)
                found = [[*nulls, state] for state in states if state is not None]
                return found, num_units * unit
        return [[] for _ in indexes], 0

    # -- prediction ----------------------------------------------------------------------------

    def get_num_blocks_to_allocate(
        self, space: TokenSpace, hit_blocks: Sequence[KVCacheBlock], apply_admission_cap: bool
    ) -> int:
        """More than any pool has while the hit's state isn't computed yet."""
        if hit_blocks and hit_blocks[-1].block_hash in self.cached_this_step:
            return self.pool.num_blocks + 1
        if not self.align:
            return super().get_num_blocks_to_allocate(
                self._with_scratch(space), hit_blocks, apply_admission_cap
            )
        request_id = space.request_id
        num_owned = len(hit_blocks) + len(self.req_to_blocks.get(request_id, ()))
        num_new = self._num_required(space) - num_owned
        copies = int(
            self._ends_inside_a_block(hit_blocks, space.local) or request_id in self.partial_hits
        )
        num_new = min(max(num_new, 0) + copies, self._most_new_blocks(request_id, copies))
        return num_new + sum(not block.ref_cnt for block in hit_blocks)

    def get_num_blocks_taken(self, space: TokenSpace, hit_blocks: Sequence[KVCacheBlock]) -> int:
        """The state that is loaded has a block of its own, before that of the first step."""
        if not self.align or space.total == space.local:
            return super().get_num_blocks_taken(space, hit_blocks)
        num_skipped = self.get_num_skipped_tokens(space.total) // self.block_size
        num_owned = max(len(hit_blocks), num_skipped)
        num_external = max(0, cdiv(space.total, self.block_size) - num_owned)
        num_new = max(0, self._num_required(space) - num_owned - num_external)
        num_new = min(num_new, self._most_new_blocks(space.request_id, 0))
        copies = self._ends_inside_a_block(hit_blocks[num_skipped:], space.local)
        idle = sum(not block.ref_cnt for block in hit_blocks[num_skipped:])
        return num_external + num_new + copies + idle

    def _num_required(self, space: TokenSpace) -> int:
        """Length of the table: lookahead tokens have no states of their own."""
        return cdiv(space.main, self.block_size) + self.num_speculative_blocks

    def _most_new_blocks(self, request_id: RequestId, copies: int) -> int:
        scratch = 0 if request_id in self._running else self.num_speculative_blocks
        return 1 + copies + scratch

    def _with_scratch(self, space: TokenSpace) -> TokenSpace:
        scratch_tokens = self.block_size * self.num_speculative_blocks
        return space._replace(slots=space.slots + scratch_tokens)

    # -- taking --------------------------------------------------------------------------------

    def allocate_new_blocks(self, space: TokenSpace) -> list[KVCacheBlock]:
        """Move the running state on; returns the entries that the table has gained."""
        if not self.align:
            return super().allocate_new_blocks(self._with_scratch(space))
        request_id = space.request_id
        table = self.req_to_blocks.setdefault(request_id, [])
        partial_hit = self.partial_hits.pop(request_id, None)
        num_required, num_before = self._num_required(space), len(table)
        was_running = request_id in self._running
        self._running.add(request_id)
        if num_required <= num_before and partial_hit is None:
            return []
        if was_running:
            self._last_state[request_id] = num_before - 1 - self.num_speculative_blocks
        elif num_before:
            self._last_state[request_id] = num_before - 1
        self._move_scratch_up(table, num_required, was_running)
        num_new = max(num_required - len(table), 0) + (partial_hit is not None)
        new_blocks = self.pool.get_new_blocks(num_new, self.group_id)
        redirected = []
        if partial_hit is not None:
            copy = new_blocks.pop(0)
            redirected = self._use_copy(table, partial_hit, copy, was_running)
        table += new_blocks
        return redirected + table[num_before:]

    def _move_scratch_up(
        self, table: list[KVCacheBlock], num_required: int, was_running: bool
    ) -> None:
        """Null the positions that get no state; scratch blocks left of the new one come after."""
        null = self.pool.null_block
        new_state, num_before = num_required - self.num_speculative_blocks - 1, len(table)
        table += [null] * (new_state - num_before)
        if was_running:
            for i in range(num_before - self.num_speculative_blocks, min(num_before, new_state)):
                table.append(table[i])
                table[i] = null

    def _use_copy(
        self,
        table: list[KVCacheBlock],
        partial_hit: tuple[int, KVCacheBlock],
        copy: KVCacheBlock,
        was_running: bool,
    ) -> list[KVCacheBlock]:
        """A hit goes on in the copy; a running request keeps its block and gives away its keys."""
        block_idx, source = partial_hit
        if not was_running:
            self.redirect_to_copy(table, block_idx, source, copy)
            return [copy]
        self.pool.move_block_hashes(source, copy)
        self.pool.hold((source,), HoldKind.COPY)
        self.pool.holds.add((copy,), HoldKind.COPY)
        self.pending_copies.append((source, copy))
        if copy.block_hash is not None:
            self.cached_this_step.add(copy.block_hash)
        return []

    # -- publishing ----------------------------------------------------------------------------

    def cache_blocks(
        self, request: Request, num_tokens: int, replay_boundaries: Sequence[int]
    ) -> None:
        """Publish states at block boundaries and at the prompt's reusable tail."""
        request_id = request.request_id
        before = self.num_cached_block.get(request_id, 0)
        super().cache_blocks(request, num_tokens, replay_boundaries)
        after = self.num_cached_block.get(request_id, 0)
        table = self.req_to_blocks.get(request_id, [])
        published = [block.block_hash for block in table[before:after]]
        published.append(self._cache_prompt_tail(request, num_tokens, table))
        self.cached_this_step.update(key for key in published if key is not None)

    def _cache_prompt_tail(
        self, request: Request, num_tokens: int, table: list[KVCacheBlock]
    ) -> BlockHash | None:
        """Publish the state at the tail when it is the running one; returns its key."""
        if num_tokens <= 0 or num_tokens != self._prompt_checkpoint(request):
            return None
        if num_tokens % self.block_size and not self.enable_partial_hits:
            return None
        block_idx = cdiv(num_tokens, self.block_size) - 1
        if block_idx >= len(table) or table[block_idx] is self.pool.null_block:
            return None
        block = table[block_idx]
        key = self.pool.cache_partial_block(
            request, block, num_tokens, self.block_size, self.group_id
        )
        if num_tokens % self.block_size:
            # The next step writes on in this block: its keys move to a copy first.
            self.partial_hits[request.request_id] = (block_idx, block)
            self.num_cached_block[request.request_id] = block_idx
        return key

    def _prompt_checkpoint(self, request: Request) -> int:
        """The last hash boundary of the prompt at which a resend can resume."""
        unit = self.hash_block_size
        if self.lower_checkpoints:
            return request.num_prompt_tokens // unit * unit - unit
        return (request.num_prompt_tokens - 1) // unit * unit

    def reachable_blocks(
        self, start: int, end: int, boundaries: Sequence[int]
    ) -> Sequence[int] | None:
        """Only states at which a hit can end."""
        if self.retention_interval is None:
            return None
        reachable: set[int] = set()
        if self.retention_interval:
            segment = self.retention_interval // self.block_size
            if segment <= 1:
                return None
            first = (start + segment) // segment * segment - 1
            reachable.update(range(first, end, segment))
        for boundary in boundaries:
            block = boundary // self.alignment * self.alignment // self.block_size - 1
            if start <= block < end:
                reachable.add(block)
        return sorted(reachable)

    # -- giving back ---------------------------------------------------------------------------

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Only the state of the last computed token is read."""
        return num_computed_tokens - 1

    def remove_skipped_blocks(
        self, request_id: RequestId, num_processed_tokens: int, last_step: int
    ) -> None:
        """Give back old states, also between null entries, and that of two allocations ago."""
        if not self.align:
            super().remove_skipped_blocks(request_id, num_processed_tokens, last_step)
            return
        table = self.req_to_blocks.get(request_id)
        if not table:
            return
        num_skipped = self.get_num_skipped_tokens(num_processed_tokens) // self.block_size
        first, end = self._num_retired.get(request_id, 0), min(num_skipped, len(table))
        if first < end:
            self._give_back(table, range(end - 1, first - 1, -1), last_step)
            self._num_retired[request_id] = end
        last_state = self._last_state.get(request_id)
        if last_state is not None and last_state < cdiv(num_processed_tokens, self.block_size) - 1:
            self._give_back(table, (last_state,), last_step)

    def _give_back(self, table: list[KVCacheBlock], indices: Sequence[int], last_step: int) -> None:
        null = self.pool.null_block
        self.pool.release_after(last_step, [table[i] for i in indices if table[i] is not null])
        for i in indices:
            table[i] = null

    def roll_back_publication(self, request_id: RequestId, first_block: int) -> None:
        """Let states from `first_block` on be published again; a withdrawn tail needs no copy."""
        super().roll_back_publication(request_id, first_block)
        if self.partial_hits.get(request_id, (-1,))[0] >= first_block:
            del self.partial_hits[request_id]

    def pop_blocks_for_free(self, request_id: RequestId) -> list[KVCacheBlock]:
        """Forget the request; returns its blocks, still referenced, in order of reuse."""
        self._running.discard(request_id)
        self._last_state.pop(request_id, None)
        self._num_retired.pop(request_id, None)
        return super().pop_blocks_for_free(request_id)
