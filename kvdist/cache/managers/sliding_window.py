"""Sliding window: only the window's suffix stays; hits are found from the right.

Owns:   nothing beyond its base.
Knows nothing of: other groups.
Source: the document's sliding window manager; boundaries as vLLM 0.32.

With a window of 5 and blocks of 4, the next token after 10 computed ones reads 6 .. 10:

    tokens  0 1 2 3 | 4 5 6 7 | 8 9 10       skipped: 6 tokens, so 1 whole block
            skipped   needed    needed

A window of 1 needs no block to resume anywhere. As in vLLM it publishes none, and alone finds none.
"""

from collections.abc import Sequence

from kvdist.cache.block import KVCacheBlock
from kvdist.cache.block_pool import BlockPool
from kvdist.cache.hash_index import BlockHashToBlockMap
from kvdist.cache.managers.base import GroupHit, SingleTypeKVCacheManager, cdiv
from kvdist.cache.spec import KVCacheConfig, SlidingWindowSpec
from kvdist.ids import BlockHash, GroupId


class SlidingWindowManager(SingleTypeKVCacheManager):
    """Keeps the blocks that the window still covers."""

    recycles = True

    def __init__(self, config: KVCacheConfig, group_id: GroupId, pool: BlockPool) -> None:
        super().__init__(config, group_id, pool)
        spec = config.kv_cache_groups[group_id].kv_cache_spec
        assert isinstance(spec, SlidingWindowSpec)
        self.sliding_window = spec.sliding_window
        most = min(self.sliding_window - 1 + config.max_in_flight_tokens, config.max_model_len)
        # One more, because a window need not begin where a block does.
        self.max_admission_blocks = cdiv(most, self.block_size) + 1

    def _contiguous_blocks(self, use_eagle: bool) -> int:
        """Blocks before a position that have to be there to resume at it."""
        return cdiv(self.sliding_window - 1, self.block_size) + use_eagle

    def find_longest_cache_hit(
        self,
        block_hashes: Sequence[BlockHash],
        max_length: int,
        indexes: Sequence[BlockHashToBlockMap],
        drop_eagle_block: bool,
    ) -> GroupHit:
        """The rightmost aligned run of blocks that fills a window, or a run from the start."""
        hashes = self.hashes_of_blocks(block_hashes)[: max_length // self.block_size]
        unit = max(1, self.alignment // self.block_size)
        need = max(1, self._contiguous_blocks(drop_eagle_block))
        end, start = self._run_at_the_end(hashes, indexes, need, unit, drop_eagle_block)
        if end is None:
            end, start = self._run_anywhere(hashes, indexes, need, unit, drop_eagle_block)
        num_blocks = end
        if start == 0 and end < need:
            num_blocks -= num_blocks % unit
        if drop_eagle_block and num_blocks:
            num_blocks -= 1
            num_blocks -= num_blocks % unit
        null = self.pool.null_block
        found: list[list[KVCacheBlock]] = []
        for index in indexes:
            real = index.get_longest_prefix(hashes[start:num_blocks])
            found.append([null] * min(start, num_blocks) + real)
        return found, num_blocks * self.block_size

    def _run_at_the_end(
        self,
        hashes: Sequence[BlockHash],
        indexes: Sequence[BlockHashToBlockMap],
        need: int,
        unit: int,
        drop: bool,
    ) -> tuple[int | None, int]:
        """The common case: a whole run right before the last aligned end. (None, 0) if not."""
        end = (len(hashes) - drop) // unit * unit + drop
        start = end - need
        if start < 0:
            return None, 0
        wanted = hashes[start:end]
        whole = all(len(index.get_longest_prefix(wanted)) == need for index in indexes)
        return (end, start) if whole else (None, 0)

    def _run_anywhere(
        self,
        hashes: Sequence[BlockHash],
        indexes: Sequence[BlockHashToBlockMap],
        need: int,
        unit: int,
        drop: bool,
    ) -> tuple[int, int]:
        """(end, start) of the rightmost run; (end, 0) with end < need for a shorter one at 0."""
        rows = [index.get_each(hashes) for index in indexes]
        # One byte a block, 1 where all groups have it: then runs are found by searching bytes.
        present = bytes(map(all, zip(*rows, strict=True)))
        run, limit = b"\1" * need, len(present)
        while (start := present.rfind(run, 0, limit)) >= 0:
            end = start + need
            if (end - drop) % unit == 0:
                return end, start
            limit = end - 1
        leading = len(present) - len(present.lstrip(b"\1"))
        end = (leading - drop) // unit * unit + drop if leading >= drop else 0
        return max(end, 0), 0

    def reachable_blocks(
        self, start: int, end: int, boundaries: Sequence[int]
    ) -> Sequence[int] | None:
        """Only blocks within a window before a position where a hit can end."""
        if self.alignment % self.block_size:
            return None
        need = self._contiguous_blocks(self.use_eagle)
        shift = int(self.use_eagle)  # the run ends one block after the position
        interval = self.alignment if self.retention_interval is None else self.retention_interval
        reachable: set[int] = set()
        if interval:
            segment = interval // self.block_size
            if need >= segment:
                return None
            reachable.update(
                i for i in range(max(start, shift), end) if (i - shift) % segment >= segment - need
            )
        if self.retention_interval is not None:
            for boundary in boundaries:
                last = boundary // self.alignment * self.alignment // self.block_size + shift
                reachable.update(range(max(start, last - need), min(end, last)))
        return sorted(reachable)

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Tokens left of the window of the next token."""
        return max(0, num_computed_tokens - self.sliding_window + 1)

    def next_skip(self, num_processed_tokens: int) -> int:
        """The window leaves its next block."""
        num_skipped = self.get_num_skipped_tokens(num_processed_tokens) // self.block_size
        return (num_skipped + 1) * self.block_size + self.sliding_window - 1
