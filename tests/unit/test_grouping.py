"""From a model's layers to groups with equal pages over shared buffers (S28)."""

from typing import Any

import pytest

from kvdist.cache import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheManager,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
    plan_groups,
)
from kvdist.errors import ConfigError


def full(page: int = 4096, block_size: int = 16) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block_size, page_size_bytes=page)


def window(page: int = 4096, sliding_window: int = 1024) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=16, page_size_bytes=page, sliding_window=sliding_window)


def state(page: int) -> MambaSpec:
    return MambaSpec(block_size=16, page_size_bytes=page)


def layers(**kinds: tuple[KVCacheSpec, int]) -> dict[str, KVCacheSpec]:
    return {f"{name}.{i}": spec for name, (spec, count) in kinds.items() for i in range(count)}


def test_s28_the_document_s_model() -> None:
    layout = plan_groups(layers(full=(full(), 10), window=(window(), 20)))
    groups = layout.kv_cache_groups
    assert [len(group.layer_names) for group in groups] == [10, 10, 10]
    assert [type(group.kv_cache_spec) for group in groups] == [
        FullAttentionSpec,
        SlidingWindowSpec,
        SlidingWindowSpec,
    ]
    assert len(layout.buffers) == 10
    assert all(len(buffer) == 3 for buffer in layout.buffers)
    assert (layout.padding_bytes, layout.unused_bytes) == (0, 0)
    assert layout.bytes_per_block == 10 * 4096


def test_every_layer_is_in_one_group_and_one_buffer() -> None:
    model = layers(full=(full(), 7), window=(window(), 16), other=(window(4096, 512), 3))
    layout = plan_groups(model)
    in_groups = [name for group in layout.kv_cache_groups for name in group.layer_names]
    in_buffers = [name for buffer in layout.buffers for name in buffer]
    assert sorted(in_groups) == sorted(in_buffers) == sorted(model)
    for group in layout.kv_cache_groups:
        assert {model[name] for name in group.layer_names} == {group.kv_cache_spec}


def test_no_buffer_has_two_layers_of_one_group() -> None:
    layout = plan_groups(layers(full=(full(), 5), window=(window(), 13)))
    group_of = {
        name: i for i, group in enumerate(layout.kv_cache_groups) for name in group.layer_names
    }
    for buffer in layout.buffers:
        groups = [group_of[name] for name in buffer]
        assert len(set(groups)) == len(groups)


def test_a_model_of_one_kind_is_one_group() -> None:
    layout = plan_groups(layers(full=(full(), 32)))
    assert [len(group.layer_names) for group in layout.kv_cache_groups] == [32]
    assert len(layout.buffers) == 32
    assert all(len(buffer) == 1 for buffer in layout.buffers)


def test_groups_of_unlike_size_show_what_they_leave_unused() -> None:
    layout = plan_groups(layers(full=(full(), 4), window=(window(), 5)))
    used = sum(len(group.layer_names) for group in layout.kv_cache_groups)
    pages = len(layout.buffers) * len(layout.kv_cache_groups)
    assert used == 9
    assert layout.unused_bytes == (pages - 9) * 4096


def test_smaller_pages_get_longer_blocks() -> None:
    layout = plan_groups(layers(full=(full(8192), 2), window=(window(4096), 2)))
    sizes = {
        type(group.kv_cache_spec): (
            group.kv_cache_spec.block_size,
            group.kv_cache_spec.page_size_bytes,
        )
        for group in layout.kv_cache_groups
    }
    assert sizes == {FullAttentionSpec: (16, 8192), SlidingWindowSpec: (32, 8192)}
    assert layout.padding_bytes == 0


def test_states_are_padded_to_the_common_page() -> None:
    layout = plan_groups(layers(full=(full(4096), 2), state=(state(6000), 2)))
    assert layout.page_size_bytes == 8192
    assert layout.padding_bytes == 2 * (8192 - 6000)
    assert {group.kv_cache_spec.page_size_bytes for group in layout.kv_cache_groups} == {8192}
    assert {group.kv_cache_spec.block_size for group in layout.kv_cache_groups} == {16, 32}


def test_states_alone_have_the_largest_page() -> None:
    layout = plan_groups(layers(small=(state(100), 1), large=(state(300), 1)))
    assert layout.page_size_bytes == 300
    assert layout.padding_bytes == 200


def test_layers_of_a_draft_model_are_a_group_of_their_own() -> None:
    model = layers(full=(full(), 4))
    layout = plan_groups(model, eagle_layers=["full.3"])
    marked = [group for group in layout.kv_cache_groups if group.is_eagle_group]
    assert [group.layer_names for group in marked] == [("full.3",)]
    assert sum(len(group.layer_names) for group in layout.kv_cache_groups) == 4


@pytest.mark.parametrize(
    ("available", "blocks"), [(2 * 4096 * 2, 2), (2 * 4096 * 3 - 1, 2), (2 * 4096 * 100, 100)]
)
def test_how_many_blocks_fit(available: int, blocks: int) -> None:
    assert plan_groups(layers(full=(full(), 2))).num_blocks(available) == blocks


@pytest.mark.parametrize("available", [0, 4096, 2 * 4096 * 2 - 1])
def test_fewer_than_two_blocks_are_none(available: int) -> None:
    with pytest.raises(ConfigError, match="at least the null block and one more"):
        plan_groups(layers(full=(full(), 2))).num_blocks(available)


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="no layers"):
        plan_groups({})


def test_a_missing_page_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a page size"):
        plan_groups(layers(full=(full(), 1), window=(window(0), 1)))


def test_pages_that_do_not_divide_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="don't divide each other"):
        plan_groups(layers(full=(full(4096), 1), window=(window(3000), 1)))


@pytest.mark.parametrize(
    "kinds",
    [
        {"full": (full(), 10), "window": (window(), 20)},
        {"full": (full(8192), 3), "window": (window(4096), 3)},
        {"full": (full(4096), 3), "state": (state(9000), 6)},
    ],
    ids=["document", "pages", "states"],
)
def test_a_plan_makes_a_manager(kinds: dict[str, Any]) -> None:
    layout = plan_groups(layers(**kinds))
    config = KVCacheConfig(
        num_blocks=layout.num_blocks(100 * layout.bytes_per_block),
        kv_cache_groups=layout.kv_cache_groups,
    )
    manager = KVCacheManager(config)
    assert manager.block_pool.num_blocks == 100
    assert len(manager.get_block_ids("nobody")) == len(layout.kv_cache_groups)
