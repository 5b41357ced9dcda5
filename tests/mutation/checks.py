"""Single checks for mutants that random tests would need too long for."""

from kvdist.cache import BlockHasher, ExtraKeys, LoRAKey, Request


def test_parts_of_a_key_keep_their_bounds() -> None:
    hasher = BlockHasher(2)
    hashes = [
        Request("r", [1, 2], hasher, extra_keys=ExtraKeys(lora=LoRAKey(*parts))).block_hashes
        for parts in (("ab", "c"), ("a", "bc"))
    ]
    assert hashes[0] != hashes[1]
