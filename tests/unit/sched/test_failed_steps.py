"""A step that failed: nothing of it counts, and whoever believed in it begins anew."""

import pytest

from kvdist.cache import KVCacheSpec
from kvdist.connector.host import Loaded
from kvdist.sched.budget import SchedulerConfig
from kvdist.sched.plan import StepResult
from kvdist.sched.sequence import SequenceEvent, SequenceStatus
from tests.make import full, mamba
from tests.model.fake_remote import FakeRemote
from tests.rig import Rig


def node(
    *specs: KVCacheSpec, depth: int = 2, budget: int = 16, remote: FakeRemote | None = None
) -> Rig:
    settings = SchedulerConfig(max_num_batched_tokens=budget, max_steps_in_flight=depth)
    rig = Rig(*specs, settings=settings, remote_cache=remote)
    if remote is not None:
        remote.model, remote.memories = rig.worker.model, rig.memories
    return rig


def test_nothing_of_it_can_be_found() -> None:
    rig = node(depth=1)
    (sequence,) = rig.add([1] * 9)
    rig.plan()
    assert len(list(rig.manager.block_pool.cached_blocks())) == 2
    rig.fail_oldest()
    assert not list(rig.manager.block_pool.cached_blocks())
    assert sequence.status is SequenceStatus.PREEMPTED
    rig.run_to_the_end()
    assert rig.scheduler.stats.num_recomputed == 1


def test_who_adopted_something_of_it_begins_anew() -> None:
    rig = node(budget=12)
    first, second = rig.add([1] * 9)[0], rig.add([1] * 9 + [2] * 9)[0]
    rig.plan()
    rig.plan()
    assert second.status.name == "RUNNING"
    assert first.request_id in {s.request_id for s in rig.plans[0].scheduled}
    rig.fail_oldest()
    assert first.status is second.status is SequenceStatus.PREEMPTED
    rig.run_to_the_end()


def test_a_load_behind_something_of_it_begins_anew_once_its_bytes_are_there() -> None:
    remote = FakeRemote(offers={"client-2": 99})
    rig = node(remote=remote)
    rig.add([1] * 9)
    rig.plan()
    (loading,) = rig.add([1] * 20)
    rig.plan()
    assert loading.status.name == "LOADING"
    assert remote.loads[loading.request_id].start == 8
    rig.fail_oldest(lost=True)
    assert loading.status.name == "LOADING"
    remote.land(remote.loads.pop(loading.request_id))
    remote.offers.clear()
    rig.moved(Loaded(loading.request_id))
    assert loading.status is SequenceStatus.WAITING
    assert rig.manager.get_block_ids(loading.request_id) == ([],)
    rig.run_to_the_end()


def test_a_load_that_is_done_and_stands_behind_something_of_it_begins_anew() -> None:
    remote = FakeRemote(offers={"client-2": 99})
    rig = node(remote=remote)
    rig.add([1] * 9)
    rig.plan()
    (loaded,) = rig.add([1] * 20)
    rig.plan()
    remote.land(remote.loads.pop(loaded.request_id))
    rig.moved(Loaded(loaded.request_id))
    assert loaded in rig.scheduler.roster.waiting.owners
    remote.offers.clear()
    rig.fail_oldest()
    assert loaded in rig.scheduler.roster.waiting.others
    rig.run_to_the_end()


def test_what_was_planned_after_it_fails_with_it() -> None:
    rig = node()
    rig.add([1] * 4, max_new_tokens=9)
    rig.plan()
    rig.plan()
    rig.fail_oldest()
    assert len(rig.plans) == 1
    rig.run_oldest()
    rig.run_to_the_end()
    assert rig.scheduler.stats.num_stale_outputs == 0, "its turns are not even looked at"


def test_rows_that_a_lost_plan_would_have_dropped_are_dropped_by_the_next() -> None:
    rig = node(depth=1)
    (first,) = rig.add([1] * 4, max_new_tokens=1)
    rig.step()
    rig.step()
    rig.add([2] * 4)
    plan = rig.plan()
    assert plan is not None and plan.finished_request_ids == (first.request_id,)
    rig.fail_oldest(lost=True)
    plan = rig.plan()
    assert plan is not None and plan.finished_request_ids == (first.request_id,)
    rig.run_to_the_end()


def test_a_row_that_has_come_back_meanwhile_is_not_dropped_again() -> None:
    rig = node()
    (sequence,) = rig.add([1] * 4)
    rig.plan()
    rig.scheduler.roster.give_up(sequence, SequenceEvent.PREEMPT)
    second = rig.plan()
    assert second is not None and second.preempted_request_ids == (sequence.request_id,)
    first = rig.plans.pop(0)
    rig.hear(rig.scheduler.fail_step(first.step))
    third = rig.plan()
    assert third is not None and third.new_sequences
    rig.plans.remove(second)
    rig.hear(rig.scheduler.fail_step(second.step))
    fourth = rig.plan()
    assert fourth is not None and not fourth.preempted_request_ids
    assert rig.scheduler.stats.num_failed_steps == 1
    rig.run_to_the_end()


def test_whose_steps_fail_again_and_again_ends() -> None:
    rig = node(depth=1)
    (sequence,) = rig.add([1] * 9)
    while not rig.ended:
        rig.plan()
        rig.fail_oldest()
    assert rig.ended == {sequence.request_id: SequenceStatus.FINISHED_ERROR}
    assert rig.scheduler.stats.num_failed_steps == 4
    rig.run_to_the_end()


def test_who_is_read_along_keeps_its_blocks_until_the_peer_has_stopped() -> None:
    remote = FakeRemote(reading={"client-1"})
    rig = node(depth=1, remote=remote)
    (sequence,) = rig.add([1] * 9)
    rig.plan()
    rig.fail_oldest()
    assert sequence.status is SequenceStatus.RUNNING
    assert rig.plan() is None
    assert rig.manager.ledger().request == 3
    remote.reading.clear()
    rig.run_to_the_end()


def test_what_an_earlier_step_says_of_it_meanwhile_is_stale() -> None:
    remote = FakeRemote(reading={"client-1"})
    rig = node(remote=remote)
    rig.add([1] * 9)
    rig.plan()
    second = rig.plan()
    assert second is not None
    rig.plans.remove(second)
    rig.hear(rig.scheduler.fail_step(second.step))
    rig.run_oldest()
    assert rig.heard["client-1"] == []
    assert rig.scheduler.stats.num_stale_outputs == 1
    remote.reading.clear()
    rig.run_to_the_end()


def test_nothing_is_lent_of_what_is_worthless() -> None:
    """Found by random work: a state had moved on by a step whose answer was none."""
    remote = FakeRemote(reading={"client-1"})
    rig = node(full(), mamba(), depth=1, remote=remote)
    (sequence,) = rig.add([1] * 9)
    while not rig.heard["client-1"]:
        rig.step()
    plan = rig.plan()
    assert plan is not None
    rig.plans.clear()
    rig.worker.execute(plan)
    rig.hear(rig.scheduler.settle(StepResult(plan.step)))
    rig.abort(sequence)
    assert ("finished", sequence.request_id, 0) in remote.calls
    rig.run_to_the_end()


def test_unknown_and_doubled_results_are_dropped() -> None:
    rig = node(depth=1)
    rig.add([1] * 4, max_new_tokens=2)
    plan = rig.plan()
    assert plan is not None
    rig.plans.clear()
    result = rig.worker.execute(plan)
    assert rig.scheduler.settle(StepResult(99)) == []
    rig.hear(rig.scheduler.settle(result))
    assert rig.scheduler.settle(result) == []
    assert rig.scheduler.fail_step(plan.step) == []
    assert rig.scheduler.stats.num_unknown_messages == 3
    rig.run_to_the_end()


def test_results_that_overtake_each_other() -> None:
    rig = node()
    rig.add([1] * 4, max_new_tokens=9)
    plans = [rig.plan(), rig.plan()]
    rig.plans.clear()
    results = [rig.worker.execute(plan) for plan in plans if plan is not None]
    assert rig.scheduler.settle(results[1]) == []
    rig.hear(rig.scheduler.settle(results[0]))
    assert len(rig.heard["client-1"]) == 2
    rig.run_to_the_end()


def test_an_answer_that_is_none_costs_its_sequence_a_recompute() -> None:
    rig = node(depth=1)
    (sequence,) = rig.add([1] * 4)
    plan = rig.plan()
    assert plan is not None
    rig.plans.clear()
    rig.worker.execute(plan)
    rig.hear(rig.scheduler.settle(StepResult(plan.step)))
    assert sequence.status is SequenceStatus.PREEMPTED
    assert rig.scheduler.stats.num_malformed_outputs == 1
    rig.run_to_the_end()


def run_but_for(rig: Rig, guilty: str, *, start: int = 0) -> None:
    """Until all is over; a step that computes `guilty` from `start` on fails."""
    while not rig.scheduler.idle:
        rig.plan()
        plan = rig.plans[0]
        ends = {
            turn.request_id: turn.num_computed_tokens + turn.num_tokens for turn in plan.scheduled
        }
        if ends.get(guilty, 0) > start:
            rig.fail_oldest()
        else:
            rig.run_oldest()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("start", [0, 20, 32])
def test_only_whose_fault_it_is_ends(depth: int, start: int) -> None:
    """In its prompt's first or second chunk, or after some of its answer."""
    rig = node(depth=depth, budget=16)
    sequences = [rig.add([i] * 30, max_new_tokens=6)[0] for i in range(1, 5)]
    guilty = sequences[1]
    run_but_for(rig, guilty.request_id, start=start)
    for sequence in sequences:
        is_guilty = sequence is guilty
        ended = SequenceStatus.FINISHED_ERROR if is_guilty else SequenceStatus.FINISHED_LENGTH
        assert rig.ended[sequence.request_id] is ended
    assert rig.scheduler.stats.num_failed_steps == 4
    rig.run_to_the_end()


def test_who_is_suspect_runs_by_itself_until_it_is_past_what_failed() -> None:
    rig = node(depth=1, budget=16)
    for i in (1, 2):
        rig.add([i] * 5, max_new_tokens=3)
    for _ in range(2):
        plan = rig.plan()
        assert plan is not None and len(plan.scheduled) == 2
        rig.fail_oldest()
    together = []
    while not rig.scheduler.idle:
        plan = rig.plan()
        assert plan is not None
        together.append(len(plan.scheduled))
        rig.run_oldest()
    assert together == [1, 1, 2, 2]
    assert not rig.scheduler.roster.suspects()


def test_who_fails_in_its_second_chunk_ends_though_the_first_one_is_computed_each_time() -> None:
    settings = SchedulerConfig(max_num_batched_tokens=16, max_steps_in_flight=1)
    rig = Rig(settings=settings, enable_caching=False)
    (sequence,) = rig.add([1] * 30)
    for _ in range(4):
        rig.plan()
        rig.run_oldest()
        rig.plan()
        rig.fail_oldest()
    assert rig.ended == {sequence.request_id: SequenceStatus.FINISHED_ERROR}
    rig.run_to_the_end()
