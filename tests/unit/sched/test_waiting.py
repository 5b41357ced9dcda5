"""The order of those that wait."""

import pytest

from kvdist.sched.sequence import Sequence
from kvdist.sched.waiting import InOrder, WaitingQueue
from tests.make import Node


def sequence(*order: int) -> Sequence:
    request = Node().request(f"r{order}", [1])
    return Sequence(request, max_len=2, arrival=order[1], order=(order[0], order[1]))


def test_sorted_by_order_whatever_comes_first() -> None:
    queue, sequences = InOrder(), [sequence(0, 3), sequence(1, 1), sequence(0, 2), sequence(-1, 4)]
    for each in sequences:
        queue.add(each)
    assert [s.order for s in queue] == [(-1, 4), (0, 2), (0, 3), (1, 1)]
    assert queue.last() is sequences[1]
    queue.remove(sequences[2])
    assert sequences[2] not in queue and sequences[0] in queue
    assert len(queue) == 3
    with pytest.raises(AssertionError):
        queue.remove(sequences[2])


def test_who_has_an_equal_order_but_is_another_is_not_there() -> None:
    queue = InOrder()
    queue.add(sequence(0, 1))
    assert sequence(0, 1) not in queue


def test_removing_while_walking() -> None:
    queue = InOrder()
    for i in range(4):
        queue.add(sequence(0, i))
    for each in queue:
        queue.remove(each)
    assert not len(queue)


def test_block_owners_go_first() -> None:
    queue, early, late = WaitingQueue(), sequence(0, 1), sequence(0, 2)
    queue.others.add(early)
    queue.owners.add(late)
    assert list(queue) == [late, early]
    assert len(queue) == 2
    queue.remove(late)
    queue.remove(early)
    assert not len(queue)


def test_nobody_looks_at_who_waits_for_an_answer() -> None:
    queue, early, late = WaitingQueue(), sequence(0, 1), sequence(0, 2)
    for each in (early, late):
        queue.others.add(each)
    queue.wait_for_answer(early)
    assert list(queue.others) == [late]
    assert list(queue) == [late, early] and len(queue) == 2
    queue.ask_again(early.request_id)
    queue.ask_again(early.request_id)
    queue.ask_again(late.request_id)
    assert list(queue.others) == [early, late], "in its old place"
    queue.wait_for_answer(late)
    queue.remove(late)
    queue.ask_again(late.request_id)
    assert list(queue) == [early]
