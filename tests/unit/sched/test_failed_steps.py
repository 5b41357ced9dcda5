"""A step that failed: nothing of it counts, and whoever believed in it begins anew."""

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
