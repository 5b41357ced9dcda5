"""Bounds below which an allocation changes nothing, so nothing has to be asked (ADR-0008)."""

from typing import Any

import pytest

from kvdist.cache import KVCacheSpec
from kvdist.cache.live_request import LiveRequest
from kvdist.cache.managers.base import NEVER
from tests.make import Node, chunked, cross, full, mamba, window
from tests.unit.snapshot import of_manager

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def test_a_new_one_has_no_quiet_bounds() -> None:
    live = LiveRequest(Node().request("a", "ABC"))
    assert (live.num_slots, live.next_publication, live.next_skip) == (0, 0, 0)


def test_the_smallest_bound_of_all_groups_counts() -> None:
    node = Node(full(8), window(5))
    request = node.start("a", LETTERS[:9])
    live = node.manager.live_requests["a"]
    live.settle(node.manager.coordinator.managers, 9, publishes=True)
    assert live.num_slots == 12
    assert live.next_publication == 12
    assert live.next_skip == 12
    assert live.request is request
    live.settle(node.manager.coordinator.managers, 9, publishes=False)
    assert live.next_publication == NEVER
    live.disturb()
    assert (live.num_slots, live.next_publication, live.next_skip) == (0, 0, 0)


@pytest.mark.parametrize(
    ("specs", "settings"),
    [
        pytest.param((full(),), {}, id="full"),
        pytest.param((window(5),), {}, id="window"),
        pytest.param((chunked(8),), {}, id="chunks"),
        pytest.param((full(8), window(6, 4)), {}, id="full and window"),
        pytest.param((full(), mamba()), {}, id="full and states"),
        pytest.param((window(9, 8), window(5, 4), full(4)), {}, id="three"),
        pytest.param(
            (full(16),), {"hash_block_size": 4, "enable_partial_hits": True}, id="prompt tails"
        ),
        pytest.param((full(), cross()), {"enable_caching": False}, id="cross"),
    ],
)
def test_with_bounds_and_without_is_the_same(
    specs: tuple[KVCacheSpec, ...], settings: dict[str, Any]
) -> None:
    quiet, loud = (Node(*specs, num_blocks=61, **settings) for _ in range(2))
    requests = [node.request("a", LETTERS[:22]) for node in (quiet, loud)]
    for node, request in zip((quiet, loud), requests, strict=True):
        assert node.admit(request, 6) is not None
    for turn in range(60):
        for node, request in zip((quiet, loud), requests, strict=True):
            node.manager.new_step_starts()
            if node is loud:
                node.manager.live_requests["a"].disturb()
            if request.num_computed_tokens == request.num_tokens:
                request.append_output_token_ids(turn)
            request.num_in_flight_tokens = turn % 3
            lookahead = 3 if turn % 5 == 0 else 0
            assert node.compute(request, 1, num_lookahead_tokens=lookahead) is not None
        assert of_manager(quiet.manager) == of_manager(loud.manager), turn


def test_a_quiet_step_names_its_blocks_too() -> None:
    node = Node()
    node.manager.new_step_starts(1)
    request = node.start("a", LETTERS[:5])
    node.manager.new_step_starts(2)
    node.say(request, "x")
    assert node.manager.live_requests["a"].step == 2


def test_what_was_withdrawn_is_published_at_the_next_step() -> None:
    node = Node()
    node.manager.new_step_starts(1)
    request = node.start("a", LETTERS[:5])
    node.manager.withdraw_step(1)
    assert node.cached == []
    node.manager.settle_step(1)
    node.manager.new_step_starts(2)
    node.say(request, "x")  # within the slots, before the next block is full
    assert node.cached == [1]


def test_tokens_that_become_known_late_are_published_at_the_next_step() -> None:
    node = Node()
    request = node.start("a", LETTERS[:5])
    node.compute(request, 3)  # drafts
    assert node.cached == [1]
    request.append_output_token_ids([1, 2, 3])
    request.append_output_token_ids(4)
    node.compute(request, 1)
    assert node.cached == [1, 2]
