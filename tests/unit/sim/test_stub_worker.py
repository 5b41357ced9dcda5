"""Any wrong cell gives another token."""

import pytest

from kvdist.cache import KVCacheSpec
from kvdist.ids import BlockId
from kvdist.sched.plan import NewSequence, ScheduledSequence, StepPlan
from kvdist.sim.memory import POISON, Memory
from kvdist.sim.stub_worker import StubWorker
from tests.make import chunked, cross, full, make_config, mamba, window

PROMPT = tuple(range(1, 14))
TABLE = tuple(BlockId(i) for i in (1, 2, 3, 4))
SPECS = [full(), window(5), chunked(8), mamba()]


def a_worker(*specs: KVCacheSpec) -> StubWorker:
    config = make_config(*specs, num_blocks=20, enable_caching=False)
    return StubWorker(config, [Memory(20, 4, [0]), Memory(20, 4, [1])])


def step(number: int, start: int, end: int, known: int, new: bool = False) -> StepPlan:
    """One chunk of the one sequence."""
    return StepPlan(
        number,
        (NewSequence("r", PROMPT, (TABLE,), (1, 2, 3)),) if new else (),
        (ScheduledSequence("r", start, end - start, end == known, ((),)),),
        (),
        (),
        (),
    )


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
@pytest.mark.parametrize("rank", [0, 1])
def test_whatever_is_read_decides(spec: KVCacheSpec, rank: int) -> None:
    perfect = a_worker(spec).model.perfect_tokens(PROMPT, 1)[0]
    changed = set()
    for block in range(1, 4):
        for slot in range(4):
            worker = a_worker(spec)
            worker.execute(step(1, 0, 12, 13, new=True))
            worker.memories[rank].cells(block, rank)[slot] ^= 1
            token = worker.execute(step(2, 12, 13, 13)).sampled["r"].token_ids[0]
            if token != perfect:
                changed.add((block - 1) * 4 + slot)
    read = {
        "FullAttentionSpec": set(range(12)),
        "SlidingWindowSpec": {8, 9, 10, 11},
        "ChunkedLocalAttentionSpec": {8, 9, 10, 11},
        "MambaSpec": {8},  # the state's place is the first slot of its block
    }[type(spec).__name__]
    assert changed == read


def test_an_error_in_an_early_chunk_is_seen_in_the_end() -> None:
    worker = a_worker(window(5))
    perfect = worker.model.perfect_tokens(PROMPT, 1)[0]
    worker.execute(step(1, 0, 4, 13, new=True))
    worker.memories[0].cells(1, 0)[3] = POISON
    worker.execute(step(2, 4, 8, 13))
    worker.execute(step(3, 8, 12, 13))
    assert worker.execute(step(4, 12, 13, 13)).sampled["r"].token_ids != (perfect,)


def test_the_encoders_cells_are_read_in_every_step() -> None:
    worker = a_worker(cross())
    perfect = worker.model.perfect_tokens(PROMPT, 1, (1, 2, 3))[0]
    worker.execute(step(1, 0, 12, 13, new=True))
    assert worker.execute(step(2, 12, 13, 13)).sampled["r"].token_ids == (perfect,)
    worker.memories[1].cells(1, 1)[2] = POISON
    assert worker.execute(step(3, 13, 14, 14)).sampled["r"].token_ids != (
        worker.model.perfect_tokens((*PROMPT, perfect), 1, (1, 2, 3))[0],
    )


def test_a_dropped_row_is_gone_and_dropping_it_again_is_nothing() -> None:
    worker = a_worker(full())
    worker.execute(step(1, 0, 12, 13, new=True))
    for ids in (("r",), ("r", "unknown")):
        worker.execute(StepPlan(2, (), (), ids, ids, ()))
    assert not worker.rows
