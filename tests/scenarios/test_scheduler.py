"""Failures that happened to others, as far as a scheduler alone can have them; by their rows."""

from kvdist.connector.host import BlocksReturned, Loaded
from kvdist.ids import BlockId
from kvdist.sched.budget import SchedulerConfig
from kvdist.sched.plan import SampledTokens, StepPlan, StepResult
from kvdist.sched.sequence import SequenceEvent, SequenceStatus
from tests.model.fake_remote import FakeRemote
from tests.rig import Rig


def node(num_blocks: int, *, lookahead: int = 0, depth: int = 2, seqs: int = 8) -> Rig:
    """Blocks of four tokens; `num_blocks` are usable."""
    settings = SchedulerConfig(
        max_num_batched_tokens=64,
        max_num_seqs=seqs,
        max_steps_in_flight=depth,
        num_lookahead_tokens=lookahead,
    )
    remote = FakeRemote()
    rig = Rig(settings=settings, remote_cache=remote, num_blocks=num_blocks + 1)
    remote.model, remote.memories = rig.worker.model, rig.memories
    return rig


def remote_of(rig: Rig) -> FakeRemote:
    assert isinstance(rig.scheduler.remote_cache, FakeRemote)
    return rig.scheduler.remote_cache


def finish_load(rig: Rig, name: str) -> None:
    remote = remote_of(rig)
    remote.land(remote.loads.pop(name))
    rig.moved(Loaded(name))


def test_a13() -> None:
    """A load that doesn't fit as a whole holds nothing of it, and waits."""
    rig = node(12)
    (first,) = rig.add([1] * 20, max_new_tokens=1)
    plan = rig.plan()
    remote_of(rig).offers = {"client-2": 40}
    (second,) = rig.add([2] * 40, max_new_tokens=4)
    before = [block.block_id for block in rig.manager.block_pool.free_block_queue]
    rig.plan()
    assert second.status.name == "WAITING"
    assert [block.block_id for block in rig.manager.block_pool.free_block_queue] == before
    assert rig.manager.ledger().pull == 0
    assert plan is not None
    while not first.status.finished:
        rig.step()
    rig.plan()
    assert second.status is SequenceStatus.LOADING
    finish_load(rig, second.request_id)
    rig.run_to_the_end()


def test_c1() -> None:
    """Aborted at any time, queued ones too: told once, and nothing is left."""
    rig = node(12)
    for i in range(1000):
        (sequence,) = rig.add([i % 3] * (1 + i % 9), max_new_tokens=3)
        for _ in range(i % 4):
            rig.step()
        known = not sequence.status.finished
        assert rig.abort(sequence) == known
        assert not rig.abort(sequence)
    rig.run_to_the_end()
    told = [name for call, name, _ in remote_of(rig).calls if call == "finished"]
    assert sorted(told) == sorted(rig.sequences)


def test_f6() -> None:
    """After a load nobody is asked again, so nothing is loaded over it."""
    rig = node(12)
    remote_of(rig).offers = {"client-1": 99}
    (sequence,) = rig.add([1] * 10)
    rig.plan()
    remote_of(rig).calls.clear()
    finish_load(rig, sequence.request_id)
    rig.run_to_the_end()
    assert {call for call, _, _ in remote_of(rig).calls} == {"settled", "finished"}


def test_f13() -> None:
    """Asked three times or once: the same state."""
    states = []
    for times in (0, 3):
        rig = node(12)
        remote = remote_of(rig)
        remote.offers, remote.is_restless = {"client-2": None}, True
        rig.add([1] * 10, max_new_tokens=1)
        rig.run_oldest() if rig.plan() else None
        (sequence,) = rig.add([1] * 9)
        for _ in range(times):
            assert rig.plan() is None
            assert not rig.manager.get_block_ids(sequence.request_id)[0]
        assert sum(call == "match" for call, _, _ in remote.calls) == times + 1
        remote.offers = {"client-2": 9}
        rig.plan()
        stats = rig.manager.stats
        states.append(
            (
                rig.manager.get_block_ids(sequence.request_id),
                rig.manager.ledger(),
                rig.scheduler.stats.num_external_tokens,
                (stats.queries, stats.hits),
            )
        )
        finish_load(rig, sequence.request_id)
        rig.run_to_the_end()
    assert states[0] == states[1]


def test_h2() -> None:
    """Two loads fit exactly, but each needs one block more for its drafter: one after the other."""
    rig = node(7, lookahead=4)
    remote_of(rig).offers = {"client-1": 99, "client-2": 99}
    (first,) = rig.add([1] * 16, max_new_tokens=4)
    (second,) = rig.add([2] * 12, max_new_tokens=4)
    rig.plan()
    assert first.status is SequenceStatus.LOADING
    assert second.status is SequenceStatus.WAITING
    finish_load(rig, first.request_id)
    while not first.status.finished:
        assert rig.step()
    rig.plan()
    finish_load(rig, second.request_id)
    rig.run_to_the_end()


def test_h5() -> None:
    """Loads don't count as running, and those that are done go before whoever came without one."""
    rig = node(40, seqs=2)
    remote_of(rig).offers = {f"client-{i}": 99 for i in (1, 2, 3)}
    loads = [rig.add([i] * 8, max_new_tokens=6)[0] for i in (1, 2, 3)]
    rig.plan()
    assert [s.status.name for s in loads] == ["LOADING", "LOADING", "WAITING"]
    for sequence in loads[:2]:
        finish_load(rig, sequence.request_id)
    rig.step()
    assert [s.status.name for s in loads] == ["RUNNING", "RUNNING", "LOADING"]
    finish_load(rig, loads[2].request_id)
    (plain,) = rig.add([4] * 8, priority=-1)
    while not (loads[0].status.finished or loads[1].status.finished):
        rig.step()
        assert loads[2].status is SequenceStatus.WAITING
    rig.plan()
    assert loads[2].status is SequenceStatus.RUNNING
    rig.run_to_the_end()
    assert plain.status is SequenceStatus.FINISHED_LENGTH


def test_i5() -> None:
    """Who is preempted looks up all its tokens, not only the prompt."""
    rig = node(24, depth=1)
    (sequence,) = rig.add([1] * 4, max_new_tokens=60)
    while sequence.request.num_tokens < 54:
        rig.step()
    rig.scheduler.roster.give_up(sequence, SequenceEvent.PREEMPT)
    rig.manager.evict_blocks(range(1, 25))
    remote_of(rig).offers = {"client-1": 99}
    rig.plan()
    (load,) = remote_of(rig).loads.values()
    assert load.end == sequence.request.num_tokens == 54
    finish_load(rig, sequence.request_id)
    rig.run_to_the_end()


def test_i7() -> None:
    """Preempted while a step of it runs: what that step says is dropped, each token comes once."""
    rig = node(12)
    (sequence,) = rig.add([1] * 6, max_new_tokens=12)
    for _ in range(3):
        assert rig.plan() is not None or rig.plans
        while len(rig.plans) > 1:
            rig.run_oldest()
    assert rig.plans
    rig.scheduler.roster.give_up(sequence, SequenceEvent.PREEMPT)
    again = rig.plan()
    assert again is not None
    assert again.preempted_request_ids == (sequence.request_id,)
    assert again.new_sequences[0].request_id == sequence.request_id
    rig.run_to_the_end()
    assert rig.scheduler.stats.num_stale_outputs == 1


def test_j4() -> None:
    """Drafts are written over a block's end and all rejected: no key ever names them."""
    rig = node(12, lookahead=3, depth=1)
    (sequence,) = rig.add([1] * 6, max_new_tokens=12)
    wrong = 0
    for _ in range(40):
        plan = rig.plan()
        if plan is None:
            break
        assert _published(rig) <= set(sequence.request.block_hashes)
        rig.plans.remove(plan)
        result = rig.worker.execute(plan)
        wrong += sum(len(s.draft_token_ids) for s in plan.scheduled)
        rig.hear(rig.scheduler.settle(_with_wrong_drafts(plan, result)))
        assert _published(rig) <= set(sequence.request.block_hashes)
        assert len(_published(rig)) <= sequence.request.num_tokens // 4
    assert wrong > 12
    rig.check_end()


def test_l1() -> None:
    """One client id, twice at once and again while the first one's blocks are lent."""
    rig = node(24)
    remote = remote_of(rig)
    remote.lends = {"client-1"}
    (first,) = rig.add([1] * 9, max_new_tokens=2)
    (second,) = rig.add([2] * 9, max_new_tokens=9)
    assert first.request_id != second.request_id
    while not first.status.finished:
        rig.step()
    assert rig.manager.ledger().lease > 0
    rig.add([3] * 9, max_new_tokens=9)
    for _ in range(40):
        rig.step()
        remote.check_loans()
    (loan,) = remote.loans
    remote.loans.clear()
    rig.moved(BlocksReturned(None, [BlockId(block) for block in loan.blocks]))
    rig.moved(BlocksReturned(None, [BlockId(block) for block in loan.blocks]))
    assert rig.scheduler.stats.num_unknown_messages == 1
    rig.run_to_the_end()


def _published(rig: Rig) -> set[bytes]:
    return {key for _, key, _ in rig.manager.block_pool.cached_blocks()}


def _with_wrong_drafts(plan: StepPlan, result: StepResult) -> StepResult:
    """The same tokens, and guesses for the next step of which none is right."""
    sampled = {
        name: SampledTokens(answer.token_ids, (0, 0, 0)) for name, answer in result.sampled.items()
    }
    return StepResult(plan.step, sampled)
