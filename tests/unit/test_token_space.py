"""The five parts of a position: computed, hit, external, new, lookahead (S11, S15, S16)."""

import pytest

from kvdist.cache.token_space import TokenSpace
from tests.make import Node


def test_boundaries_by_name() -> None:
    space = TokenSpace("a", local=8, total=12, main=15, slots=18)
    assert space.encoder == 0
    assert space[1:] == (8, 12, 15, 18, 0)


@pytest.mark.parametrize(
    ("hit", "external", "new", "lookahead", "table", "appended", "published"),
    [
        # 8 tokens of the prompt of 14 are cached in blocks 1 and 2; 3 is the first free block.
        (True, 0, 6, 0, [1, 2, 3, 4], [3, 4], [1, 2, 3]),
        (True, 0, 6, 3, [1, 2, 3, 4, 5], [3, 4, 5], [1, 2, 3]),
        (True, 4, 2, 0, [1, 2, 3, 4], [4], [1, 2, 3]),
        (True, 4, 0, 0, [1, 2, 3], [], [1, 2, 3]),
        (True, 0, 0, 0, [1, 2], [], [1, 2]),
        (False, 0, 14, 0, [3, 4, 5, 6], [3, 4, 5, 6], [1, 2, 3, 4, 5]),
        (False, 6, 8, 0, [3, 4, 5, 6], [5, 6], [1, 2, 3, 4, 5]),
    ],
)  # fmt: skip
def test_s11_each_part_has_its_own_effect(
    hit: bool,
    external: int,
    new: int,
    lookahead: int,
    table: list[int],
    appended: list[int],
    published: list[int],
) -> None:
    node = Node()
    node.start("cached", "ABCDEFGH")
    request = node.request("a", "ABCDEFGHIJKLMN")
    found = node.manager.get_computed_blocks(request) if hit else None
    blocks = node.manager.allocate_slots(
        request,
        new,
        found,
        num_external_computed_tokens=external,
        num_lookahead_tokens=lookahead,
    )
    assert blocks is not None
    assert node.table(request) == table
    assert blocks.get_block_ids() == (appended,)
    assert node.cached == published


def test_s16_lookahead_is_never_published() -> None:
    node = Node()
    request = node.request("a", "ABCDEFG")
    node.admit(request, num_lookahead_tokens=20)
    assert node.table(request) == [1, 2, 3, 4, 5, 6, 7]
    assert node.cached == [1]
    node.say(request, "H")
    assert node.cached == [1, 2]


def test_s16_publication_stops_at_known_tokens_even_if_more_are_computed() -> None:
    node = Node()
    request = node.start("a", "ABCDEFG")
    assert node.compute(request, 9) is not None  # drafts, verified as new tokens
    assert node.cached == [1]
    request.num_computed_tokens = 7
    request.append_output_token_ids([1, 2])
    assert node.compute(request, 2) is not None
    assert node.cached == [1, 2]


def test_slots_end_at_the_longest_sequence() -> None:
    node = Node(max_model_len=10)
    request = node.request("a", "ABCDEFGHI")
    node.admit(request, num_lookahead_tokens=8)
    assert node.table(request) == [1, 2, 3]


def test_new_tokens_in_the_last_block_take_nothing() -> None:
    node = Node()
    request = node.start("a", "ABCDE")
    for token in "FGH":
        new = node.compute(request, 1)
        assert new is not None and new.get_block_ids() == ([],), token
    new = node.compute(request, 1)
    assert new is not None and new.get_block_ids() == ([3],)
