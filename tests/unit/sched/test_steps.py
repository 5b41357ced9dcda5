"""Steps in flight end in the order of planning."""

from kvdist.sched.plan import StepResult
from kvdist.sched.sequence import Sequence
from kvdist.sched.steps import StepsInFlight, Turn
from tests.make import Node


def test_results_may_overtake_each_other_but_steps_do_not() -> None:
    steps = StepsInFlight()
    first, second = steps.open(), steps.open()
    assert (first.number, second.number, steps.num_running) == (1, 2, 2)
    second.result = StepResult(2)
    assert steps.pop_over() is None
    assert steps.find(2) is None, "its result is there"
    assert steps.find(1) is first
    first.result = StepResult(1)
    assert steps.num_running == 0
    assert steps.pop_over() is first
    assert steps.pop_over() is second
    assert steps.pop_over() is None and not len(steps)


def test_a_step_and_all_after_it() -> None:
    steps = StepsInFlight()
    opened = [steps.open() for _ in range(3)]
    assert list(steps.since(2)) == opened[1:]
    assert steps.find(9) is None


def test_a_turn_is_stale_once_its_sequence_begins_anew() -> None:
    sequence = Sequence(Node().request("r", [1]), max_len=2, arrival=1)
    turn = Turn(sequence, sequence.attempt, 0, 1, True, ())
    assert not turn.stale
    sequence.forget_progress()
    assert turn.stale
