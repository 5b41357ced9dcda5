"""Block tables: rows in use are the first ones, and nothing else reaches a kernel."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from kvdist.errors import LocalMisuse
from kvdist.ids import BlockId
from kvdist.sched.plan import NewSequence, ScheduledSequence
from kvdist.worker.rows import Rows
from kvdist.worker.tables import BlockTables, Interleave, kernel_blocks, slot_mapping

CPU = torch.device("cpu")
BLOCKS = st.lists(st.integers(1, 99).map(BlockId), max_size=20)
ACTS = st.lists(
    st.tuples(st.sampled_from(["add", "append", "drop"]), st.integers(0, 99), BLOCKS, BLOCKS),
    max_size=40,
)


@given(ACTS)
def test_what_is_committed_is_what_was_said(
    acts: list[tuple[str, int, list[BlockId], list[BlockId]]],
) -> None:
    tables, plain = BlockTables(2), list[list[list[BlockId]]]()
    for act, number, first, second in acts:
        row = number % len(plain) if plain else 0
        if act == "add":
            assert tables.add([first, second]) == len(plain)
            plain.append([list(first), list(second)])
        elif plain and act == "append":
            tables.append(row, [first, second])
            plain[row] = [plain[row][0] + first, plain[row][1] + second]
        elif plain:
            assert tables.drop(row) == len(plain) - 1
            plain[row] = plain[-1]
            plain.pop()
        for group, (table, committed) in enumerate(
            zip(tables.groups, tables.commit(CPU), strict=True)
        ):
            width = max((len(lists[group]) for lists in plain), default=0)
            assert committed.dtype == torch.int32
            assert committed.tolist() == [
                lists[group] + [0] * (width - len(lists[group])) for lists in plain
            ]
            assert not table.blocks[len(plain) :].any(), "a dropped row left something"


def test_a_commit_is_a_copy() -> None:
    tables = BlockTables(1)
    tables.add([[BlockId(5)]])
    (committed,) = tables.commit(CPU)
    tables.drop(0)
    assert committed.tolist() == [[5]]


@given(st.lists(st.integers(0, 99), min_size=1, max_size=9), st.sampled_from([1, 3, 16]), st.data())
def test_slots(blocks: list[int], size: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, len(blocks) * size - 1), min_size=1))
    table = torch.tensor([[0] * len(blocks), blocks], dtype=torch.int32)
    rows = torch.ones(len(positions), dtype=torch.int64)
    slots = slot_mapping(table, rows, torch.tensor(positions), size)
    assert slots.tolist() == [blocks[p // size] * size + p % size for p in positions]


@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=9),
    st.integers(1, 4),
    st.sampled_from([1, 3, 8]),
    st.data(),
)
def test_a_kernel_with_smaller_blocks_has_the_same_slots(
    blocks: list[int], num_parts: int, size: int, data: st.DataObject
) -> None:
    longest = len(blocks) * num_parts * size - 1
    positions = torch.tensor(data.draw(st.lists(st.integers(0, longest), min_size=1)))
    table = torch.tensor([[0] * len(blocks), blocks], dtype=torch.int32)
    rows = torch.ones_like(positions)
    smaller = kernel_blocks(table, num_parts)
    assert smaller.dtype == torch.int32
    expected = slot_mapping(table, rows, positions, num_parts * size)
    assert torch.equal(slot_mapping(smaller, rows, positions, size), expected)


@given(
    st.lists(st.integers(1, 99), min_size=1, max_size=5, unique=True),
    st.integers(1, 4),
    st.sampled_from([(1, 1), (4, 1), (4, 2), (4, 4), (6, 3)]),
)
def test_ranks_that_share_a_context(
    blocks: list[int], num_ranks: int, sizes: tuple[int, int]
) -> None:
    """Each position is one rank's, no two of a rank share a slot, runs stay together in order."""
    size, run = sizes
    length = len(blocks) * num_ranks * size
    table, positions = torch.tensor([blocks], dtype=torch.int32), torch.arange(length)
    rows, owners = torch.zeros_like(positions), []
    for rank in range(num_ranks):
        slots = slot_mapping(table, rows, positions, size, Interleave(num_ranks, rank, run))
        own = (slots >= 0).nonzero().flatten()
        assert own.tolist() == [p for p in range(length) if p // run % num_ranks == rank]
        assert slots[own].tolist() == [block * size + i for block in blocks for i in range(size)]
        owners += own.tolist()
    assert sorted(owners) == list(range(length))


def new(name: str, *tokens: int) -> NewSequence:
    return NewSequence(name, tokens, ((BlockId(1),),))


def test_rows_follow_when_tables_move() -> None:
    rows = Rows(1, 100)
    for name in "abc":
        rows.add(new(name, 1, 2))
    rows.drop(["a", "unknown", "a"])
    last = rows.extend(ScheduledSequence("c", 0, 2, True, ((BlockId(7),),)))
    assert last.number == 0 and len(rows) == 2
    assert rows.tables.groups[0].blocks[0, :2].tolist() == [1, 7]


def test_tokens_grow() -> None:
    rows = Rows(1, 100)
    rows.add(new("a", 5))
    row = rows.extend(ScheduledSequence("a", 0, 1, True, ((),)))
    for token in range(20):
        row.append(token)
    assert row.tokens.tolist() == [5, *range(20)] and row.tokens.dtype == np.int64


@pytest.mark.parametrize("tokens", [(), (-1,), (100,)])
def test_tokens_that_no_model_knows(tokens: tuple[int, ...]) -> None:
    with pytest.raises(LocalMisuse, match=r"0 \.\. 99"):
        Rows(1, 100).add(new("a", *tokens))


def test_a_plan_that_does_not_fit_what_came_before() -> None:
    rows = Rows(1, 100)
    rows.add(new("a", 1, 2))
    with pytest.raises(LocalMisuse, match="has a row"):
        rows.add(new("a", 1))
    with pytest.raises(LocalMisuse, match="no row"):
        rows.extend(ScheduledSequence("b", 0, 1, True, ((),)))
    with pytest.raises(LocalMisuse, match=r"1 \.\. 3 of 2"):
        rows.extend(ScheduledSequence("a", 1, 2, True, ((),)))
