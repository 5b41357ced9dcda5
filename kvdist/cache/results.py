"""What the manager hands out: blocks of all groups, a lookup's hit, a block copy.

Owns:   nothing; all are frozen values.
Knows nothing of: how they came about.
Source: the document's `KVCacheBlocks`.
"""

from typing import NamedTuple

from kvdist.cache.block_pool import BlockPool
from kvdist.cache.coordinator import PerGroup
from kvdist.cache.request import Request
from kvdist.ids import BlockId, GroupId


class KVCacheBlocks(NamedTuple):
    """Blocks as `[group][block]`, also with one group (S2)."""

    blocks: PerGroup

    def get_block_ids(self) -> tuple[list[BlockId], ...]:
        """Their ids, nested the same way; 0 is the null block."""
        return tuple([block.block_id for block in group] for group in self.blocks)


class CacheHit(NamedTuple):
    """Result of one lookup, for the next allocation of the same request."""

    request: Request
    pool: BlockPool
    blocks: KVCacheBlocks
    #: Tokens that need not be computed, over all groups.
    num_tokens: int
    #: 0, or how far a group had the prefix when that is further: a shared prefix that sparse groups
    #: haven't kept. It is kept from now on (see `KVCacheConfig.retention_interval`).
    junction: int
    #: The pool's epoch at the lookup.
    epoch: int


class BlockCopy(NamedTuple):
    """A copy that has to run before the next step; both blocks are pinned until it is released."""

    source: BlockId
    target: BlockId
    group_id: GroupId
