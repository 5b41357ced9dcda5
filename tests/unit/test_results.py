"""What the manager hands out is nested `[group][block]` always (S2)."""

import pytest

from kvdist.cache import BlockCopy, CacheHit, KVCacheBlocks
from kvdist.ids import BlockId
from tests.make import GROUP, Node, full, make_blocks, window


def test_ids_are_nested_as_the_blocks_are() -> None:
    first, second, third = make_blocks(3)
    blocks = KVCacheBlocks(((first, third), (), (second,)))
    assert blocks.get_block_ids() == ([0, 2], [], [1])


def test_s2_also_with_one_group() -> None:
    node = Node()
    request = node.request("a", "ABCDE")
    hit = node.manager.get_computed_blocks(request)
    assert hit.blocks.get_block_ids() == ([],)
    new = node.manager.allocate_slots(request, 5, hit)
    assert new is not None
    assert new.get_block_ids() == ([1, 2],)
    assert node.manager.get_block_ids("a") == ([1, 2],)
    assert node.manager.get_block_ids("nobody") == ([],)


def test_s2_every_group_is_there_even_if_it_has_no_blocks() -> None:
    node = Node(full(), window(8))
    assert node.manager.get_block_ids("nobody") == ([], [])
    request = node.start("a", "ABCDE")
    new = node.compute(request, 1)
    assert new is not None
    assert new.get_block_ids() == ([], [])


def test_tables_that_are_handed_out_are_copies() -> None:
    node = Node()
    node.start("a", "ABCDE")
    node.manager.get_block_ids("a")[0].clear()
    assert node.manager.get_block_ids("a") == ([1, 2],)


def test_results_are_frozen() -> None:
    node = Node()
    request = node.request("a", "ABCDE")
    hit = node.manager.get_computed_blocks(request)
    with pytest.raises(AttributeError):
        hit.num_tokens = 4  # type: ignore[misc]
    assert isinstance(hit, CacheHit)
    assert (hit.request, hit.num_tokens, hit.junction) == (request, 0, 0)


def test_a_copy_names_ids_and_group() -> None:
    copy = BlockCopy(source=BlockId(3), target=BlockId(4), group_id=GROUP)
    assert tuple(copy) == (3, 4, 0)
