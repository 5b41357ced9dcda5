"""The bytes of a pull are those of its tokens, one by one, whatever block sizes meet."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from kvdist.connector.geometry import Group, pieces
from kvdist.ids import BlockId
from kvdist.links.layout import GroupLayout, Layout

ITEM = 3
TABLE = [BlockId(number) for number in (4, 5, 2, 7, 8, 9, 1)]


def one_by_one(layout: Layout, first: int, last: int, heads: range, other: int) -> Iterator[int]:
    """Every byte, by the definition."""
    (group,) = layout.groups
    ends = {*range(0, last, group.block_size), *range(0, last, other), first, last}
    edges = sorted(end for end in ends if first <= end <= last)
    for begin, end in pairwise(edges):
        for layer in range(group.num_layers):
            for head in heads:
                for token in range(begin, end):
                    block, slot = divmod(token, group.block_size)
                    page = TABLE[block] * layout.block_bytes + layer * layout.page_bytes
                    at = page + (head * group.block_size + slot) * ITEM
                    yield from range(at, at + ITEM)


@given(
    size=st.sampled_from([2, 4]),
    other=st.sampled_from([2, 4, 6]),
    hole=st.sampled_from([0, 5]),
    span=st.tuples(st.integers(0, 13), st.integers(0, 13)).map(sorted),
    heads=st.sampled_from([(0, 2), (0, 1), (1, 2)]),
)
def test_bytes_are_those_of_the_tokens(
    size: int, other: int, hole: int, span: list[int], heads: tuple[int, int]
) -> None:
    page = size * 2 * ITEM + hole
    layout = Layout((GroupLayout(3, size, 2, ITEM),), (0, 2), page, 3 * page)
    first, last = span
    found = pieces(Group("tokens", size), TABLE, (first, last))
    assert found is not None
    spans = layout.spans(((first, last),), found, heads, (other,))
    expected = list(one_by_one(layout, first, last, range(*heads), other)) if last > first else []
    assert [at for begin, num in spans for at in range(begin, begin + num)] == expected
    assert all(one.first + one.size != two.first for one, two in pairwise(spans))


@pytest.mark.parametrize("hole", [0, 5])
def test_neighbours_are_one_span_where_blocks_have_no_holes(hole: int) -> None:
    page = 4 * 2 * ITEM + hole
    layout = Layout((GroupLayout(3, 4, 2, ITEM),), (0, 2), page, 3 * page)
    found = pieces(Group("tokens", 4), TABLE, (0, 8))
    assert found is not None
    assert len(layout.spans(((0, 8),), found, (0, 2), (4,))) == (6 if hole else 1)
