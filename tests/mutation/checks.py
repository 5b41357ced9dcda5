"""Single checks for mutants that random tests would need too long for."""

from kvdist.cache import (
    BlockHasher,
    BlockPool,
    ExtraKeys,
    FullAttentionSpec,
    HoldKind,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    LoRAKey,
    MambaSpec,
    Request,
)
from kvdist.ids import GroupId


def test_parts_of_a_key_keep_their_bounds() -> None:
    hasher = BlockHasher(2)
    hashes = [
        Request("r", [1, 2], hasher, extra_keys=ExtraKeys(lora=LoRAKey(*parts))).block_hashes
        for parts in (("ab", "c"), ("a", "bc"))
    ]
    assert hashes[0] != hashes[1]


def test_the_oldest_copy_is_found_and_then_the_next() -> None:
    group, pool = GroupId(0), BlockPool(5, 1, 2)
    request = Request("r", [1, 2], BlockHasher(2))
    copies = pool.get_new_blocks(4, group)
    for copy in copies:
        pool.cache_full_blocks(request, [copy], 0, 2, group)
    index = pool.cached_block_hash_to_block[group]
    for copy in copies:
        assert index.get_longest_prefix(request.block_hashes) == [copy]
        pool.evict_blocks([copy.block_id])


def test_what_is_expected_is_not_published() -> None:
    """Other tokens of the request are computed while the load runs."""
    manager = KVCacheManager(KVCacheConfig.single(FullAttentionSpec(block_size=2), num_blocks=9))
    request = Request("r", [1] * 8, BlockHasher(2))
    hit = manager.get_computed_blocks(request)
    assert manager.allocate_slots(
        request, 0, hit, num_external_computed_tokens=4, delay_cache_blocks=True
    )
    request.num_computed_tokens = 4
    assert manager.allocate_slots(request, 4)
    assert not list(manager.block_pool.cached_blocks())
    manager.cache_blocks(request, 4)
    assert len(list(manager.block_pool.cached_blocks())) == 2


def test_a_hit_inside_a_block_needs_a_copy_for_each_group() -> None:
    """Three idle hits and two copies: with four free blocks it doesn't fit, with five it does."""
    specs = (FullAttentionSpec(block_size=4), MambaSpec(block_size=4))
    manager = KVCacheManager(
        KVCacheConfig(
            num_blocks=12,
            kv_cache_groups=tuple(map(KVCacheGroupSpec, specs)),
            hash_block_size=2,
            enable_partial_hits=True,
        )
    )
    hasher = BlockHasher(2)
    first, second = (Request(name, [1] * 7, hasher) for name in "ab")
    for num_new in (4, 2):
        hit = None if first.num_computed_tokens else manager.get_computed_blocks(first)
        assert manager.allocate_slots(first, num_new, hit) is not None
        first.num_computed_tokens += num_new
    manager.free(first)
    manager.new_step_starts()
    hit = manager.get_computed_blocks(second)
    assert hit.num_tokens == 6
    queue = [block for block in manager.block_pool.free_block_queue if block.block_hash is None]
    spare = [block.block_id for block in queue][: manager.ledger().free - 4]
    manager.hold_blocks(spare, HoldKind.LEASE)
    assert manager.allocate_slots(second, 1, hit) is None
    manager.end_hold(spare[:1], HoldKind.LEASE)
    assert manager.allocate_slots(second, 1, hit) is not None
