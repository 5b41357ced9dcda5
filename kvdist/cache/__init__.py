"""The block manager: which tokens' K/V lie in which blocks, who holds them, who can find them.

A pure library (standard library only; `xxhash` where a user picks that hash): no I/O, no clock, no
threads, no tensors. `KVCacheManager` is the one object a scheduler needs; the rest is for settings,
for results, and for those who build on the pool itself. The rules (S1 ...) and the invariants (I1
...) are in docs/semantics.md.

Owns:   the public names of this package.
Knows nothing of: transfers, scheduling, devices.
"""

from kvdist.cache.block import KVCacheBlock
from kvdist.cache.block_hash import BlockHasher
from kvdist.cache.block_pool import BlockPool
from kvdist.cache.events import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent
from kvdist.cache.extra_keys import ExtraKeys, LoRAKey, MultiModalItem, PromptEmbeds
from kvdist.cache.free_queue import FreeKVCacheBlockQueue
from kvdist.cache.grouping import KVCacheLayout, plan_groups
from kvdist.cache.holds import HoldKind, Ledger
from kvdist.cache.manager import KVCacheManager
from kvdist.cache.request import Request
from kvdist.cache.results import BlockCopy, CacheHit, KVCacheBlocks
from kvdist.cache.spec import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from kvdist.cache.stats import PrefixCacheStats

__all__ = [
    "AllBlocksCleared",
    "BlockCopy",
    "BlockHasher",
    "BlockPool",
    "BlockRemoved",
    "BlockStored",
    "CacheEvent",
    "CacheHit",
    "ChunkedLocalAttentionSpec",
    "CrossAttentionSpec",
    "ExtraKeys",
    "FreeKVCacheBlockQueue",
    "FullAttentionSpec",
    "HoldKind",
    "KVCacheBlock",
    "KVCacheBlocks",
    "KVCacheConfig",
    "KVCacheGroupSpec",
    "KVCacheLayout",
    "KVCacheManager",
    "KVCacheSpec",
    "Ledger",
    "LoRAKey",
    "MambaSpec",
    "MultiModalItem",
    "PrefixCacheStats",
    "PromptEmbeds",
    "Request",
    "SlidingWindowSpec",
    "plan_groups",
]
