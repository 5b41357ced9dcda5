"""Each kind of layer by itself (S4): every block as the naive manager predicts it."""

from typing import Any

from hypothesis import strategies as st

from kvdist.cache import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from tests.property.effort import effort
from tests.property.machine import ManagerMachine

LONGEST = 40


def one(specs: st.SearchStrategy[KVCacheSpec], **more: Any) -> st.SearchStrategy[KVCacheConfig]:
    """Small pools, so that everything is always wanted by others."""
    return st.builds(
        KVCacheConfig.single,
        specs,
        num_blocks=st.integers(4, 26),
        max_model_len=st.just(LONGEST),
        max_in_flight_tokens=st.sampled_from([0, 8]),
        watermark=st.sampled_from([0.0, 0.2]),
        enable_events=st.booleans(),
        **more,
    )


sizes = st.sampled_from([1, 2, 4])
with_and_without = st.sampled_from([True, True, True, False])


class Full(ManagerMachine):
    configs = one(
        st.builds(FullAttentionSpec, block_size=sizes),
        enable_caching=with_and_without,
        use_eagle=st.booleans(),
    )


class Sliding(ManagerMachine):
    configs = one(
        st.builds(SlidingWindowSpec, block_size=sizes, sliding_window=st.integers(2, 12)),
        enable_caching=with_and_without,
        use_eagle=st.booleans(),
    )


class Chunked(ManagerMachine):
    configs = one(
        st.builds(
            ChunkedLocalAttentionSpec,
            block_size=sizes,
            attention_chunk_size=st.sampled_from([4, 5, 6, 8, 12]),
        ),
        enable_caching=with_and_without,
    )


class MambaAlign(ManagerMachine):
    configs = one(
        st.builds(MambaSpec, block_size=sizes, num_speculative_blocks=st.integers(0, 2)),
        retention_interval=st.sampled_from([None, 0, 8]),
    )


class MambaNone(ManagerMachine):
    configs = one(
        st.builds(
            MambaSpec,
            block_size=st.just(LONGEST),
            mamba_cache_mode=st.just("none"),
            num_speculative_blocks=st.integers(0, 2),
        ),
        enable_caching=st.just(False),
    )


class Cross(ManagerMachine):
    configs = one(st.builds(CrossAttentionSpec, block_size=sizes), enable_caching=st.just(False))


TestFull = Full.TestCase
TestFull.settings = effort(examples=200, steps=50)
TestSliding = Sliding.TestCase
TestSliding.settings = effort(examples=60, steps=50)
TestChunked = Chunked.TestCase
TestChunked.settings = effort(examples=60, steps=50)
TestMambaAlign = MambaAlign.TestCase
TestMambaAlign.settings = effort(examples=60, steps=50)
TestMambaNone = MambaNone.TestCase
TestMambaNone.settings = effort(examples=20, steps=40)
TestCross = Cross.TestCase
TestCross.settings = effort(examples=20, steps=40)
