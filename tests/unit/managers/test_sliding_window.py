"""Sliding window: only the window's suffix stays, hits come from the right (S4, S13)."""

from typing import Any

import pytest

from kvdist.cache.managers.sliding_window import SlidingWindowManager
from tests.make import Node, window

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def manager_of(node: Node) -> SlidingWindowManager:
    (manager,) = node.manager.coordinator.managers
    assert isinstance(manager, SlidingWindowManager)
    return manager


@pytest.mark.parametrize(
    ("sliding_window", "computed", "skipped"),
    [(5, 0, 0), (5, 4, 0), (5, 5, 1), (5, 10, 6), (1, 10, 10), (4, 10, 7), (100, 10, 0)],
)
def test_tokens_left_of_the_window_of_the_next_token(
    sliding_window: int, computed: int, skipped: int
) -> None:
    manager = manager_of(Node(window(sliding_window)))
    assert manager.get_num_skipped_tokens(computed) == skipped


def test_s13_blocks_that_the_window_has_left_go_back_and_leave_null_blocks() -> None:
    node = Node(window(5))
    request = node.request("a", LETTERS[:20])
    node.admit(request, 8)
    assert node.table(request) == [1, 2]
    for table in ([0, 2, 3], [0, 0, 3, 4], [0, 0, 0, 4, 5]):
        assert node.compute(request, 4) is not None
        assert node.table(request) == table
    assert node.queue == [6, 7, 8, 9, 10, 1, 2, 3]
    assert node.cached == [1, 2, 3, 4, 5]  # given back, not erased


def test_s13_steps_in_flight_keep_their_windows() -> None:
    node = Node(window(5))
    request = node.request("a", LETTERS[:20])
    node.admit(request, 8)
    request.num_in_flight_tokens = 8
    node.compute(request, 4)
    assert node.table(request) == [1, 2, 3]
    request.num_in_flight_tokens = 4
    node.compute(request, 4)
    assert node.table(request) == [0, 2, 3, 4]


def test_s13_returns_stand_even_when_the_allocation_is_refused() -> None:
    node = Node(window(5))
    request = node.start("a", LETTERS[:12])
    node.start("b", range(28))
    assert node.queue == []
    assert node.compute(request, 20) is None
    assert node.table(request) == [0, 0, 3]
    assert node.queue == [2, 1]


def test_s13_a_decode_step_gives_back_when_the_window_moves_on() -> None:
    node = Node(window(5))
    request = node.start("a", LETTERS[:8])
    tables = []
    for letter in LETTERS[8:14]:
        node.say(request, letter)
        tables.append(node.table(request))
    assert tables == [
        [0, 2, 3],
        [0, 2, 3],
        [0, 2, 3],
        [0, 2, 3],
        [0, 0, 3, 4],
        [0, 0, 3, 4],
    ]


def test_giving_back_by_hand_takes_processed_tokens() -> None:
    node = Node(window(5))
    request = node.start("a", LETTERS[:16])
    for processed, table in ((7, [1, 2, 3, 4]), (8, [0, 2, 3, 4]), (15, [0, 0, 3, 4])):
        node.manager.remove_skipped_blocks(request, processed)
        assert node.table(request) == table
    assert node.queue[-2:] == [1, 2]


def test_several_blocks_go_back_rightmost_first() -> None:
    node = Node(window(5))
    request = node.start("a", LETTERS[:16])
    node.manager.remove_skipped_blocks(request, 16)
    assert node.table(request) == [0, 0, 0, 4]
    assert node.queue == [5, 6, 7, 8, 9, 10, 3, 2, 1]


@pytest.mark.parametrize(
    ("num_tokens", "hit"),
    [
        (5, (4, 1)),
        (9, (8, 1, 2)),
        (13, (12, 0, 2, 3)),
        (16, (12, 0, 2, 3)),
        (17, (16, 0, 0, 3, 4)),
    ],
)
def test_a_hit_needs_only_what_the_window_reads(num_tokens: int, hit: tuple[int, ...]) -> None:
    node = Node(window(9))
    node.finish(node.start("a", LETTERS[:16]))
    assert node.hit("b", LETTERS[:num_tokens]) == hit


def test_a_hit_is_the_rightmost_whole_window() -> None:
    node = Node(window(9))
    node.finish(node.start("a", LETTERS[:16]))
    node.manager.evict_blocks([2])
    assert [node.hit("b", LETTERS[:n]) for n in (9, 13, 17)] == [
        (4, 1),  # a run from the start, shorter than the window
        (4, 1),
        (16, 0, 0, 3, 4),
    ]
    node.manager.evict_blocks([1])
    assert [node.hit("b", LETTERS[:n]) for n in (9, 13, 17)] == [(0,), (0,), (16, 0, 0, 3, 4)]


def test_a_hit_takes_over_only_what_the_next_token_reads() -> None:
    node = Node(window(5))
    node.finish(node.start("a", LETTERS[:16]))
    request = node.start("b", LETTERS[:18])
    assert node.table(request) == [0, 0, 0, 4, 5]
    assert node.counts == {4: 1, 5: 1}


def test_a_request_shorter_than_the_window_keeps_all() -> None:
    node = Node(window(100))
    request = node.start("a", LETTERS[:9])
    node.say(request, LETTERS[9:24])
    assert node.table(request) == [1, 2, 3, 4, 5, 6]


def test_a_window_of_one_token_reads_nothing_before() -> None:
    node = Node(window(1))
    request = node.start("a", LETTERS[:8])
    node.say(request, "I")
    assert node.table(request)[:2] == [0, 0]


def test_a_window_of_one_token_publishes_and_finds_nothing_as_in_vllm() -> None:
    node = Node(window(1))
    node.start("a", LETTERS[:12])
    assert node.hit("b", LETTERS[:9])[0] == 0
    assert not list(node.pool.cached_blocks())


@pytest.mark.parametrize(
    ("settings", "blocks"),
    [({}, 8), ({"max_in_flight_tokens": 8}, 4), ({"max_model_len": 9}, 4)],
)
def test_s17_the_gate_counts_a_window_at_its_largest(settings: dict[str, Any], blocks: int) -> None:
    node = Node(window(5), **{"max_model_len": 28, **settings})
    assert manager_of(node).max_admission_blocks == blocks


def test_a_draft_model_needs_one_block_more_and_drops_it() -> None:
    node = Node(window(5), use_eagle=True)
    node.finish(node.start("a", LETTERS[:16]))
    assert node.hit("b", LETTERS[:17]) == (12, 0, 0, 3)
    node.manager.evict_blocks([3])
    assert node.hit("b", LETTERS[:17]) == (4, 1)
