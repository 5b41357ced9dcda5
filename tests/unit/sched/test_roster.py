"""How sequences leave, from wherever they are."""

import pytest

from kvdist.connector.host import Loaded
from kvdist.sched.budget import SchedulerConfig
from kvdist.sched.sequence import Sequence, SequenceEvent, SequenceStatus
from tests.model.fake_remote import FakeRemote
from tests.rig import Rig


def brought_to(state: str) -> tuple[Rig, Sequence]:
    """One sequence in that state, on a node that has nothing else to do."""
    remote = FakeRemote(offers={"client-1": 99} if state in ("loading", "owner") else {})
    settings = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=1)
    rig = Rig(settings=settings, remote_cache=remote)
    remote.model, remote.memories = rig.worker.model, rig.memories
    (sequence,) = rig.add([1] * 9)
    if state != "waiting":
        rig.plan()
    if state == "owner":
        remote.land(remote.loads.pop(sequence.request_id))
        rig.moved(Loaded(sequence.request_id))
    if state == "preempted":
        rig.scheduler.roster.give_up(sequence, SequenceEvent.PREEMPT)
    return rig, sequence


@pytest.mark.parametrize("state", ["waiting", "loading", "owner", "running", "preempted"])
def test_aborted_anywhere(state: str) -> None:
    rig, sequence = brought_to(state)
    remote = rig.scheduler.remote_cache
    assert isinstance(remote, FakeRemote)
    assert rig.abort(sequence)
    assert rig.ended == {sequence.request_id: SequenceStatus.FINISHED_ABORTED}
    assert [name for call, name, _ in remote.calls if call == "finished"] == ["client-1"]
    assert not rig.abort(sequence)
    if state == "loading":
        assert rig.manager.ledger().pull == 3
        remote.land(remote.loads.pop(sequence.request_id))
        rig.moved(Loaded(sequence.request_id))
    rig.run_to_the_end()


def test_blocks_of_a_running_step_are_free_when_it_is_over() -> None:
    rig, sequence = brought_to("running")
    rig.abort(sequence)
    assert rig.manager.ledger().free < rig.manager.config.num_blocks - 1
    rig.run_oldest()
    assert rig.manager.ledger().free == rig.manager.config.num_blocks - 1
    assert rig.scheduler.stats.num_stale_outputs == 1


def test_who_is_preempted_has_its_old_place_and_counts_as_such() -> None:
    rig, sequence = brought_to("running")
    rig.add([2] * 9)
    rig.scheduler.roster.give_up(sequence, SequenceEvent.PREEMPT)
    assert next(iter(rig.scheduler.roster.waiting)) is sequence
    assert sequence.request.num_preemptions == rig.scheduler.stats.num_preemptions == 1
    rig.run_to_the_end()
