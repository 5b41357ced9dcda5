"""Full attention: all stays until the request ends, hits come from the left (S4, S9, S10)."""

import pytest

from tests.make import Node, full, mamba

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@pytest.fixture
def node() -> Node:
    """Blocks 1 to 4 hold A-P and are free."""
    node = Node()
    node.finish(node.start("a", LETTERS[:16]))
    return node


@pytest.mark.parametrize(
    ("num_tokens", "hit"),
    [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (13, 12), (16, 12), (17, 16), (20, 16)],
)
def test_s9_the_last_token_is_always_computed(node: Node, num_tokens: int, hit: int) -> None:
    assert node.hit("b", LETTERS[:num_tokens]) == (hit, *range(1, hit // 4 + 1))


def test_a_hit_ends_at_the_first_block_that_differs(node: Node) -> None:
    assert node.hit("b", "ABCDEFGHxyzwMNOPQ") == (8, 1, 2)
    assert node.hit("b", "xBCDEFGHIJKLMNOPQ") == (0,)


def test_a_hit_ends_at_the_first_block_that_is_gone(node: Node) -> None:
    node.manager.evict_blocks([2])
    assert node.hit("b", LETTERS[:17]) == (4, 1)
    node.manager.evict_blocks([1])
    assert node.hit("b", LETTERS[:17]) == (0,)


def test_nothing_is_given_back_before_the_end() -> None:
    node = Node()
    request = node.start("a", LETTERS[:9])
    node.say(request, LETTERS[9:20])
    node.manager.remove_skipped_blocks(request, 20)
    assert node.table(request) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("num_tokens", "hit"), [(4, 0), (5, 0), (8, 0), (9, 4), (13, 8), (17, 12), (20, 12)]
)
def test_a_draft_model_recomputes_the_last_matched_block(num_tokens: int, hit: int) -> None:
    node = Node(use_eagle=True)
    node.start("a", LETTERS[:16])
    assert node.hit("b", LETTERS[:num_tokens]) == (hit, *range(1, hit // 4 + 1))


# -- hits that end inside a block ----------------------------------------------------------------


@pytest.fixture
def partial() -> Node:
    """Blocks of 16 tokens, hashed in fours, beside states that end inside a block too."""
    node = Node(full(16), mamba(16), hash_block_size=4, enable_partial_hits=True)
    request = node.request("a", LETTERS[:22])
    node.admit(request, 20)
    node.manager.new_step_starts()
    node.compute(request, 2)
    node.manager.take_block_copies()
    node.manager.release_block_copies()
    node.manager.new_step_starts()
    assert node.table(request) == [1, 2]
    return node


def test_s10_the_tail_of_a_prompt_can_be_found_inside_its_block(partial: Node) -> None:
    assert partial.hit("b", LETTERS[:21]) == (20, 1, 2)
    assert partial.hit("b", LETTERS[:20] + "xyz") == (20, 1, 2)


def test_s10_a_source_stays_read_only_and_the_copy_is_private(partial: Node) -> None:
    other = partial.request("b", LETTERS[:20] + "xyz")
    hit = partial.admit(other)
    assert hit is not None and hit.num_tokens == 20
    assert partial.table(other) == [1, 5]
    copies = partial.manager.take_block_copies()
    assert [(c.source, c.target) for c in copies if c.group_id == 0] == [(2, 5)]
    assert partial.cached.count(2) == 1  # the source is still found


def test_s10_off_by_default() -> None:
    node = Node(full(16), mamba(16), hash_block_size=4)
    node.start("a", LETTERS[:22])
    assert node.hit("b", LETTERS[:21])[0] == 0


def test_s10_one_group_alone_has_no_partial_hits() -> None:
    node = Node(full(16), hash_block_size=4, enable_partial_hits=True)
    node.start("a", LETTERS[:22])
    assert node.hit("b", LETTERS[:22]) == (16, 1)


def test_s10_a_draft_model_recomputes_no_more_than_a_hash_block() -> None:
    node = Node(full(16), mamba(16), hash_block_size=4, enable_partial_hits=True, use_eagle=True)
    request = node.request("a", LETTERS[:22])
    node.admit(request, 16)
    node.manager.new_step_starts()
    node.compute(request, 6)
    node.manager.new_step_starts()
    assert node.hit("b", LETTERS[:22]) == (16, 1)
