"""Cross attention: blocks for the encoder's tokens, taken once and never shared (S4)."""

from typing import Any

from tests.make import Node, cross, full

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def node_of(**settings: Any) -> Node:
    return Node(full(), cross(), enable_caching=False, **settings)


def test_the_encoder_s_length_decides() -> None:
    node = node_of()
    request = node.request("a", LETTERS[:5])
    node.admit(request, num_encoder_tokens=9)
    assert (node.table(request, 0), node.table(request, 1)) == ([1, 2], [3, 4, 5])


def test_later_steps_take_nothing_more() -> None:
    node = node_of()
    request = node.request("a", LETTERS[:5])
    node.admit(request, num_encoder_tokens=9)
    node.say(request, "FGHI")
    assert (node.table(request, 0), node.table(request, 1)) == ([1, 2, 6], [3, 4, 5])
    assert node.compute(request, 1, num_encoder_tokens=9) is not None
    assert node.table(request, 1) == [3, 4, 5]


def test_s12_the_encoder_s_blocks_count_in_the_prediction() -> None:
    node = node_of(num_blocks=6)
    request = node.request("a", LETTERS[:5])
    assert node.admit(request, num_encoder_tokens=13) is None
    assert node.queue == [1, 2, 3, 4, 5]
    assert node.admit(request, num_encoder_tokens=12) is not None
    assert node.queue == []


def test_without_an_encoder_input_nothing_is_taken() -> None:
    node = node_of()
    request = node.start("a", LETTERS[:5])
    assert node.table(request, 1) == []


def test_nothing_is_published_or_hit() -> None:
    node = node_of()
    request = node.request("a", LETTERS[:8])
    node.admit(request, num_encoder_tokens=8)
    assert node.cached == []
    other = node.request("b", LETTERS[:9])
    assert node.manager.get_computed_blocks(other).num_tokens == 0


def test_s19_all_go_to_the_front_group_by_group() -> None:
    node = node_of()
    request = node.request("a", LETTERS[:8])
    node.admit(request, num_encoder_tokens=8)
    node.finish(request)
    assert node.queue == [4, 3, 2, 1, 5, 6, 7, 8, 9, 10]
