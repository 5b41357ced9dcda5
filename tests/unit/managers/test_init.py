"""The choice of a manager for a spec (S4)."""

import pytest

from kvdist.cache import KVCacheManager, KVCacheSpec
from kvdist.cache.managers import MANAGERS, make_manager
from kvdist.errors import ConfigError
from kvdist.ids import GroupId
from tests.make import chunked, cross, full, make_config, make_pool, mamba, window


@pytest.mark.parametrize("spec", [full(), window(8), chunked(8), mamba(), cross()])
def test_every_kind_has_its_manager(spec: KVCacheSpec) -> None:
    config = make_config(full(), spec, enable_caching=False)
    manager = make_manager(config, GroupId(1), make_pool(num_groups=2))
    assert type(manager) is MANAGERS[type(spec)]
    assert (manager.group_id, manager.block_size) == (1, 4)


def test_no_two_kinds_share_one() -> None:
    assert len(set(MANAGERS.values())) == len(MANAGERS) == 5


def test_a_kind_without_a_manager_is_refused() -> None:
    with pytest.raises(ConfigError, match="no manager for KVCacheSpec"):
        KVCacheManager(make_config(KVCacheSpec(block_size=4)))
