"""One manager for each kind of layer: from tokens to that kind's blocks (S4).

Owns:   the choice of the manager for a spec.
Knows nothing of: coordination between groups.
"""

from kvdist.cache.block_pool import BlockPool
from kvdist.cache.managers.base import SingleTypeKVCacheManager
from kvdist.cache.managers.chunked_local import ChunkedLocalAttentionManager
from kvdist.cache.managers.cross_attention import CrossAttentionManager
from kvdist.cache.managers.full_attention import FullAttentionManager
from kvdist.cache.managers.mamba import MambaManager
from kvdist.cache.managers.sliding_window import SlidingWindowManager
from kvdist.cache.spec import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from kvdist.errors import ConfigError
from kvdist.ids import GroupId

#: A new kind is one new file and one line here.
MANAGERS: dict[type[KVCacheSpec], type[SingleTypeKVCacheManager]] = {
    FullAttentionSpec: FullAttentionManager,
    SlidingWindowSpec: SlidingWindowManager,
    ChunkedLocalAttentionSpec: ChunkedLocalAttentionManager,
    MambaSpec: MambaManager,
    CrossAttentionSpec: CrossAttentionManager,
}


def make_manager(
    config: KVCacheConfig, group_id: GroupId, pool: BlockPool
) -> SingleTypeKVCacheManager:
    """The manager of one group. Raises: ConfigError for a kind without one."""
    kind = type(config.kv_cache_groups[group_id].kv_cache_spec)
    if kind not in MANAGERS:
        raise ConfigError(f"no manager for {kind.__name__}")
    return MANAGERS[kind](config, group_id, pool)


__all__ = ["MANAGERS", "SingleTypeKVCacheManager", "make_manager"]
