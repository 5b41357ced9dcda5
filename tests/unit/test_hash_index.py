"""From a key to the blocks that hold its content: the oldest answers, then the next (S6, S22)."""

from kvdist.cache.hash_index import BlockHashToBlockMap
from tests.make import key_of, make_blocks

A, B, C = key_of(1), key_of(2), key_of(3)


def test_a_lookup_returns_the_oldest() -> None:
    first, second, third = make_blocks(3)
    index = BlockHashToBlockMap()
    assert index.insert(A, first)
    assert not index.insert(A, second)
    assert not index.insert(A, third)
    assert index.get_each([A, B]) == [first, None]
    assert len(index) == 1
    assert list(index) == [(A, first), (A, second), (A, third)]


def test_when_the_oldest_goes_the_next_answers() -> None:
    first, second, third = make_blocks(3)
    index = BlockHashToBlockMap()
    index.insert_n([A, A, A], [first, second, third])
    assert not index.pop(A, first)
    assert index.get_each([A]) == [second]
    assert not index.pop(A, second)
    assert index.get_each([A]) == [third]
    assert index.pop(A, third)
    assert index.get_each([A]) == [None]
    assert list(index) == []


def test_a_copy_in_the_middle_goes() -> None:
    first, second, third = make_blocks(3)
    index = BlockHashToBlockMap()
    index.insert_n([A, A, A], [first, second, third])
    assert not index.pop(A, second)
    assert not index.contains(A, second)
    assert not index.pop(A, first)
    assert index.get_each([A]) == [third]
    assert index.pop(A, third)


def test_a_key_that_comes_back_begins_anew() -> None:
    first, second = make_blocks(2)
    index = BlockHashToBlockMap()
    index.insert(A, first)
    assert index.pop(A, first)
    assert index.insert(A, second)
    assert not index.insert(A, first)
    assert index.get_each([A]) == [second]


def test_one_block_may_have_several_keys() -> None:
    (block,) = make_blocks(1)
    index = BlockHashToBlockMap()
    assert index.insert(A, block)
    assert index.insert(B, block)
    assert index.pop(A, block)
    assert index.contains(B, block)
    assert not index.contains(A, block)


def test_the_longest_prefix_ends_at_the_first_miss() -> None:
    blocks = make_blocks(3)
    index = BlockHashToBlockMap()
    index.insert_n([A, C], [blocks[0], blocks[2]])
    assert index.get_longest_prefix([A, B, C]) == [blocks[0]]
    assert index.get_longest_prefix([B, A]) == []
    assert index.get_longest_prefix([A, C]) == [blocks[0], blocks[2]]
    assert index.get_longest_prefix([]) == []


def test_many_entries_at_once_are_the_same_as_one_by_one() -> None:
    blocks = make_blocks(5)
    keys = [A, B, A, C, A]
    at_once, one_by_one = BlockHashToBlockMap(), BlockHashToBlockMap()
    at_once.insert_n(keys, blocks)
    for key, block in zip(keys, blocks, strict=True):
        one_by_one.insert(key, block)
    assert list(at_once) == list(one_by_one)
    assert len(at_once) == 3


def test_clear() -> None:
    blocks = make_blocks(2)
    index = BlockHashToBlockMap()
    index.insert_n([A, A], blocks)
    index.clear()
    assert len(index) == 0
    assert list(index) == []
    assert index.insert(A, blocks[1])
