"""Several groups over one pool (S3, S14, S29): every block as the naive manager predicts it."""

from math import lcm
from typing import Any

from hypothesis import strategies as st

from kvdist.cache import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from tests.property.effort import effort
from tests.property.machine import ManagerMachine

LONGEST = 40


def full(block_size: int = 4) -> KVCacheSpec:
    return FullAttentionSpec(block_size=block_size)


def window(sliding_window: int, block_size: int = 4) -> KVCacheSpec:
    return SlidingWindowSpec(block_size=block_size, sliding_window=sliding_window)


def chunked(chunk: int, block_size: int = 4) -> KVCacheSpec:
    return ChunkedLocalAttentionSpec(block_size=block_size, attention_chunk_size=chunk)


def state(block_size: int = 4, scratch: int = 0) -> KVCacheSpec:
    return MambaSpec(block_size=block_size, num_speculative_blocks=scratch)


@st.composite
def several(
    draw: st.DrawFn,
    /,
    groups: list[list[KVCacheSpec]],
    *,
    eagle: bool = False,
    retention: bool = False,
    most_blocks: int = 40,
    **settings: Any,
) -> KVCacheConfig:
    """One of `groups`; with `eagle` a draft model, with `retention` sparse publishing."""
    specs = draw(st.sampled_from(groups))
    use_eagle = eagle and draw(st.booleans())
    marked = draw(st.sampled_from([None, *specs])) if use_eagle else None
    unit = lcm(*(spec.block_size for spec in specs))
    sparse = retention and draw(st.booleans())
    return KVCacheConfig(
        num_blocks=draw(st.integers(5, most_blocks)),
        kv_cache_groups=tuple(
            KVCacheGroupSpec(spec, is_eagle_group=spec is marked) for spec in specs
        ),
        max_model_len=LONGEST,
        max_in_flight_tokens=draw(st.sampled_from([0, 8])),
        watermark=draw(st.sampled_from([0.0, 0.1])),
        enable_events=draw(st.booleans()),
        use_eagle=use_eagle,
        retention_interval=draw(st.integers(0, 3)) * unit if sparse else None,
        **settings,
    )


class FullAndSliding(ManagerMachine):
    configs = several(
        [
            [full(), window(8)],
            [window(5), full()],
            [full(), window(9), window(9)],
            [full(2), window(4, 2), window(7, 2)],
            [full(), full()],
            [window(6), window(11)],
        ],
        eagle=True,
        retention=True,
    )


class FullAndChunked(ManagerMachine):
    configs = several(
        [
            [full(), chunked(8)],
            [full(2), chunked(8, 2), chunked(4, 2)],
            [chunked(16), chunked(8)],
            [full(), chunked(6)],
        ]
    )


class FullAndMamba(ManagerMachine):
    configs = several(
        [
            [full(), state()],
            [full(), state(4, 2), state(4, 2)],
            [state(2, 1), full(2), window(5, 2)],
        ],
        eagle=True,
        retention=True,
    )


class BlockSizes(ManagerMachine):
    configs = several(
        [
            [full(8), window(10, 4)],
            [full(4), window(12, 8)],
            [full(8), window(12, 4), window(5, 2)],
            [full(4), full(2)],
            [full(2), state(4, 1)],
        ],
        eagle=True,
        retention=True,
    )


class WithoutCaching(ManagerMachine):
    configs = several(
        [
            [full(), CrossAttentionSpec(block_size=4)],
            [CrossAttentionSpec(block_size=8), full(), window(6)],
            [full(), MambaSpec(block_size=LONGEST, mamba_cache_mode="none")],
            [full(8), window(5, 2), chunked(8)],
        ],
        enable_caching=False,
    )


TestFullAndSliding = FullAndSliding.TestCase
TestFullAndSliding.settings = effort(examples=150, steps=60)
TestFullAndChunked = FullAndChunked.TestCase
TestFullAndChunked.settings = effort(examples=80, steps=60)
TestFullAndMamba = FullAndMamba.TestCase
TestFullAndMamba.settings = effort(examples=150, steps=60)
TestBlockSizes = BlockSizes.TestCase
TestBlockSizes.settings = effort(examples=150, steps=60)
TestWithoutCaching = WithoutCaching.TestCase
TestWithoutCaching.settings = effort(examples=30, steps=60)
