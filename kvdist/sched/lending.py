"""Blocks lent by hash: what this node holds of a prefix, out of what nobody here needs (T13).

Owns:   nothing; the hold is the manager's, and ends by `BlocksReturned`.
Knows nothing of: peers, leases.
Units:  blocks, and tokens by name.
"""

from typing import TypeAlias

from kvdist.cache import HoldKind
from kvdist.ids import BlockHash, BlockId
from kvdist.sched.scheduler import Scheduler

Tables: TypeAlias = tuple[tuple[BlockId, ...], ...]


def may_lend(more: int, spare: int, most_blocks: int) -> bool:
    """T13: only out of what is neither reserved nor kept by the watermark, and within a cap."""
    return more <= spare and more <= most_blocks


def may_serve(is_settled: bool) -> bool:
    """T1: only blocks whose writing step is over."""
    return is_settled


class Lending:
    """See the module."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._manager = scheduler.manager

    @property
    def pool_blocks(self) -> int:
        """Blocks of the pool, the null block left out."""
        return self._manager.config.num_blocks - 1

    @property
    def longest_blocks(self) -> int:
        """Blocks of the longest sequence that this node takes."""
        return self._scheduler.longest_blocks

    def lend(
        self, hashes: tuple[BlockHash, ...], hash_block_size: int, most_blocks: int
    ) -> tuple[Tables, int] | None:
        """Hold the longest settled prefix; its tables and tokens, or None: nothing, or no room."""
        config = self._manager.config
        if not config.enable_caching or hash_block_size != config.hash_block_size:
            return None
        num_tokens = len(hashes) * hash_block_size
        tables, num_tokens, _ = self._manager.coordinator.find_longest_cache_hit(hashes, num_tokens)
        blocks = [block for table in tables for block in table if block.block_id]
        settled = all(may_serve(self._manager.is_settled(block.block_id)) for block in blocks)
        if not num_tokens or not settled:
            return None
        taken = sum(not block.ref_cnt for block in blocks)
        if not may_lend(taken, self._spare(), most_blocks) or len(blocks) > most_blocks:
            return None
        self._manager.hold_blocks([block.block_id for block in blocks], HoldKind.LEASE)
        return tuple(tuple(block.block_id for block in table) for table in tables), num_tokens

    def _spare(self) -> int:
        """Free blocks that neither admitted sequences nor the watermark need."""
        free = self._manager.block_pool.get_num_free_blocks()
        return free - self._manager.config.watermark_blocks - self._scheduler.reserved_blocks
