"""Single checks for mutants that random tests would need too long for."""

from kvdist.cache import BlockHasher, BlockPool, ExtraKeys, LoRAKey, Request
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
