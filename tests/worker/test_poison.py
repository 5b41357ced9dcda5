"""At check level 2 a read of what nobody has written doesn't pass in silence."""

from collections.abc import Sequence

import pytest

from kvdist import check
from kvdist.errors import InvariantViolation
from kvdist.ids import BlockId
from kvdist.sched.plan import NewSequence, ScheduledSequence, StepPlan
from kvdist.worker.model import Model
from kvdist.worker.runner import ModelRunner
from tests.worker.tiny import network, stream

FAMILIES = ["llama", "mistral", "gpt-oss"]


def a_runner(family: str) -> ModelRunner:
    model = Model.of(network(family))
    return ModelRunner(model, model.layout(4), num_blocks=40)


class Steps:
    """Sequences without a scheduler: blocks are as the test says, the same numbers everywhere."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.num_groups = len(runner.pool.layout.kv_cache_groups)
        self._number = 0

    def _blocks(self, first: Sequence[int]) -> tuple[tuple[BlockId, ...], ...]:
        """A group has every n-th block."""
        return tuple(
            tuple(BlockId(self.num_groups * block - group) for block in first)
            for group in range(self.num_groups)
        )

    def begin(self, name: str, length: int, num_computed: int, blocks: Sequence[int]) -> None:
        """All tokens from `num_computed` on are computed."""
        new = NewSequence(name, stream(1)[:length], self._blocks(blocks))
        turn = ScheduledSequence(
            name, num_computed, length - num_computed, True, ((),) * self.num_groups
        )
        self._run(new, turn)

    def go_on(self, name: str, num_computed: int, blocks: Sequence[int]) -> None:
        """One token more."""
        self._run(None, ScheduledSequence(name, num_computed, 1, True, self._blocks(blocks)))

    def _run(self, new: NewSequence | None, turn: ScheduledSequence) -> None:
        self._number += 1
        news = () if new is None else (new,)
        self.runner.execute(StepPlan(self._number, news, (turn,), (), (), ()))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_never_written(family: str) -> None:
    with pytest.raises(InvariantViolation, match=r"layer 0 reads token 0 .*nobody has written"):
        Steps(a_runner(family)).begin("a", 7, 4, [1, 2])


@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_written_in_part(family: str) -> None:
    steps = Steps(a_runner(family))
    steps.begin("a", 6, 0, [1, 2])
    steps.begin("b", 6, 5, [1, 2])
    with pytest.raises(InvariantViolation, match="reads token 6 "):
        steps.begin("c", 9, 7, [1, 2, 3])


@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_there_before_the_block_was_taken_for_something_else(family: str) -> None:
    steps = Steps(a_runner(family))
    steps.begin("a", 8, 0, [1, 2])
    steps.begin("b", 4, 0, [3])
    steps.go_on("b", 4, [2])
    with pytest.raises(InvariantViolation, match="reads token 5 "):
        steps.begin("c", 9, 8, [1, 2, 4])


def test_a_state_that_nobody_left() -> None:
    with pytest.raises(InvariantViolation, match="state in block 1 is read"):
        Steps(a_runner("mamba2")).begin("a", 7, 4, [1, 2])


def test_below_level_2_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "level", 1)
    Steps(a_runner("llama")).begin("a", 7, 4, [1, 2])
