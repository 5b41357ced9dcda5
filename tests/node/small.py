"""A small pool, and a stub that speaks printable ASCII; light, since worker processes import it."""

from kvdist.cache import FullAttentionSpec, KVCacheConfig
from kvdist.sim.stub_runner import StubRunner

CONFIG = KVCacheConfig.single(FullAttentionSpec(block_size=4), num_blocks=401, max_model_len=256)
PRINTABLE = 95


def stub(config: KVCacheConfig = CONFIG) -> StubRunner:
    return StubRunner(config, PRINTABLE)
