"""The order in which free blocks are reused (S19, S20, ADR-0004)."""

import pytest

from kvdist.cache import FreeKVCacheBlockQueue, KVCacheBlock
from kvdist.errors import LocalMisuse
from tests.make import ids, make_blocks


def order(queue: FreeKVCacheBlockQueue) -> list[int]:
    assert len(queue) == queue.num_free_blocks == len(list(queue))
    assert queue.get_all_free_blocks() == list(queue)
    assert all(block in queue for block in queue)
    return ids(queue)


@pytest.fixture
def blocks() -> list[KVCacheBlock]:
    return make_blocks(6)


def test_first_in_first_out(blocks: list[KVCacheBlock]) -> None:
    queue = FreeKVCacheBlockQueue(blocks[:2])
    queue.append_n(blocks[2:5])
    queue.append(blocks[5])
    assert order(queue) == [0, 1, 2, 3, 4, 5]
    assert queue.popleft().block_id == 0
    assert ids(queue.popleft_n(3)) == [1, 2, 3]
    assert order(queue) == [4, 5]


def test_prepended_blocks_go_before_all_others(blocks: list[KVCacheBlock]) -> None:
    queue = FreeKVCacheBlockQueue(blocks[:2])
    queue.prepend_n(blocks[2:4])
    queue.prepend_n(blocks[4:])
    assert order(queue) == [4, 5, 2, 3, 0, 1]
    assert ids(queue.popleft_n(5)) == [4, 5, 2, 3, 0]
    assert order(queue) == [1]


@pytest.mark.parametrize("gone", range(6))
def test_one_leaves_from_wherever_it_stands(blocks: list[KVCacheBlock], gone: int) -> None:
    queue = FreeKVCacheBlockQueue(blocks[:3])
    queue.prepend_n(blocks[3:])
    expected = [3, 4, 5, 0, 1, 2]
    queue.remove(blocks[gone])
    expected.remove(gone)
    assert blocks[gone] not in queue
    assert order(queue) == expected
    assert ids(queue.popleft_n(5)) == expected


def test_many_leave_at_once(blocks: list[KVCacheBlock]) -> None:
    queue = FreeKVCacheBlockQueue(blocks)
    queue.remove_n([blocks[4], blocks[0], blocks[2]])
    assert order(queue) == [1, 3, 5]


def test_what_left_can_come_back(blocks: list[KVCacheBlock]) -> None:
    queue = FreeKVCacheBlockQueue(blocks)
    queue.remove(blocks[3])
    queue.append(blocks[3])
    queue.remove(blocks[0])
    queue.prepend_n([blocks[0]])
    assert order(queue) == [0, 1, 2, 4, 5, 3]


def test_a_block_that_is_not_in_it_can_not_leave(blocks: list[KVCacheBlock]) -> None:
    queue = FreeKVCacheBlockQueue(blocks[:3])
    with pytest.raises(LocalMisuse, match="block 5 is not in the free queue"):
        queue.remove(blocks[5])
    queue.remove(blocks[1])
    with pytest.raises(LocalMisuse):
        queue.remove(blocks[1])
    stranger = make_blocks(3)[2]
    with pytest.raises(LocalMisuse):
        queue.remove(stranger)
    assert order(queue) == [0, 2]


@pytest.mark.parametrize("count", [7, -1, 10**9])
def test_more_than_there_are_can_not_be_taken(blocks: list[KVCacheBlock], count: int) -> None:
    queue = FreeKVCacheBlockQueue(blocks)
    with pytest.raises(LocalMisuse, match="asked of 6 free ones"):
        queue.popleft_n(count)
    assert order(queue) == [0, 1, 2, 3, 4, 5]


def test_an_empty_queue(blocks: list[KVCacheBlock]) -> None:
    queue = FreeKVCacheBlockQueue()
    assert order(queue) == []
    assert queue.popleft_n(0) == []
    queue.append_n([])
    queue.prepend_n([])
    queue.remove_n([])
    with pytest.raises(LocalMisuse):
        queue.popleft()
    queue.append(blocks[0])
    assert queue.popleft() is blocks[0]
    assert order(queue) == []


def test_taking_reaches_from_the_front_over_into_the_back(blocks: list[KVCacheBlock]) -> None:
    queue = FreeKVCacheBlockQueue(blocks[:3])
    queue.prepend_n(blocks[3:])
    queue.remove_n([blocks[4], blocks[1]])
    assert ids(queue.popleft_n(4)) == [3, 5, 0, 2]
    assert order(queue) == []


def test_looking_changes_nothing(blocks: list[KVCacheBlock]) -> None:
    queue = FreeKVCacheBlockQueue(blocks)
    assert order(queue) == order(queue)
    assert ids(queue.popleft_n(6)) == [0, 1, 2, 3, 4, 5]


def test_the_order_stays_over_thousands_of_holes() -> None:
    blocks = make_blocks(3_000)
    queue = FreeKVCacheBlockQueue(blocks[:2_000])
    queue.prepend_n(blocks[2_000:])
    expected = [*range(2_000, 3_000), *range(2_000)]
    gone = set(expected[::3] + expected[1::7])
    queue.remove_n([block for block in blocks if block.block_id in gone])
    left = [i for i in expected if i not in gone]
    assert order(queue) == left
    assert ids(queue.popleft_n(900)) == left[:900]
    queue.append_n([blocks[i] for i in left[:900]])
    queue.remove_n([blocks[i] for i in left[900:]])
    assert order(queue) == left[:900]


def test_the_order_stays_when_blocks_go_round_and_round() -> None:
    blocks = make_blocks(40)
    queue, expected = FreeKVCacheBlockQueue(blocks), list(range(40))
    for turn in range(1_000):
        taken = queue.popleft_n(turn % 13)
        assert ids(taken) == expected[: len(taken)]
        del expected[: len(taken)]
        middle = blocks[expected[turn % len(expected)]]
        queue.remove(middle)
        expected.remove(middle.block_id)
        if turn % 3:
            queue.append_n([*taken, middle])
            expected = [*expected, *ids(taken), middle.block_id]
        else:
            queue.prepend_n([middle, *taken])
            expected = [middle.block_id, *ids(taken), *expected]
    assert order(queue) == expected
