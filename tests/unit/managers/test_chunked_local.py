"""Chunked local attention: only the chunk of the next token is read (S4, S13)."""

from typing import Any

import pytest

from kvdist.cache.managers.chunked_local import ChunkedLocalAttentionManager
from tests.make import Node, chunked

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@pytest.mark.parametrize(
    ("computed", "skipped"), [(0, 0), (7, 0), (8, 8), (13, 8), (15, 8), (16, 16)]
)
def test_tokens_of_earlier_chunks_are_skipped(computed: int, skipped: int) -> None:
    (manager,) = Node(chunked(8)).manager.coordinator.managers
    assert manager.get_num_skipped_tokens(computed) == skipped


def test_s13_a_chunk_goes_back_when_the_next_begins() -> None:
    node = Node(chunked(8))
    request = node.request("a", LETTERS[:7])
    node.admit(request)
    assert node.table(request) == [1, 2]
    node.say(request, "H")
    assert node.table(request) == [1, 2]
    node.say(request, "I")
    assert node.table(request) == [0, 0, 3]
    assert node.queue[-2:] == [2, 1]


def test_earlier_chunks_count_as_hit_without_any_block() -> None:
    node = Node(chunked(8))
    assert node.hit("a", LETTERS[:8]) == (0,)
    assert node.hit("a", LETTERS[:9]) == (8, 0, 0)
    assert node.hit("a", LETTERS[:18]) == (16, 0, 0, 0, 0)


def test_in_its_own_chunk_a_hit_comes_from_the_left() -> None:
    node = Node(chunked(8))
    node.start("a", LETTERS[:16])
    assert node.table(node.request("a", LETTERS)) == [0, 0, 1, 2]
    assert node.hit("b", LETTERS[:15]) == (12, 0, 0, 1)
    assert node.hit("b", LETTERS[:8] + "xyzwMNOP") == (8, 0, 0)
    node.manager.evict_blocks([1])
    assert node.hit("b", LETTERS[:16]) == (8, 0, 0)


@pytest.mark.parametrize(
    ("settings", "blocks"),
    [({}, 7), ({"max_in_flight_tokens": 8}, 4), ({"max_model_len": 9}, 3)],
)
def test_s17_the_gate_counts_a_chunk_at_its_largest(settings: dict[str, Any], blocks: int) -> None:
    node = Node(chunked(8), **{"max_model_len": 28, **settings})
    (manager,) = node.manager.coordinator.managers
    assert isinstance(manager, ChunkedLocalAttentionManager)
    assert manager.max_admission_blocks == blocks


def test_a_chunk_that_ends_inside_a_block_leaves_that_block_to_the_next() -> None:
    node = Node(chunked(6))
    request = node.start("a", LETTERS[:6])
    node.say(request, "G")
    assert node.table(request) == [0, 2]  # tokens 4 and 5 of one chunk, 6 and 7 of the next
    node.say(request, LETTERS[7:12])
    assert node.table(request) == [0, 2, 3]
    node.say(request, "M")
    assert node.table(request) == [0, 0, 0, 4]
