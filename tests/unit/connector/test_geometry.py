"""What a pull has to move, against sets of single tokens and heads."""

from itertools import product

import pytest
from hypothesis import given, strategies as st

from kvdist.cache import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from kvdist.connector.geometry import (
    Geometry,
    Group,
    Piece,
    can_share,
    covers,
    cuts,
    external_blocks,
    kept,
    listed,
    pieces,
    sized,
    wanted,
)
from kvdist.connector.messages import Heads
from kvdist.errors import ConfigError
from kvdist.ids import BlockId
from tests.make import make_config

FULL, STATE = Group("tokens", 4), Group("state", 4)
SIZES = st.sampled_from([1, 2, 4, 16])


@st.composite
def groups(draw: st.DrawFn) -> Group:
    size = draw(SIZES)
    match draw(st.sampled_from(["full", "window", "chunk", "state"])):
        case "window":
            return Group("tokens", size, window=draw(st.integers(1, 20)))
        case "chunk":
            return Group("tokens", size, chunk=draw(st.integers(1, 20)))
        case "state":
            return Group("state", size)
        case _:
            return Group("tokens", size)


def needed(group: Group, resume: int) -> set[int]:
    """The tokens that the token at `resume` reads before itself."""
    if group.kind == "state":
        return {resume - 1} & set(range(resume))
    first = 0
    if group.window:
        first = resume - group.window + 1
    elif group.chunk:
        first = resume - resume % group.chunk
    return {token for token in range(resume) if token >= first}


# -- groups ----------------------------------------------------------------------------------------


def test_of_a_block_managers_groups() -> None:
    config = make_config(
        FullAttentionSpec(block_size=4),
        SlidingWindowSpec(block_size=4, sliding_window=9),
        MambaSpec(block_size=4),
    )
    geometry = Geometry.of(config, num_heads=4, num_ranks=2)
    assert geometry.groups == (FULL, Group("tokens", 4, window=9), STATE)
    assert not geometry.resumes_anywhere and not geometry.streams
    chunked = make_config(ChunkedLocalAttentionSpec(block_size=4, attention_chunk_size=8))
    assert Geometry.of(chunked).groups == (Group("tokens", 4, chunk=8),)
    assert Geometry.of(chunked).streams and not Geometry.of(chunked).resumes_anywhere
    assert Geometry.of(make_config()).resumes_anywhere


def test_what_nobody_else_can_use() -> None:
    config = make_config(CrossAttentionSpec(block_size=4), enable_caching=False)
    with pytest.raises(ConfigError, match="CrossAttentionSpec"):
        Geometry.of(config)


def test_what_an_encoder_makes_is_one_requests_and_of_use_whole() -> None:
    """Its tokens aren't the sequence's: all of them come, whatever is here, and are never hit."""
    spec = CrossAttentionSpec(block_size=4, num_encoder_tokens=10)
    geometry = Geometry.of(make_config(FullAttentionSpec(block_size=4), spec, enable_caching=False))
    heard = geometry.groups[1]
    assert heard == Group("encoder", 4, num_tokens=10)
    assert not geometry.streams and not geometry.resumes_anywhere
    assert geometry.num_encoder_tokens == 10
    tables = tuple(map(BlockId, (1, 2))), tuple(map(BlockId, (3, 4, 5)))
    for have in (0, 4):
        assert wanted(geometry, have, 7) == ((have, 7), (0, 10))
        assert external_blocks(geometry, tables, have) == [*range(1 + have // 4, 6)]
    assert kept(geometry, tables, 7) == tables
    assert listed(geometry, tables, ((4, 7), (0, 10))) == ((0, 2), (3, 4, 5))
    assert covers(geometry, tables, 7) and not covers(geometry, (tables[0], tables[1][:2]), 7)
    assert [heard.written(settled) for settled in (0, 1, 7)] == [0, 10, 10]


@given(groups(), st.integers(0, 60))
def test_first_needed(group: Group, resume: int) -> None:
    assert set(range(group.first_needed(resume), resume)) == needed(group, resume)


# -- heads -----------------------------------------------------------------------------------------

SHARES = [(heads, ranks) for heads, ranks in product(range(1, 9), range(1, 17))]


@pytest.mark.parametrize(("heads", "ranks"), SHARES)
def test_ranks_share_heads_or_do_not(heads: int, ranks: int) -> None:
    fair = max(heads, ranks) % min(heads, ranks) == 0
    assert can_share(heads, ranks) == fair
    if not fair:
        with pytest.raises(ConfigError, match="can't share"):
            Geometry((FULL,), heads, ranks)
        return
    geometry = Geometry((FULL,), heads, ranks)
    spans = [range(*geometry.heads_of(rank)) for rank in range(ranks)]
    copies = max(1, ranks // heads)
    assert sorted(head for span in spans for head in span) == sorted([*range(heads)] * copies)


def test_no_heads_or_no_ranks() -> None:
    assert not can_share(4, 0)
    assert not can_share(0, 4)


@pytest.mark.parametrize("heads", [1, 2, 4, 6, 8, 12])
def test_cuts_bring_each_head_to_each_rank_once(heads: int) -> None:
    """E6: and in as few parts as there are owners that have them."""
    fair = [ranks for ranks in range(1, 25) if can_share(heads, ranks)]
    for readers, owners in product(fair, fair):
        reader = Geometry((FULL,), heads, readers)
        owner = Geometry((FULL,), heads, owners)
        found = cuts(reader, owners)
        for rank in range(readers):
            mine = [cut for cut in found if cut.reader == rank]
            brought = [head for cut in mine for head in range(*cut.heads)]
            assert brought == list(range(*reader.heads_of(rank))), "each once, in order"
            assert len(mine) == len({cut.owner for cut in mine})
            assert len(mine) <= max(1, len(brought))
            for cut in mine:
                assert set(range(*cut.heads)) <= set(range(*owner.heads_of(cut.owner)))


@pytest.mark.parametrize(("heads", "ranks"), [(1, 1), (1, 4), (2, 4), (8, 2)])
def test_as_many_ranks_read_each_of_its_like(heads: int, ranks: int) -> None:
    """Copies of a head are alike; what two ranks have of a state is not."""
    reader = Geometry((FULL, STATE), heads, ranks)
    found = [(cut.reader, cut.owner, cut.heads) for cut in cuts(reader, ranks)]
    assert found == [(rank, rank, reader.heads_of(rank)) for rank in range(ranks)]


def test_e6_a_ticket_of_as_many_ranks_as_can_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client writes them: no node looks through all of them."""
    looks: list[int] = []
    heads_of = Geometry.heads_of

    def look(geometry: Geometry, rank: int) -> Heads:
        looks.append(rank)
        return heads_of(geometry, rank)

    monkeypatch.setattr(Geometry, "heads_of", look)
    found = cuts(Geometry((FULL,), 64, 8), 1 << 16)
    assert [cut.owner for cut in found] == list(range(0, 1 << 16, 1024))
    assert len(looks) < 100


# -- blocks ----------------------------------------------------------------------------------------


def slots_of(group: Group, found: list[Piece]) -> list[tuple[int, int]]:
    assert all(piece.first + piece.num_slots <= group.block_size for piece in found)
    return [
        (piece.block, slot)
        for piece in found
        for slot in range(piece.first, piece.first + piece.num_slots)
    ]


@given(groups(), st.lists(st.integers(0, 9), max_size=12), st.integers(0, 50), st.integers(0, 50))
def test_pieces_are_where_the_tokens_are(
    group: Group, table: list[int], first: int, last: int
) -> None:
    found = pieces(group, [BlockId(block) for block in table], (first, last))
    positions = range(first, last)
    if group.kind == "state":
        positions = positions[-1:]
    where = [divmod(position, group.block_size) for position in positions]
    if any(index >= len(table) or not table[index] for index, _ in where):
        assert found is None
    else:
        slots = [(table[index], 0 if group.kind == "state" else slot) for index, slot in where]
        assert found is not None
        assert slots_of(group, found) == slots


@given(SIZES, SIZES, st.integers(0, 60), st.integers(0, 60))
def test_e1_blocks_of_unlike_sizes(ours: int, theirs: int, first: int, last: int) -> None:
    """The same tokens in the same order, however long a block is on either side."""
    mine, other = Group("tokens", ours), Group("tokens", theirs)
    table = [BlockId(i) for i in range(1, 70)]
    here, there = pieces(mine, table, (first, last)), pieces(other, table, (first, last))
    assert here is not None and there is not None

    def tokens(group: Group, found: list[Piece]) -> list[int]:
        return [(block - 1) * group.block_size + slot for block, slot in slots_of(group, found)]

    assert tokens(mine, here) == tokens(other, there) == list(range(first, last))


@given(st.lists(groups(), min_size=1, max_size=3), st.integers(0, 60), st.integers(0, 60))
def test_wanted_is_what_a_reader_lacks(layers: list[Group], have: int, resume: int) -> None:
    spans = wanted(Geometry(tuple(layers)), have, resume)
    for group, (first, last) in zip(layers, spans, strict=True):
        coming = set(range(first, last))
        missing = {token for token in needed(group, resume) if token >= have}
        assert missing <= coming, "enough"
        assert not coming or last == resume
        for token in coming - missing:  # no more than whole blocks of what is missing
            assert token >= have and group.kind == "tokens"
            blocks = {lacking // group.block_size for lacking in needed(group, resume)}
            assert not blocks or token // group.block_size in blocks


@given(st.lists(groups(), min_size=1, max_size=3), st.integers(0, 60))
def test_kept_is_what_wanted_can_ask_for(layers: list[Group], resume: int) -> None:
    """The owner keeps what any reader, however little it has, may want; and little more."""
    geometry = Geometry(tuple(layers))
    counter = iter(range(1, 1000))
    tables = tuple(
        tuple(BlockId(next(counter)) for _ in range(-(-resume // group.block_size)))
        for group in layers
    )
    left = kept(geometry, tables, resume)
    assert kept(geometry, left, resume) == left
    for have in (0, resume // 2, resume):
        spans = wanted(geometry, have, resume)
        for group, table, span in zip(layers, left, spans, strict=True):
            assert pieces(group, table, span) is not None
    for group, table in zip(layers, left, strict=True):
        blocks = {token // group.block_size for token in needed(group, resume)}
        for index, block in enumerate(table):
            assert not block or index in blocks or not blocks


@given(st.integers(0, 5), st.integers(0, 8))
def test_external_blocks_are_those_behind_the_local_ones(local: int, more: int) -> None:
    geometry = Geometry((FULL, Group("tokens", 8)))
    count = 2 * (local + more)
    small = tuple(BlockId(i + 1) for i in range(count))
    large = tuple(BlockId(100 + i) for i in range(local + more))
    found = external_blocks(geometry, (small, large), 8 * local)
    assert found == [*small[2 * local :], *large[local:]]


def test_null_blocks_are_never_external() -> None:
    """F3: a position that a group skips is no block."""
    table = (BlockId(0), BlockId(0), BlockId(14))
    assert external_blocks(Geometry((STATE,)), (table,), 0) == [14]
    assert pieces(STATE, table, (11, 12)) == [Piece(BlockId(14), 0, 1)]
    assert pieces(STATE, table, (7, 8)) is None


def test_the_owners_block_sizes() -> None:
    window = Group("tokens", 4, window=9)
    assert sized((FULL, window), ()) == (FULL, window)
    assert sized((FULL, window), (16, 8)) == (Group("tokens", 16), Group("tokens", 8, window=9))
    assert sized((FULL, window), (16,)) == ()
    assert sized((FULL, window), (16, 0)) == ()
