"""Mamba: a block is a state. Only the last one is read, and hits need exactly one (S4, S10)."""

from collections.abc import Sequence

import pytest

from kvdist.cache import HoldKind, Request
from tests.make import Node, full, mamba

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def in_steps(node: Node, request: Request, sizes: Sequence[int]) -> list[list[int]]:
    """The table after each of some steps."""
    tables = []
    for number, size in enumerate(sizes):
        node.manager.new_step_starts()
        if number or request.num_computed_tokens:
            assert node.compute(request, size) is not None
        else:
            assert node.admit(request, size) is not None
        tables.append(node.table(request))
    node.manager.new_step_starts()
    return tables


def test_a_table_has_one_state_behind_null_blocks() -> None:
    node = Node(mamba())
    request = node.start("a", LETTERS[:10])
    assert node.table(request) == [0, 0, 1]
    assert node.cached == []  # the state after ten tokens is at no block boundary


def test_a_step_keeps_the_state_it_starts_from_and_the_one_it_makes() -> None:
    node = Node(mamba())
    request = node.request("a", LETTERS[:18])
    assert in_steps(node, request, [4, 4, 4, 4, 2]) == [
        [1],
        [1, 2],
        [0, 2, 3],
        [0, 0, 3, 4],
        [0, 0, 0, 4, 5],
    ]
    assert node.queue == [6, 7, 8, 9, 10, 1, 2, 3]
    assert node.cached == [1, 2, 3, 4]


def test_a_state_is_published_when_a_step_ends_at_a_block_boundary() -> None:
    node = Node(mamba())
    request = node.start("a", LETTERS[:10])
    node.say(request, "K")
    assert node.cached == []
    node.say(request, "L")
    assert node.cached == [1]
    node.finish(request)
    node.manager.new_step_starts()
    assert [node.hit("b", LETTERS[:n]) for n in (9, 12, 13, 16)] == [
        (0,),
        (0,),
        (12, 0, 0, 1),
        (12, 0, 0, 1),
    ]


def test_a_hit_needs_no_earlier_state() -> None:
    node = Node(mamba())
    node.finish(node.start("a", LETTERS[:12]))
    node.manager.new_step_starts()
    request = node.start("b", LETTERS[:14])
    assert node.table(request) == [0, 0, 1, 2]
    assert node.counts == {1: 1, 2: 1}


def test_a_state_of_this_step_can_not_be_used_in_it() -> None:
    node = Node(mamba())
    node.start("a", LETTERS[:8])
    other = node.request("b", LETTERS[:9])
    assert node.hit("c", LETTERS[:9]) == (8, 0, 1)
    assert node.admit(other) is None
    node.manager.new_step_starts()
    assert node.admit(other) is not None
    assert node.table(other) == [0, 1, 2]


def test_scratch_states_follow_the_running_one_and_are_used_again() -> None:
    node = Node(mamba(scratch=2))
    request = node.request("a", LETTERS[:18])
    assert in_steps(node, request, [4, 4, 4, 4, 2]) == [
        [1, 2, 3],
        [1, 2, 3, 4],
        [0, 2, 3, 4, 5],
        [0, 0, 3, 4, 5, 6],
        [0, 0, 0, 4, 5, 6, 7],
    ]
    node.finish(request)
    assert node.queue == [7, 6, 5, 8, 9, 10, 1, 2, 3, 4]


def test_scratch_states_are_moved_up_over_a_gap() -> None:
    node = Node(mamba(scratch=2))
    request = node.request("a", LETTERS[:18])
    assert in_steps(node, request, [4, 12]) == [[1, 2, 3], [1, 0, 0, 2, 3, 4]]


def test_without_boundaries_a_request_has_one_state_and_its_scratch() -> None:
    node = Node(mamba(64, mode="none", scratch=1), enable_caching=False)
    request = node.start("a", LETTERS[:10])
    assert node.table(request) == [1, 2]
    node.say(request, LETTERS[10:20])
    assert node.table(request) == [1, 2]
    node.finish(request)
    assert node.queue[:2] == [2, 1]


def test_lookahead_tokens_have_no_states_of_their_own() -> None:
    node = Node(mamba())
    request = node.request("a", LETTERS[:4])
    node.admit(request, num_lookahead_tokens=20)
    assert node.table(request) == [1]


# -- states inside a block (S10) -----------------------------------------------------------------


@pytest.fixture
def node() -> Node:
    return Node(full(16), mamba(16), hash_block_size=4, enable_partial_hits=True)


def test_s10_the_state_at_a_prompt_s_last_boundary_can_be_found(node: Node) -> None:
    request = node.request("a", LETTERS[:22])
    in_steps(node, request, [20])
    found = node.manager.get_computed_blocks(node.request("b", LETTERS[:21]))
    assert found.num_tokens == 20
    assert found.blocks.get_block_ids() == ([1, 2], [0, 3])


def test_s10_who_writes_on_in_a_published_state_gives_its_keys_to_a_copy(node: Node) -> None:
    request = node.request("a", LETTERS[:22])
    in_steps(node, request, [20, 2])
    assert node.table(request, 1) == [0, 3]
    assert node.cached == [1, 2, 4]
    assert node.manager.take_block_copies() == [(3, 4, 1)]
    found = node.manager.get_computed_blocks(node.request("b", LETTERS[:21]))
    assert found.blocks.get_block_ids() == ([1, 2], [0, 4])


def test_s10_source_and_target_are_pinned_until_the_copy_has_run(node: Node) -> None:
    request = node.request("a", LETTERS[:22])
    in_steps(node, request, [20, 2])
    assert node.manager.ledger().copy == 2
    node.finish(request)
    assert node.counts == {3: 1, 4: 1}
    copies = node.manager.take_block_copies()
    assert node.manager.take_block_copies() == []
    assert node.counts == {3: 1, 4: 1}
    node.manager.release_block_copies(copies)
    assert node.counts == {}
    assert node.manager.ledger().copy == 0


def test_s10_a_hit_inside_a_block_takes_a_copy_in_each_group(node: Node) -> None:
    in_steps(node, node.request("a", LETTERS[:22]), [20])
    other = node.request("b", LETTERS[:20] + "xyz")
    free = node.pool.get_num_free_blocks()
    assert node.admit(other) is not None
    assert free - node.pool.get_num_free_blocks() == 2  # predicted as two new blocks
    assert [node.table(other, group) for group in (0, 1)] == [[1, 4], [0, 5]]
    assert node.manager.take_block_copies() == [(2, 4, 0), (3, 5, 1)]
    holds = node.pool.holds
    assert [holds.count(node.pool.blocks[i], HoldKind.COPY) for i in range(6)] == [
        0, 0, 1, 1, 1, 1,
    ]  # fmt: skip


def test_s10_copies_that_do_not_fit_are_predicted() -> None:
    node = Node(full(16), mamba(16), hash_block_size=4, enable_partial_hits=True, num_blocks=5)
    in_steps(node, node.request("a", LETTERS[:22]), [20])
    assert node.admit(node.request("b", LETTERS[:20] + "xyz")) is None
    assert node.queue == [4]
