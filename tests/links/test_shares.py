"""Both ends of a transfer list the same bytes in the same order, whatever their shapes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

import pytest
from hypothesis import given, strategies as st

from kvdist.connector.geometry import Geometry, Group, Piece, can_share, cuts, pieces
from kvdist.connector.messages import Heads, TokenSpans
from kvdist.errors import ConfigError
from kvdist.ids import BlockId
from kvdist.links.layout import Bytes, GroupLayout, Layout

RESUME = 12


@dataclass(frozen=True)
class Model:
    """What both nodes have."""

    num_heads: int
    #: Of each group.
    num_layers: tuple[int, ...]
    item_bytes: int


@dataclass(frozen=True)
class Side:
    """One node: its ranks' memory, and one sequence's blocks in it."""

    model: Model
    num_ranks: int
    block_sizes: tuple[int, ...]
    #: Bytes of a page, and of a block, that nothing is in.
    padding: tuple[int, int]
    tables: tuple[tuple[BlockId, ...], ...]

    @property
    def geometry(self) -> Geometry:
        groups = tuple(Group("tokens", size) for size in self.block_sizes)
        return Geometry(groups, self.model.num_heads, self.num_ranks)

    def layout(self, rank: int) -> Layout:
        heads = self.geometry.heads_of(rank)
        item, share = self.model.item_bytes, heads[1] - heads[0]
        page = max(self.block_sizes) * share * item + self.padding[0]
        groups = tuple(
            GroupLayout(layers, size, share, item)
            for layers, size in zip(self.model.num_layers, self.block_sizes, strict=True)
        )
        return Layout(groups, heads, page, max(self.model.num_layers) * page + self.padding[1])

    def places(self, rank: int, heads: Heads, spans: TokenSpans) -> Iterator[tuple[object, int]]:
        """Names of single bytes, and where each is; as the worker's pool has them."""
        layout, item = self.layout(rank), self.model.item_bytes
        for number, (size, table, (first, last)) in enumerate(
            zip(self.block_sizes, self.tables, spans, strict=True)
        ):
            layers = range(self.model.num_layers[number])
            for token, layer, head in product(range(first, last), layers, range(*heads)):
                page = table[token // size] * layout.block_bytes + layer * layout.page_bytes
                slot = (head - layout.heads[0]) * size + token % size
                for byte in range(item):
                    yield (number, token, layer, head, byte), page + slot * item + byte

    def spans(self, rank: int, heads: Heads, spans: TokenSpans, other: "Side") -> list[Bytes]:
        found: list[Piece] = []
        for group, table, span in zip(self.geometry.groups, self.tables, spans, strict=True):
            here = pieces(group, table, span)
            assert here is not None
            found += here
        return self.layout(rank).spans(spans, found, heads, other.block_sizes)


@st.composite
def sides(draw: st.DrawFn) -> tuple[Side, Side, TokenSpans]:
    """Any degrees that can share the heads, any block sizes, any blocks."""
    num_heads = draw(st.sampled_from([1, 2, 4, 6]))
    degrees = [ranks for ranks in range(1, 9) if can_share(num_heads, ranks)]
    layers = tuple(draw(st.lists(st.integers(1, 2), min_size=1, max_size=2)))
    model = Model(num_heads, layers, draw(st.integers(1, 2)))
    made = []
    for _ in range(2):
        sizes = tuple(draw(st.sampled_from([1, 2, 3, 4, 8])) for _ in layers)
        blocks = iter(draw(st.permutations(range(1, 1 + RESUME * len(layers)))))
        tables = tuple(tuple(map(BlockId, islice(blocks, -(-RESUME // size)))) for size in sizes)
        padding = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
        made.append(Side(model, draw(st.sampled_from(degrees)), sizes, padding, tables))
    ends = [draw(st.integers(1, RESUME)) for _ in layers]
    spans = tuple((draw(st.integers(0, end - 1)), end) for end in ends)
    return made[0], made[1], spans


def every(spans: Sequence[Bytes]) -> list[int]:
    """All single bytes, in order."""
    return [byte for first, size in spans for byte in range(first, first + size)]


@given(sides())
def test_each_rank_gets_its_heads_from_whom_they_are(drawn: tuple[Side, Side, TokenSpans]) -> None:
    owner, reader, spans = drawn
    brought: dict[int, list[int]] = {rank: [] for rank in range(reader.num_ranks)}
    for cut in cuts(reader.geometry, owner.num_ranks):
        there = every(owner.spans(cut.owner, cut.heads, spans, reader))
        here = every(reader.spans(cut.reader, cut.heads, spans, owner))
        names = {place: name for name, place in owner.places(cut.owner, cut.heads, spans)}
        wanted = {place: name for name, place in reader.places(cut.reader, cut.heads, spans)}
        assert [names[place] for place in there] == [wanted[place] for place in here]
        brought[cut.reader] += here
    for rank, places in brought.items():
        heads = reader.geometry.heads_of(rank)
        assert sorted(places) == sorted(place for _, place in reader.places(rank, heads, spans))


@given(sides())
def test_a_peers_layout_is_told_by_what_it_introduces_itself_with(
    drawn: tuple[Side, Side, TokenSpans],
) -> None:
    ours, theirs, _ = drawn
    for mine, its in product(range(ours.num_ranks), range(theirs.num_ranks)):
        told = theirs.layout(its)
        assert told == ours.layout(mine).of_peer(
            told.heads, told.block_sizes, told.page_bytes, told.block_bytes
        )


def test_fresh_blocks_are_one_span() -> None:
    model = Model(4, (3,), 8)
    owner = Side(model, 2, (16,), (0, 0), (tuple(map(BlockId, range(2, 6))),))
    reader = replace(owner, tables=(tuple(map(BlockId, range(7, 11))),))
    block_bytes = owner.layout(0).block_bytes
    spans = owner.spans(1, (2, 4), ((0, 64),), reader)
    assert spans == [Bytes(2 * block_bytes, 4 * block_bytes)]


OURS = Layout((GroupLayout(2, 16, 4, 8), GroupLayout(1, 0, 1, 100)), (0, 4), 512, 1024)


@pytest.mark.parametrize(
    ("told", "field"),
    [
        (((0, 4), (16,), 512, 1024), "block_sizes"),
        (((0, 4), (16, 16), 512, 1024), "block_sizes"),
        (((0, 2), (16, 0), 512, 1024), "heads"),
        (((4, 4), (16, 0), 512, 1024), "heads"),
        (((3, 1), (16, 0), 512, 1024), "heads"),
        (((0, 4), (32, 0), 512, 1024), "page_bytes"),
        (((0, 4), (16, 0), 512, 1023), "block_bytes"),
    ],
)
def test_what_can_not_be_is_refused_by_name(
    told: tuple[Heads, tuple[int, ...], int, int], field: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        OURS.of_peer(*told)


def test_a_share_that_no_heads_make() -> None:
    """Three heads of one group, where two count as the model's."""
    ours = Layout((GroupLayout(1, 16, 3, 8),), (0, 2), 512, 512)
    with pytest.raises(ConfigError, match=r"heads: .* of group 0"):
        ours.of_peer((0, 1), (16,), 512, 512)


def test_which_heads_a_rank_has() -> None:
    layout = Layout((GroupLayout(1, 16, 2, 8),), (2, 4), 512, 512)
    assert layout.has((2, 4))
    assert layout.has((3, 4))
    assert not any(layout.has(heads) for heads in ((1, 3), (3, 5), (2, 2), (0, 2)))
