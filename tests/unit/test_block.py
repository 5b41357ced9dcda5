"""One block's metadata (S5)."""

from kvdist.cache.block import NULL_REF_CNT
from tests.make import GROUP, key_of, make_blocks, make_pool


def test_a_new_block_holds_nothing() -> None:
    (block,) = make_blocks(1)
    assert (block.ref_cnt, block.block_hash, block.generation, block.step) == (0, None, 0, 0)


def test_a_block_equals_only_itself() -> None:
    first, second = make_blocks(1) + make_blocks(1)
    assert first == first
    assert first != second
    assert len({first, second}) == 2


def test_no_field_can_be_added() -> None:
    assert not hasattr(make_blocks(1)[0], "__dict__")


def test_its_text_names_it_and_its_key() -> None:
    (block,) = make_blocks(1)
    assert "KVCacheBlock(0, ref_cnt=0, block_hash=None" in repr(block)
    block.block_hash = key_of(0xAB << 248)
    assert "block_hash=ab000000" in repr(block)


def test_s5_ids_are_places_and_block_0_is_the_null_block() -> None:
    pool = make_pool(5)
    assert [block.block_id for block in pool.blocks] == [0, 1, 2, 3, 4]
    assert pool.null_block is pool.blocks[0]
    assert pool.null_block.ref_cnt == NULL_REF_CNT
    assert pool.null_block not in pool.free_block_queue
    taken = pool.get_new_blocks(4, GROUP)
    assert pool.null_block not in taken
