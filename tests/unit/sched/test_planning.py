"""The delta protocol: what the worker is told, and which rows it drops."""

from kvdist.sched.planning import Planning, WorkerRows
from kvdist.sched.sequence import Sequence, SequenceStatus
from kvdist.sched.steps import StepInFlight, Turn
from tests.make import Node


def test_new_ones_come_whole_others_with_what_was_added() -> None:
    node, rows = Node(), WorkerRows()
    request = node.request("r", range(6))
    sequence = Sequence(request, max_len=20, arrival=1)
    blocks = node.manager.allocate_slots(request, 6, node.manager.get_computed_blocks(request))
    planning = Planning(StepInFlight(1), node.manager, 10)
    planning.add(Turn(sequence, 0, 0, 6, True, ()), blocks)
    plan = planning.plan((), rows, 0)
    (new,), (scheduled,) = plan.new_sequences, plan.scheduled
    assert (new.token_ids, new.block_ids) == (tuple(range(6)), ((1, 2),))
    assert scheduled.new_block_ids == ((),)
    assert (planning.num_tokens_left, sequence.num_pending_tokens) == (4, 1)
    assert (request.num_computed_tokens, request.num_in_flight_tokens) == (6, 6)

    request.append_output_token_ids([1, 2, 3])
    blocks = node.manager.allocate_slots(request, 3)
    planning = Planning(StepInFlight(2), node.manager, 10)
    planning.add(Turn(sequence, 0, 6, 3, True, (2, 3)), blocks)
    plan = planning.plan((), rows, 0)
    assert not plan.new_sequences
    (scheduled,) = plan.scheduled
    assert (scheduled.num_computed_tokens, scheduled.num_tokens) == (6, 1)
    assert (scheduled.new_block_ids, scheduled.draft_token_ids) == (((3,),), (2, 3))


def test_a_turn_without_tokens_is_not_the_workers_business() -> None:
    node = Node()
    sequence = Sequence(node.request("r", range(6)), max_len=6, arrival=1, prefill_only=True)
    planning = Planning(StepInFlight(1), node.manager, 10)
    planning.add(Turn(sequence, 0, 5, 0, False, ()), None)
    assert not planning.scheduled and not sequence.on_worker
    assert sequence.num_turns_in_flight == 1


def test_rows_are_dropped_once_and_again_after_a_failed_step() -> None:
    node, rows = Node(), WorkerRows()
    ended, preempted, unknown = (
        Sequence(node.request(name, [1]), max_len=2, arrival=1) for name in "abc"
    )
    ended.on_worker = preempted.on_worker = True
    ended.status = SequenceStatus.FINISHED_STOPPED
    for sequence in (ended, preempted, unknown, ended):
        rows.drop(sequence)
    step = StepInFlight(1)
    plan = Planning(step, node.manager, 1).plan((), rows, 0)
    assert (plan.finished_request_ids, plan.preempted_request_ids) == (("a",), ("b",))
    assert rows.take() == ((), ())
    rows.drop_again(step)
    assert rows.take() == (("a",), ("b",))
