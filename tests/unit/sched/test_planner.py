"""Whose turn it is, and who has to make room."""

from typing import Any

from kvdist.connector.host import Loaded, LoadFailed, LoadQuiet
from kvdist.sched.budget import SchedulerConfig
from kvdist.sched.plan import StepPlan
from kvdist.sched.sequence import Sequence, SequenceStatus
from tests.make import full, mamba
from tests.model.fake_remote import FakeRemote
from tests.rig import Rig


def node(
    num_blocks: int = 20,
    *specs: Any,
    remote: FakeRemote | None = None,
    enable_partial_hits: bool = False,
    **settings: Any,
) -> Rig:
    config = SchedulerConfig(**{"max_num_batched_tokens": 16, "max_steps_in_flight": 1, **settings})
    rig = Rig(
        *specs,
        settings=config,
        remote_cache=remote,
        num_blocks=num_blocks + 1,
        enable_partial_hits=enable_partial_hits,
    )
    if remote is not None:
        remote.model, remote.memories = rig.worker.model, rig.memories
    return rig


def scheduled(plan: StepPlan | None) -> dict[str, int]:
    assert plan is not None
    return {s.request_id: s.num_tokens for s in plan.scheduled}


def names(*sequences: Sequence) -> list[str]:
    return [sequence.request_id for sequence in sequences]


# -- turns -----------------------------------------------------------------------------------------


def test_prompts_are_cut_to_the_budget() -> None:
    rig = node()
    first, second = rig.add([1] * 20)[0], rig.add([2] * 10)[0]
    assert scheduled(rig.plan()) == {first.request_id: 16}
    rig.run_oldest()
    assert scheduled(rig.plan()) == {first.request_id: 4, second.request_id: 10}
    rig.run_to_the_end()


def test_without_chunks_a_prompt_waits_until_it_fits() -> None:
    rig = node(enable_chunked_prefill=False)
    first, second = rig.add([1] * 10, max_new_tokens=2)[0], rig.add([2] * 8)[0]
    assert scheduled(rig.plan()) == {first.request_id: 10}
    rig.run_oldest()
    assert scheduled(rig.plan()) == {first.request_id: 1, second.request_id: 8}
    rig.run_to_the_end()


def test_no_more_run_than_may() -> None:
    rig = node(max_num_seqs=2)
    sequences = [rig.add([i] * 3)[0] for i in range(3)]
    assert list(scheduled(rig.plan())) == names(*sequences[:2])
    rig.run_to_the_end()


def test_first_come_first_served_or_by_priority() -> None:
    for policy, order in (("fcfs", [0, 1, 2]), ("priority", [2, 0, 1])):
        rig = node(policy=policy)
        sequences = [rig.add([i] * 8, priority=p)[0] for i, p in enumerate((1, 1, 0))]
        assert list(scheduled(rig.plan())) == names(*(sequences[i] for i in order[:2]))
        rig.run_to_the_end()


def test_nobody_passes_one_that_lacks_blocks() -> None:
    rig = node(8)
    running = rig.add([1] * 15, max_new_tokens=9)[0]
    large, small = rig.add([2] * 20)[0], rig.add([3] * 2)[0]
    assert list(scheduled(rig.plan())) == names(running)
    rig.run_oldest()
    assert list(scheduled(rig.plan())) == names(running)
    assert large.status is small.status is SequenceStatus.WAITING
    rig.run_to_the_end()


def test_with_overlap_the_next_token_is_planned_before_the_last_is_known() -> None:
    rig = node(max_steps_in_flight=2)
    rig.add([1] * 4, max_new_tokens=2)
    first, second = rig.plan(), rig.plan()
    assert first is not None and second is not None
    assert second.scheduled[0].num_computed_tokens == 4
    assert rig.plan() is None, "two steps at most, and no third token is wanted"
    rig.run_oldest()
    assert rig.plan() is None
    rig.run_to_the_end()
    assert rig.scheduler.stats.num_stale_outputs == 0


def test_a_stop_token_makes_what_was_planned_after_it_stale() -> None:
    rig = node(max_steps_in_flight=2)
    rig.add([1] * 4, max_new_tokens=9, stop_at=2)
    rig.run_to_the_end()
    assert rig.scheduler.stats.num_stale_outputs == 1


def test_sequences_of_one_request_share_its_prompt() -> None:
    rig = node()
    sequences = rig.add([1] * 12, n=3)
    assert list(scheduled(rig.plan()).values()) == [12, 4]
    tables = [rig.manager.get_block_ids(name)[0] for name in names(*sequences[:2])]
    assert tables[0][:2] == tables[1][:2]
    rig.run_to_the_end()


def test_a_state_that_this_step_computes_is_hit_later() -> None:
    rig = node(20, full(), mamba())
    _, second = rig.add([1] * 9, n=2)
    assert list(scheduled(rig.plan()).values()) == [8]
    while second.status is SequenceStatus.WAITING:
        rig.run_oldest()
        plan = rig.plan()
    assert plan is not None and plan.scheduled[-1].num_computed_tokens == 8
    rig.run_to_the_end()


def test_each_feature_can_be_off() -> None:
    for off in (
        {"enable_caching": False},
        {"settings": SchedulerConfig(max_num_batched_tokens=64, enable_chunked_prefill=False)},
        {"settings": SchedulerConfig(max_steps_in_flight=1)},
        {"settings": SchedulerConfig(num_lookahead_tokens=2)},
    ):
        rig = Rig(**off)
        rig.add([1] * 20, n=2)
        rig.run_to_the_end()


def test_drafts_are_verified_with_overlap_too() -> None:
    rig = node(max_steps_in_flight=2, num_lookahead_tokens=2)
    rig.add([1] * 4, max_new_tokens=20)
    num_plans = num_drafts = 0
    while (plan := rig.plan()) or rig.plans:
        num_plans += plan is not None
        num_drafts += len(plan.scheduled[0].draft_token_ids) if plan else 0
        rig.run_oldest()
    assert num_drafts > 0
    assert num_plans < 20
    rig.run_to_the_end()


def test_hits_inside_a_block_are_copied_and_nothing_is_loaded_behind_them() -> None:
    remote = FakeRemote(offers={"client-2": 99})
    rig = node(20, full(4), mamba(8), remote=remote, enable_partial_hits=True)
    rig.add([1] * 14)
    while not rig.ended:
        rig.step()
    rig.add([1] * 13 + [2] * 4)
    plan = rig.plan()
    assert plan is not None and plan.scheduled[0].num_computed_tokens == 12
    assert plan.block_copies
    assert ("admitted", "client-2", 0) in remote.calls
    rig.run_to_the_end()


# -- making room -----------------------------------------------------------------------------------


def test_the_last_makes_room_and_comes_back_to_its_place() -> None:
    rig = node(8)
    first, last = rig.add([1] * 7, max_new_tokens=20)[0], rig.add([2] * 7, max_new_tokens=20)[0]
    while last.status is not SequenceStatus.PREEMPTED:
        assert rig.step()
    assert first.status is SequenceStatus.RUNNING
    rig.run_to_the_end()
    assert rig.scheduler.stats.num_preemptions > 0
    assert list(rig.ended) == names(first, last)


def test_blocks_that_a_step_will_give_back_are_waited_for() -> None:
    """One is preempted; that its blocks come back only when its step is over costs no other."""
    rig = node(9, max_num_batched_tokens=64, max_steps_in_flight=2)
    for i in range(4):
        rig.add([i] * 7, max_new_tokens=9)
    while not rig.scheduler.stats.num_preemptions:
        assert rig.step()
    assert rig.scheduler.stats.num_preemptions == 1
    assert len(rig.scheduler.roster.running) == 3
    rig.run_to_the_end()


def test_who_lacks_a_block_waits_for_the_steps_that_may_give_one_back() -> None:
    rig = node(8, max_num_batched_tokens=64, max_steps_in_flight=2)
    rig.add([1] * 12, max_new_tokens=5)
    rig.add([2] * 12, max_new_tokens=9)
    rig.run_to_the_end()
    assert not rig.scheduler.stats.num_preemptions


def test_who_is_read_along_is_not_preempted() -> None:
    remote = FakeRemote()
    rig = node(8, remote=remote)
    first, last = rig.add([1] * 7, max_new_tokens=20)[0], rig.add([2] * 7, max_new_tokens=20)[0]
    remote.reading = {last.request_id}
    for _ in range(100):
        if ("may_preempt", last.request_id, 0) in remote.calls:
            break
        rig.step()
    assert ("may_preempt", last.request_id, 0) in remote.calls
    for _ in range(20):
        rig.step()
    assert last.status is SequenceStatus.RUNNING
    assert first.status is SequenceStatus.RUNNING
    remote.reading.clear()
    rig.run_to_the_end()


# -- loads -----------------------------------------------------------------------------------------


def test_who_is_not_known_yet_is_passed_and_holds_nothing() -> None:
    remote = FakeRemote(offers={"client-2": None})
    rig = node(remote=remote)
    rig.add([1] * 8)
    while not rig.ended:
        rig.step()
    pending, other = rig.add([1] * 9)[0], rig.add([2] * 3)[0]
    assert list(scheduled(rig.plan())) == names(other)
    assert pending.status is SequenceStatus.WAITING
    assert rig.manager.get_block_ids(pending.request_id) == ([],)
    remote.offers.clear()
    rig.run_to_the_end()


def test_who_is_not_known_yet_is_not_asked_at_each_step() -> None:
    """However many they are: a step costs the same beside them."""
    waiting = [f"client-{i}" for i in range(1, 51)]
    remote = FakeRemote(offers=dict.fromkeys(waiting))
    rig = node(60, remote=remote)
    for i in range(50):
        rig.add([i] * 9, max_new_tokens=1)
    rig.add([99] * 9, max_new_tokens=9)
    while not rig.ended:
        rig.step()
    asked = [name for call, name, _ in remote.calls if call == "match" and name in waiting]
    assert asked == waiting, "once each, by the first step"
    del remote.offers["client-7"]
    while len(rig.ended) < 2:
        rig.step()
    assert [call for call in remote.calls if call[:2] == ("match", "client-7")][1:], "asked again"
    remote.offers.clear()
    rig.run_to_the_end()


def test_who_waits_for_an_answer_can_go_away() -> None:
    remote = FakeRemote(offers={"client-1": None})
    rig = node(remote=remote)
    (sequence,) = rig.add([1] * 9)
    assert rig.plan() is None and not rig.scheduler.idle
    assert rig.abort(sequence)
    remote.offers.clear()
    assert rig.plan() is None and rig.scheduler.idle


def test_who_is_refused_ends_and_is_passed() -> None:
    remote = FakeRemote(refusals={"client-1": "the owner says gone"})
    rig = node(remote=remote)
    refused, other = rig.add([1] * 9)[0], rig.add([2] * 3)[0]
    assert list(scheduled(rig.plan())) == names(other)
    assert rig.ended == {refused.request_id: SequenceStatus.FINISHED_ERROR}
    assert rig.reasons == {refused.request_id: "the owner says gone"}
    rig.run_to_the_end()


def test_nobody_is_left_when_all_are_refused() -> None:
    remote = FakeRemote(refusals={"client-1": "the owner says gone"})
    rig = node(remote=remote)
    rig.add([1] * 9)
    assert rig.plan() is None
    assert rig.scheduler.idle


def test_a_refusal_holds_where_a_hit_ends_inside_a_block() -> None:
    remote = FakeRemote(refusals={"client-2": "the owner says gone"})
    rig = node(20, full(4), mamba(8), remote=remote, enable_partial_hits=True)
    rig.add([1] * 14)
    while not rig.ended:
        rig.step()
    rig.add([1] * 13 + [2] * 4)
    assert rig.plan() is None
    assert rig.ended["client-2"] is SequenceStatus.FINISHED_ERROR


def test_a_load_runs_when_its_bytes_are_there() -> None:
    remote = FakeRemote(offers={"client-1": 99})
    rig = node(remote=remote)
    (sequence,) = rig.add([1] * 10)
    assert rig.plan() is None
    assert sequence.status is SequenceStatus.LOADING
    assert rig.plan() is None and not rig.scheduler.idle
    remote.land(remote.loads.pop(sequence.request_id))
    rig.moved(Loaded(sequence.request_id))
    assert scheduled(rig.plan()) == {sequence.request_id: 1}
    rig.run_to_the_end()
    assert rig.scheduler.stats.num_external_tokens == 10


def test_states_are_loaded_to_the_last_token_but_one() -> None:
    remote = FakeRemote(offers={"client-1": 99})
    rig = node(20, full(), mamba(), remote=remote)
    (sequence,) = rig.add([1] * 10)
    rig.plan()
    assert remote.loads[sequence.request_id].end == 9
    remote.land(remote.loads.pop(sequence.request_id))
    rig.moved(Loaded(sequence.request_id))
    rig.run_to_the_end()


def test_what_a_load_still_needs_is_nobody_elses() -> None:
    """Without the reservation the second would fit now, and then one of them would lack a block."""
    remote = FakeRemote(offers={"client-1": 99, "client-2": 99})
    rig = node(10, remote=remote, num_lookahead_tokens=4)
    first, second = rig.add([1] * 16, max_new_tokens=4)[0], rig.add([2] * 12, max_new_tokens=4)[0]
    rig.plan()
    assert first.status.name == "LOADING"
    assert second.status.name == "WAITING"
    remote.land(remote.loads.pop(first.request_id))
    rig.moved(Loaded(first.request_id))
    while second.status is SequenceStatus.WAITING:
        rig.step()
    remote.land(remote.loads.pop(second.request_id))
    rig.moved(Loaded(second.request_id))
    remote.offers.clear()
    rig.run_to_the_end()


def test_what_is_loaded_and_waits_for_a_place_keeps_its_reservation() -> None:
    remote = FakeRemote(offers={"client-3": 99, "client-4": 99})
    rig = node(12, remote=remote, max_num_seqs=2, num_lookahead_tokens=1)
    for i in range(2):
        rig.add([i], max_new_tokens=9)
    third, fourth = rig.add([3] * 16, max_new_tokens=4)[0], rig.add([4] * 12, max_new_tokens=4)[0]
    rig.plan()
    assert third.status.name == "LOADING"
    remote.land(remote.loads.pop(third.request_id))
    rig.moved(Loaded(third.request_id))
    rig.run_oldest()
    rig.plan()
    assert third in rig.scheduler.roster.waiting.owners
    free = rig.manager.ledger().free
    alone = rig.scheduler._planner.admission
    assert alone.missing(fourth) <= free < alone.missing(fourth) + alone.missing(third)
    assert fourth.status.name == "WAITING"
    while fourth.status is SequenceStatus.WAITING:
        rig.step()
    remote.land(remote.loads.pop(fourth.request_id))
    rig.moved(Loaded(fourth.request_id))
    remote.offers.clear()
    rig.run_to_the_end()


def test_a_state_that_a_step_in_flight_moves_on_is_not_lent() -> None:
    for specs, num_tokens in (((full(),), 6), ((full(), mamba()), 0)):
        remote = FakeRemote()
        rig = node(20, *specs, remote=remote, max_steps_in_flight=2)
        (sequence,) = rig.add([1] * 4, max_new_tokens=9, stop_at=2)
        rig.run_to_the_end()
        assert ("finished", sequence.request_id, num_tokens) in remote.calls


def test_a_state_behind_drafts_that_come_after_the_end_is_not_lent() -> None:
    """Found by random work: a stop token among drafts that were right."""
    lent = set()
    for stop_at in range(12):
        remote = FakeRemote()
        rig = node(20, full(), mamba(scratch=2), remote=remote, num_lookahead_tokens=2)
        rig.add([1] * 4, max_new_tokens=14, stop_at=stop_at)
        rig.run_to_the_end()
        lent |= {number == 0 for call, _, number in remote.calls if call == "finished"}
    assert lent == {False, True}


def test_a_failed_load_is_tried_again_or_is_the_end() -> None:
    remote = FakeRemote(offers={"client-1": 99})
    rig = node(remote=remote)
    (sequence,) = rig.add([1] * 10)
    for again in (True, False):
        rig.plan()
        load = remote.loads.pop(sequence.request_id)
        rig.moved(LoadFailed(sequence.request_id, "gone", again=again))
        assert rig.manager.ledger().quarantine == 3
        remote.scribble(load.block_ids(rig.worker.model))
        rig.moved(LoadQuiet("r", load.block_ids(rig.worker.model)))  # type: ignore[arg-type]
    assert rig.ended == {sequence.request_id: SequenceStatus.FINISHED_ERROR}
    rig.run_to_the_end()


def test_who_is_aborted_while_bytes_land_leaves_its_blocks_until_they_have() -> None:
    remote = FakeRemote(offers={"client-1": 99, "client-2": 99})
    rig = node(remote=remote)
    loaded, failed = rig.add([1] * 10)[0], rig.add([2] * 10)[0]
    rig.plan()
    assert rig.abort(loaded) and rig.abort(failed)
    assert len(rig.ended) == 2, "their clients have heard"
    assert rig.manager.ledger().pull == 6
    load = remote.loads.pop(failed.request_id)
    rig.moved(LoadFailed(failed.request_id, "gone", again=True))
    rig.moved(LoadQuiet("r", load.block_ids(rig.worker.model)))  # type: ignore[arg-type]
    remote.land(remote.loads.pop(loaded.request_id))
    rig.moved(Loaded(loaded.request_id))
    assert len({*rig.manager.block_pool.cached_blocks()}) == 2, "and others can use what came"
    rig.run_to_the_end()
