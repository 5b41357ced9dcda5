"""Settings are checked when they are made, and say what is wrong (S4, S28)."""

from typing import Any

import pytest

from kvdist.cache import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheSpec, MambaSpec
from kvdist.cache.numbers import MAX_TOKENS
from kvdist.cache.spec import MAX_BLOCKS
from kvdist.errors import ConfigError
from tests.make import chunked, cross, full, make_config, mamba, window


def test_values_by_default() -> None:
    config = make_config(full(16), window(8, 32), max_model_len=100)
    assert config.enable_caching
    assert config.hash_block_size == 16  # the smallest block
    assert config.scheduler_block_size == 32
    assert config.max_in_flight_tokens == 100
    assert config.eagle_group_ids == frozenset()
    assert config.watermark_blocks == 0
    assert config.retention_interval is None
    assert not config.enable_partial_hits
    assert not config.enable_events


def test_single_is_the_short_form_of_one_group() -> None:
    assert KVCacheConfig.single(full(), num_blocks=11, watermark=0.5) == KVCacheConfig(
        num_blocks=11, kv_cache_groups=(KVCacheGroupSpec(full()),), watermark=0.5
    )


def test_equal_specs_are_equal() -> None:
    assert full() == full()
    assert window(8) != window(9)
    assert len({full(), full(), window(8), chunked(8), mamba()}) == 4


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        make_config().num_blocks = 3  # type: ignore[misc]
    with pytest.raises(AttributeError):
        full().block_size = 3  # type: ignore[misc]


@pytest.mark.parametrize("value", [0, -1, MAX_TOKENS + 1, 1 << 80])
@pytest.mark.parametrize("kind", [full, cross, mamba])
def test_a_block_has_at_least_one_token(kind: Any, value: int) -> None:
    with pytest.raises(ConfigError, match="block_size is"):
        kind(value)


@pytest.mark.parametrize("value", [0, -1, MAX_TOKENS + 1])
def test_windows_and_chunks_have_at_least_one_token(value: int) -> None:
    with pytest.raises(ConfigError, match="sliding_window is"):
        window(value)
    with pytest.raises(ConfigError, match="attention_chunk_size is"):
        chunked(value)


@pytest.mark.parametrize("value", [-1, 1 << 63])
def test_pages_have_a_size(value: int) -> None:
    with pytest.raises(ConfigError, match="page_size_bytes is"):
        FullAttentionSpec(block_size=4, page_size_bytes=value)


@pytest.mark.parametrize("value", [-1, 1 << 17])
def test_scratch_states_are_few(value: int) -> None:
    with pytest.raises(ConfigError, match="num_speculative_blocks is"):
        mamba(scratch=value)


def test_an_unknown_mode_of_states_is_refused() -> None:
    with pytest.raises(ConfigError, match="mamba_cache_mode 'all'"):
        MambaSpec(block_size=4, mamba_cache_mode="all")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_blocks": 1}, "num_blocks is 1"),
        ({"num_blocks": 0}, "num_blocks is 0"),
        ({"num_blocks": -5}, "num_blocks is -5"),
        ({"num_blocks": MAX_BLOCKS + 1}, "num_blocks is"),
        ({"max_model_len": 0}, "max_model_len is 0"),
        ({"max_model_len": -1}, "max_model_len is -1"),
        ({"max_model_len": MAX_TOKENS + 1}, "max_model_len is"),
        ({"max_in_flight_tokens": -1}, "max_in_flight_tokens is -1"),
        ({"hash_block_size": -4}, "hash_block_size is -4"),
        ({"watermark": -0.1}, "watermark is -0.1"),
        ({"watermark": 1.0}, "watermark is 1.0"),
        ({"watermark": float("nan")}, "watermark is nan"),
        ({"hash_block_size": 3}, "hash block size 3 must divide"),
        ({"hash_block_size": 8}, "hash block size 8 must divide"),
        ({"retention_interval": -4}, "retention_interval is -4"),
        ({"retention_interval": 6}, "retention interval 6 is no multiple of 4"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_blocks": 2},
        {"max_model_len": 1},
        {"hash_block_size": 1},
        {"hash_block_size": 2},
        {"hash_block_size": 4},
        {"watermark": 0.999},
        {"retention_interval": 0},
        {"retention_interval": 8},
        {"retention_interval": None},
    ],
)
def test_settings_at_the_edges_are_allowed(settings: dict[str, Any]) -> None:
    make_config(**settings)


def test_there_has_to_be_a_group() -> None:
    with pytest.raises(ConfigError, match=r"1 \.\. 1024 groups"):
        KVCacheConfig(num_blocks=4, kv_cache_groups=())


def test_cross_attention_goes_without_prefix_caching_only() -> None:
    with pytest.raises(ConfigError, match="cross attention is never shared"):
        make_config(full(), cross())
    make_config(full(), cross(), enable_caching=False)


def test_states_without_boundaries_go_without_prefix_caching_only() -> None:
    with pytest.raises(ConfigError, match="mamba_cache_mode align"):
        make_config(full(), mamba(mode="none"))
    make_config(full(), mamba(64, mode="none"), enable_caching=False)


def test_chunks_need_equal_block_sizes() -> None:
    with pytest.raises(ConfigError, match="equal block sizes"):
        make_config(full(8), chunked(8, 4))
    make_config(full(4), chunked(8, 4))


@pytest.mark.parametrize("settings", [{"use_eagle": True}, {"eagle": [0]}])
def test_chunks_do_not_go_with_a_draft_model(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="does not go with a draft model"):
        make_config(full(), chunked(8), **settings)


def test_the_hash_block_size_matters_only_with_caching() -> None:
    make_config(full(4), window(8, 6), hash_block_size=5, enable_caching=False)
    with pytest.raises(ConfigError, match="must divide"):
        make_config(full(4), window(8, 6))
    assert make_config(full(4), window(8, 6), hash_block_size=2).scheduler_block_size == 12


def test_a_draft_model_belongs_to_the_marked_groups_or_to_all() -> None:
    assert make_config(full(), window(8), use_eagle=True).eagle_group_ids == {0, 1}
    assert make_config(full(), window(8), use_eagle=True, eagle=[1]).eagle_group_ids == {1}
    assert make_config(full(), window(8), eagle=[0]).eagle_group_ids == {0}


@pytest.mark.parametrize(("watermark", "blocks"), [(0.0, 0), (0.09, 0), (0.1, 1), (0.5, 5)])
def test_the_watermark_is_a_share_of_the_pool_rounded_down(watermark: float, blocks: int) -> None:
    assert make_config(watermark=watermark).watermark_blocks == blocks


def test_any_spec_may_stand_in_a_group() -> None:
    specs: list[KVCacheSpec] = [full(), window(8), mamba()]
    assert [group.kv_cache_spec for group in make_config(*specs).kv_cache_groups] == specs
