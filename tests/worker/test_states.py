"""States: what goes into one call, and what is left of a block's earlier life."""

import pytest
import torch

from kvdist.ids import BlockId
from kvdist.sched.plan import NewSequence, ScheduledSequence
from kvdist.worker.batch import Piece
from kvdist.worker.model import Model
from kvdist.worker.pool import KVPool
from kvdist.worker.rows import Rows
from kvdist.worker.states import StatePart, States
from tests.worker.serving import Engine
from tests.worker.test_greedy import prompts, serve
from tests.worker.tiny import WITH_STATES, network

SIZE = 4


@pytest.fixture
def rows() -> Rows:
    return Rows(1, 100)


@pytest.fixture
def states() -> States:
    model = Model.of(network("mamba2"))
    return States(model.state_layers, 4, KVPool(model.layout(SIZE), 9, torch.device("cpu")))


def piece(rows: Rows, name: str, table: tuple[int, ...], start: int, num_tokens: int) -> Piece:
    blocks = tuple(BlockId(block) for block in table)
    rows.add(NewSequence(name, (1,) * (start + num_tokens), (blocks,)))
    turn = ScheduledSequence(name, start, num_tokens, True, ((),))
    return Piece(rows.extend(turn), start, num_tokens, True)


def calls(states: States, rows: Rows, *pieces: Piece) -> list[int]:
    found = list(states.calls(pieces, rows.tables))
    assert [piece for some in found for piece in some] == list(pieces)
    return [len(some) for some in found]


def test_single_tokens_go_together_and_a_chunk_goes_alone(states: States, rows: Rows) -> None:
    first, second = piece(rows, "a", (1, 2), 5, 1), piece(rows, "b", (3,), 2, 1)
    chunk, last = piece(rows, "c", (4, 5), 4, 3), piece(rows, "d", (6,), 1, 1)
    assert calls(states, rows, first, second, chunk, last) == [2, 1, 1]


def test_a_first_token_goes_alone(states: States, rows: Rows) -> None:
    pieces = [piece(rows, "a", (1,), 0, 1), piece(rows, "b", (2,), 0, 1)]
    assert calls(states, rows, *pieces) == [1, 1]


def test_who_reads_what_the_call_writes_waits_for_the_next(states: States, rows: Rows) -> None:
    writes = piece(rows, "a", (1,), 3, 1)  # the last token of block 1
    other = piece(rows, "b", (2,), 2, 1)
    reads = piece(rows, "c", (1, 3), 4, 1)
    assert calls(states, rows, writes, other, reads) == [2, 1]


@pytest.mark.parametrize("family", WITH_STATES)
def test_what_was_in_a_block_before_is_never_read(family: str) -> None:
    engine = Engine(Model.of(network(family)), block_size=4, max_num_batched_tokens=24)
    engine.runner.pool.region[1:].view(torch.float32).fill_(torch.nan)
    serve(family, engine, prompts(2))


def test_parts_begin_where_any_dtype_can() -> None:
    assert StatePart((3, 5), torch.bfloat16).num_bytes == 32
    assert StatePart((4,), torch.float32).num_bytes == 16
