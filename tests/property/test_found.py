"""What the state machines have found, as small as it gets."""

import contextlib

from kvdist.cache import (
    BlockHasher,
    ChunkedLocalAttentionSpec,
    KVCacheConfig,
    KVCacheManager,
    MambaSpec,
    Request,
)
from kvdist.errors import ConfigError


def test_a_chunk_that_is_no_multiple_of_the_block() -> None:
    spec = ChunkedLocalAttentionSpec(block_size=4, attention_chunk_size=6)
    with contextlib.suppress(ConfigError):
        manager = KVCacheManager(KVCacheConfig.single(spec, num_blocks=20))
        request = Request("r", range(9), BlockHasher(4))
        assert manager.get_computed_blocks(request).num_tokens == 0


def test_external_tokens_in_front_of_a_state() -> None:
    """One block for the state that is loaded, one for the state that is computed."""
    manager = KVCacheManager(KVCacheConfig.single(MambaSpec(block_size=4), num_blocks=2))
    request = Request("r", range(12), BlockHasher(4))
    hit = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, 4, hit, num_external_computed_tokens=4) is None
    assert manager.ledger().free == 1
