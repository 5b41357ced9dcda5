"""A block manager that tells what it does, number by number; for traces.

Owns:   what was counted before the allocation that is under way.
Knows nothing of: who listens, files, clocks.
Cost:   O(table and free queue) an allocation that isn't quiet; the plain manager pays nothing.

It does what `KVCacheManager` does, and looks before and after: the document's breakpoints
`get_computed_blocks`, `get_num_blocks_to_allocate`, `touch`, `get_new_blocks` and `free`.
"""

from collections.abc import Iterable
from itertools import islice

from kvdist.cache.block import KVCacheBlock
from kvdist.cache.coordinator import PerGroup
from kvdist.cache.live_request import LiveRequest
from kvdist.cache.manager import KVCacheManager
from kvdist.cache.managers.base import cdiv
from kvdist.cache.request import Request
from kvdist.cache.results import CacheHit, KVCacheBlocks
from kvdist.cache.spec import KVCacheConfig
from kvdist.cache.token_space import TokenSpace
from kvdist.ids import BlockId, RequestId
from kvdist.trace.events import (
    Allocated,
    Count,
    Evicted,
    Forgotten,
    Freed,
    Published,
    Tables,
    Waits,
)
from kvdist.trace.recorder import Recorder

#: Digits of a key that are told.
_DIGITS = 12


class _Before:
    """What was so right before blocks moved."""

    def __init__(
        self,
        tables: PerGroup,
        hit_blocks: PerGroup,
        counts: tuple[Count, ...],
        needed: int,
        free: int,
        kept: int,
        keys: dict[BlockId, str],
    ) -> None:
        self.tables = tables
        real = [[block for block in group if block.block_id] for group in hit_blocks]
        self.hit = _ids(real)
        self.hit_refs = _refs(real)
        self.counts = counts
        self.needed = needed
        self.free = free
        self.kept = kept
        #: Of the free blocks that may be taken.
        self.keys = keys


class TracedKVCacheManager(KVCacheManager):
    """`KVCacheManager` with a recorder."""

    def __init__(self, config: KVCacheConfig, recorder: Recorder) -> None:
        super().__init__(config)
        self._recorder = recorder
        self._before: _Before | None = None

    # -- allocation ----------------------------------------------------------------------------

    def _fits(self, space: TokenSpace, hit_blocks: PerGroup, kept_free: int) -> bool:
        before = self._count_blocks(space, hit_blocks, kept_free)
        self._before = before
        fits = super()._fits(space, hit_blocks, kept_free)
        if not fits:
            wait = Waits(space.request_id, "blocks", before.needed, before.free, before.kept)
            self._recorder.note(wait)
        return fits

    def _count_blocks(self, space: TokenSpace, hit_blocks: PerGroup, kept: int) -> _Before:
        tables = self.get_blocks(space.request_id).blocks
        counts = tuple(
            Count(
                cdiv(space.slots, manager.block_size),
                len(table),
                len(found),
                sum(not block.ref_cnt for block in found),
            )
            for manager, table, found in zip(
                self.coordinator.managers, tables, hit_blocks, strict=True
            )
        )
        needed = self.coordinator.get_num_blocks_to_allocate(space, hit_blocks)
        most = max(needed, self.coordinator.get_num_blocks_taken(space, hit_blocks))
        keys = {
            block.block_id: _digits(block.block_hash)
            for block in islice(self.block_pool.free_block_queue, most)
            if block.block_hash is not None
        }
        free = self.block_pool.get_num_free_blocks()
        return _Before(tables, hit_blocks, counts, needed, free, kept, keys)

    def _take(
        self,
        request: Request,
        live: LiveRequest | None,
        space: TokenSpace,
        hit_blocks: PerGroup,
        kept_free: int,
    ) -> KVCacheBlocks | None:
        windows = self.get_blocks(request.request_id).blocks
        new_blocks = super()._take(request, live, space, hit_blocks, kept_free)
        before, self._before = self._before, None
        assert before is not None
        last_step = live.step if live is not None else 0
        self._note_window(request.request_id, windows, before.tables, last_step)
        if new_blocks is not None:
            self._note_taken(request, live, space, before, new_blocks)
        return new_blocks

    def _note_taken(
        self,
        request: Request,
        live: LiveRequest | None,
        space: TokenSpace,
        before: _Before,
        new_blocks: KVCacheBlocks,
    ) -> None:
        new = _ids([block for block in group if block.block_id] for group in new_blocks.blocks)
        taken = self._taken(request.request_id, before)
        external = tuple(
            tuple(block for block in group if block not in mine)
            for group, mine in zip(taken, new, strict=True)
        )
        if live is not None and not any(taken):
            return
        local = space.local - request.num_computed_tokens
        hashes, at = request.block_hashes, local // self.config.scheduler_block_size
        scale = self.config.scheduler_block_size // self.config.hash_block_size
        missed = (at + 1) * scale - 1
        blocks = self.block_pool.blocks
        self._recorder.note(
            Allocated(
                request.request_id,
                self.block_pool.steps.current,
                live is None,
                local,
                space.total - space.local,
                space.main - space.total,
                space.slots - space.main,
                request.num_tokens - 1,
                _digits(hashes[missed]) if missed < len(hashes) else "",
                self.config.enable_caching and not request.skip_reading_prefix_cache,
                before.counts,
                before.needed,
                before.free,
                before.kept,
                self.block_pool.get_num_free_blocks(),
                before.hit,
                before.hit_refs,
                external,
                new,
                tuple(
                    Evicted(block_id, before.keys[block_id], blocks[block_id].block_hash is None)
                    for group in taken
                    for block_id in group
                    if block_id in before.keys
                ),
            )
        )

    def _taken(self, request_id: RequestId, before: _Before) -> tuple[tuple[BlockId, ...], ...]:
        """Blocks of the tables that were neither there before nor hit."""
        return tuple(
            tuple(b for b in table if b and b not in known)
            for table, known in zip(
                self.get_block_ids(request_id),
                (
                    {*owned, *found}
                    for owned, found in zip(_ids(before.tables), before.hit, strict=True)
                ),
                strict=True,
            )
        )

    def _note_window(
        self, request_id: RequestId, was: PerGroup, now: PerGroup, last_step: int
    ) -> None:
        left = tuple(
            [old for old, new in zip(*tables, strict=True) if old.block_id and not new.block_id]
            for tables in zip(was, now, strict=True)
        )
        if not any(left):
            return
        after_step = self._fence(last_step)
        refs = tuple(
            tuple(block.ref_cnt + (not after_step) for block in reversed(group)) for group in left
        )
        blocks = [tuple(reversed(group)) for group in left]
        self._note_freed(request_id, "window", blocks, refs, after_step)

    # -- publishing ----------------------------------------------------------------------------

    def _commit(
        self, request: Request, space: TokenSpace, hit: CacheHit | None, *, publish: bool
    ) -> None:
        before = self._num_published(request.request_id)
        super()._commit(request, space, hit, publish=publish)
        self._note_published(request.request_id, before)

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """See `KVCacheManager.cache_blocks`."""
        before = self._num_published(request.request_id)
        super().cache_blocks(request, num_tokens)
        self._note_published(request.request_id, before)

    def _num_published(self, request_id: RequestId) -> list[int]:
        return [m.num_cached_block.get(request_id, 0) for m in self.coordinator.managers]

    def _note_published(self, request_id: RequestId, before: list[int]) -> None:
        tables = self.get_blocks(request_id).blocks
        ends = self._num_published(request_id)
        for group, (table, start, end) in enumerate(zip(tables, before, ends, strict=True)):
            found = tuple(b.block_id for b in table[start:end] if b.block_hash is not None)
            if found:
                self._recorder.note(Published(request_id, group, start, found))

    # -- giving back ---------------------------------------------------------------------------

    def free(self, request: Request) -> None:
        """See `KVCacheManager.free`."""
        live = self.live_requests.get(request.request_id)
        tables = self.get_blocks(request.request_id).blocks
        blocks = [tuple(b for b in reversed(table) if b.block_id) for table in tables]
        refs = _refs(blocks)
        after_step = self._fence(live.step) if live is not None else 0
        super().free(request)
        if live is not None:
            self._note_freed(request.request_id, "all", blocks, refs, after_step)

    def remove_skipped_blocks(self, request: Request, num_processed_tokens: int) -> None:
        """See `KVCacheManager.remove_skipped_blocks`."""
        live = self.live_requests.get(request.request_id)
        windows = self.get_blocks(request.request_id).blocks
        super().remove_skipped_blocks(request, num_processed_tokens)
        if live is not None:
            now = self.get_blocks(request.request_id).blocks
            self._note_window(request.request_id, windows, now, live.step)

    def _fence(self, last_step: int) -> int:
        """The step that a free of blocks which `last_step` names waits for, or 0."""
        steps = self.block_pool.steps
        return last_step if steps and last_step > steps.settled else 0

    def _note_freed(
        self,
        request_id: RequestId,
        why: str,
        blocks: list[tuple[KVCacheBlock, ...]],
        refs: Tables,
        after_step: int,
    ) -> None:
        found = tuple(b.block_id for group in blocks for b in group if b.block_hash is not None)
        ids = _ids(blocks)
        self._recorder.note(
            Freed(request_id, "window" if why == "window" else "all", ids, refs, found, after_step)
        )

    # -- forgetting ----------------------------------------------------------------------------

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """See `KVCacheManager.evict_blocks`."""
        ids = tuple(block_ids)
        super().evict_blocks(ids)
        self._recorder.note(Forgotten(ids, "evicted"))

    def reset_prefix_cache(self) -> bool:
        """See `KVCacheManager.reset_prefix_cache`."""
        ids = tuple(sorted({block.block_id for _, _, block in self.block_pool.cached_blocks()}))
        done = super().reset_prefix_cache()
        if done:
            self._recorder.note(Forgotten(ids, "reset"))
        return done

    def withdraw_step(self, step: int) -> list[BlockId]:
        """See `KVCacheManager.withdraw_step`."""
        withdrawn = super().withdraw_step(step)
        if withdrawn:
            self._recorder.note(Forgotten(tuple(withdrawn), "withdrawn"))
        return withdrawn


def _ids(blocks: Iterable[Iterable[KVCacheBlock]]) -> tuple[tuple[BlockId, ...], ...]:
    return tuple(tuple(block.block_id for block in group) for group in blocks)


def _refs(blocks: Iterable[Iterable[KVCacheBlock]]) -> Tables:
    return tuple(tuple(block.ref_cnt for block in group) for group in blocks)


def _digits(key: bytes) -> str:
    return key.hex()[:_DIGITS]
