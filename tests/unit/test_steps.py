"""Steps that are planned and not over: what they hold back, what can be withdrawn (T1, S27, I4)."""

from collections.abc import Callable

import pytest

from kvdist.cache.request import Request
from kvdist.cache.steps import Publication, StepLog
from kvdist.errors import UnknownStep
from tests.make import GROUP, Node, make_blocks
from tests.unit.snapshot import unchanged


def publication(name: str, first_block: int = 0) -> Publication:
    return Publication(Request(name, [1]), GROUP, first_block, [])


def names(publications: list[Publication]) -> list[str]:
    return [p.request.request_id for p in publications if p.request]


# -- the log alone -------------------------------------------------------------------------------


def test_without_steps_nothing_waits() -> None:
    steps = StepLog()
    assert not steps
    assert not steps.defer_free(0, make_blocks(1))
    steps.published(publication("a"))
    assert steps.waiting_blocks() == []


def test_steps_open_in_rising_order() -> None:
    steps = StepLog()
    steps.open(3)
    steps.open(7)
    for step in (7, 5, 3, 0, -1):
        with pytest.raises(UnknownStep, match=f"step {step} opens after step 7"):
            steps.open(step)
    assert (steps.current, steps.settled) == (7, 0)


def test_steps_settle_oldest_first() -> None:
    steps = StepLog()
    with pytest.raises(UnknownStep, match="the oldest open one is None"):
        steps.settle(1)
    steps.open(1)
    steps.open(2)
    with pytest.raises(UnknownStep, match="the oldest open one is 1"):
        steps.settle(2)
    assert steps.settle(1) == []
    assert steps.settle(2) == []
    assert steps.settled == 2
    assert not steps
    with pytest.raises(UnknownStep):
        steps.settle(2)


def test_a_free_waits_for_its_own_step_only() -> None:
    first, second, third = make_blocks(3)
    steps = StepLog()
    steps.open(1)
    steps.open(2)
    assert steps.defer_free(1, [first])
    assert steps.defer_free(2, [second, third])
    assert steps.waiting_blocks() == [first, second, third]
    assert steps.settle(1) == [[first]]
    assert not steps.defer_free(1, [first])  # it is over
    assert steps.settle(2) == [[second, third]]


def test_withdrawn_publications_come_latest_first_and_once() -> None:
    steps = StepLog()
    for step in (1, 2, 3):
        steps.open(step)
        steps.published(publication(f"{step}a"))
        steps.published(publication(f"{step}b"))
    assert names(steps.withdraw(2)) == ["3b", "3a", "2b", "2a"]
    assert steps.withdraw(2) == []
    assert names(steps.withdraw(1)) == ["1b", "1a"]
    for step in (0, 4):
        with pytest.raises(UnknownStep, match="is not open"):
            steps.withdraw(step)
    assert steps.settle(1) == []  # a withdrawn step is still open


# -- in the manager ------------------------------------------------------------------------------


def test_s27_a_free_waits_until_the_step_that_names_the_blocks_settles() -> None:
    node = Node()
    node.manager.new_step_starts(1)
    request = node.start("a", "ABCDEFGHI")
    node.finish(request)
    assert node.counts == {1: 1, 2: 1, 3: 1}
    assert node.queue == [4, 5, 6, 7, 8, 9, 10]
    assert node.manager.get_block_ids("a") == ([],)
    node.manager.settle_step(1)
    assert node.queue == [3, 4, 5, 6, 7, 8, 9, 10, 2, 1]


def test_i4_what_an_open_step_writes_is_not_handed_out() -> None:
    node = Node()
    node.manager.new_step_starts(1)
    node.finish(node.start("a", "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmn"))
    other = node.request("b", "0123")
    assert node.admit(other) is None
    node.manager.settle_step(1)
    assert node.admit(other) is not None


def test_s27_the_latest_step_that_names_a_request_counts() -> None:
    node = Node()
    node.manager.new_step_starts(1)
    request = node.start("a", "ABCDEFGHI")
    node.manager.new_step_starts(2)
    node.say(request, "J")  # a quiet step: nothing is taken or published
    node.finish(request)
    node.manager.settle_step(1)
    assert node.counts == {1: 1, 2: 1, 3: 1}
    node.manager.settle_step(2)
    assert node.counts == {}


def test_s27_a_request_that_no_open_step_names_is_freed_at_once() -> None:
    node = Node()
    node.manager.new_step_starts(1)
    first = node.start("a", "ABCDE")
    node.manager.new_step_starts(2)
    node.start("b", "VWXYZ")
    node.manager.settle_step(1)
    node.finish(first)
    assert node.counts == {3: 1, 4: 1}


def test_a_request_that_comes_back_finds_what_still_waits() -> None:
    node = Node()
    node.manager.new_step_starts(1)
    request = node.start("a", "ABCDEFGHI")
    node.preempt(request)
    assert node.admit(request) is not None
    assert node.counts == {1: 2, 2: 2, 3: 1, 4: 1}
    node.manager.settle_step(1)
    assert node.counts == {1: 1, 2: 1, 4: 1}


def test_t1_a_block_is_settled_once_its_step_is() -> None:
    node = Node()
    node.manager.new_step_starts(1)
    node.start("a", "ABCDEFGH")
    assert not node.manager.is_settled(1)
    node.manager.new_step_starts(2)
    node.manager.settle_step(1)
    assert node.manager.is_settled(1)
    node.start("b", "QRST")
    assert not node.manager.is_settled(3)
    assert node.manager.is_settled(1)


def test_t1_a_block_without_a_key_is_never_settled() -> None:
    node = Node()
    node.start("a", "ABCDE")
    assert [node.manager.is_settled(block_id) for block_id in (1, 2, 3)] == [True, False, False]
    node.manager.evict_blocks([1])
    assert not node.manager.is_settled(1)


def test_t1_a_withdrawn_step_unpublishes_what_it_and_later_ones_published() -> None:
    node = Node()
    node.manager.new_step_starts(1)
    request = node.start("a", "ABCD")
    node.manager.new_step_starts(2)
    request.append_output_token_ids(list(map(ord, "EFGH")))
    node.compute(request, 4)
    node.manager.new_step_starts(3)
    request.append_output_token_ids(list(map(ord, "IJKL")))
    node.compute(request, 4)
    node.manager.withdraw_step(2)
    assert node.cached == [1]
    assert node.hit("b", "ABCDEFGHIJKLM") == (4, 1)
    assert node.counts == {1: 1, 2: 1, 3: 1}  # the request goes on with its blocks


def test_t1_what_was_withdrawn_can_be_published_again() -> None:
    node = Node()
    node.manager.new_step_starts(1)
    request = node.start("a", "ABCDEFGH")
    node.manager.withdraw_step(1)
    assert node.cached == []
    node.manager.settle_step(1)
    node.manager.new_step_starts(2)
    node.manager.cache_blocks(request, 8)
    assert node.cached == [1, 2]


def test_t1_a_withdrawn_step_leaves_the_copies_of_others() -> None:
    node = Node()
    first = node.start("a", "ABCD")
    node.finish(first)
    node.manager.new_step_starts(1)
    node.start("b", "ABCD")  # the last token is computed anew: its own copy of the block
    assert node.cached == [1, 2]
    node.manager.withdraw_step(1)
    assert node.cached == [1]


def test_steps_out_of_order_are_refused() -> None:
    node = Node()
    node.manager.new_step_starts(5)
    node.manager.new_step_starts(6)
    calls: tuple[Callable[[], object], ...] = (
        lambda: node.manager.new_step_starts(6),
        lambda: node.manager.new_step_starts(0),
        lambda: node.manager.settle_step(6),
        lambda: node.manager.settle_step(4),
        lambda: node.manager.withdraw_step(7),
        lambda: node.manager.withdraw_step(4),
    )
    for call in calls:
        with unchanged(node.manager), pytest.raises(UnknownStep):
            call()
