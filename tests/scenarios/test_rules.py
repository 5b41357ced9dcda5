"""Each rule of docs/protocol.md: the events that break what is weaker, with the rule and without.

A story passes as things are. With its rule off, the same events end in a wrong token, a finding of
the auditor, something left behind, or a promise that is broken. Not here:

T7   no prefill has a step behind its last token, and of a state nothing is served before that: so
     no state that is lent moves on, with either of the two switched off.
T8   stands behind T6: no load reaches the last token, so nothing of a pull could publish its block.
     What the scheduler does by itself is in tests/unit/sched.
T9   there are no weights yet; a change is a restart by the rules of T5.
T18  and T24 are the transports'; their conformance suite shows them.
T23  which verb a link has is its host's to say; both are played here.
"""

from collections.abc import Callable
from typing import Any

import pytest

from kvdist.cache import HoldKind
from kvdist.connector import rules
from kvdist.connector.lender import Lender
from kvdist.connector.local import Cancel, Revoke
from kvdist.connector.machine import Table
from kvdist.connector.messages import (
    Confirmed,
    Lent,
    Release,
    Renew,
    Stream,
)
from kvdist.connector.scheduler_half import SchedulerHalf
from kvdist.connector.server import Server
from kvdist.connector.tables import grant, lease, part, serve
from kvdist.errors import KvdistError
from kvdist.ids import BlockId, Incarnation, NodeId, RequestId
from kvdist.sched import lending
from kvdist.sched.budget import SchedulerConfig
from kvdist.sched.loads import Load, Loads
from kvdist.sim.cluster import Cluster, Violation
from kvdist.sim.node import SimNode
from kvdist.sim.worker import SimWorker
from tests.halves import RUN, STATE, Owner, Reader, Serving, a_part, a_ticket
from tests.town import Town, prompt

Patch = pytest.MonkeyPatch
#: What a broken promise shows itself by.
BROKEN = (AssertionError, Violation, KvdistError)

# -- stories ---------------------------------------------------------------------------------------


def t1_reading_along() -> None:
    """`d` reads along while `p` computes a long prompt in small steps."""
    small = SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=4)
    for seed in range(4):
        town = Town(seed=seed, scheduler=small, one_sided=seed % 2 == 1)
        name = town.come(prompt(1, 40), "stream")
        town.finish(name)
        assert town.num_external() == 39, "it did read along"
        town.rest()


def t1_by_hash() -> None:
    """`p` computes a prompt, and is asked for its hashes before the step is over."""
    town = Town()
    town.faults(long_step=1.0)
    mine = town.come(prompt(1), "local", decode="p")
    town.until(lambda: town.p.scheduler.steps)
    theirs = town.come(prompt(1), "hash")
    town.run(0.5)
    town.faults()
    town.finish(mine, theirs)
    town.rest()


def t2_the_second_try_takes_new_blocks() -> None:
    """A read goes on after it was stopped, while its blocks' next owner computes."""
    for seed in range(8):
        town = Town(seed=seed, blocks={"p": 40, "d": 12})
        town.faults(write_on=1.0)
        first = town.come(prompt(1, 40))
        town.until(town.is_pulling)
        town.abort(first)
        others = [town.come(prompt(i, 18), "local") for i in range(2, 5)]
        town.finish(*others)
        town.rest()


def t4_a_verdict_is_kept() -> None:
    """The answer to a confirm is lost, and the repeat gets the same."""
    town = Town(max_rounds=1, on_failure="fail")
    town.gate.keep(Confirmed)
    name = town.come()
    town.until(lambda: len(town.gate))
    town.gate.drop()
    town.finish(name)
    town.rest()


def t4_a_release_ends_its_own_lease() -> None:
    """The second of two equal releases comes when its lease has gone and another is there."""
    owner = Owner()
    first = owner.ticket("a")
    owner.ticket("b")
    for _ in range(2):
        owner.lender.on_release("d", Release(first.lease, RUN))
        owner.acknowledge()
        owner.news()
    owner.ticket("c")
    assert len(owner.lender.leases) == 2


def t5_a_workers_memory() -> None:
    """A worker of `p` dies; then somebody comes for what it had computed."""
    town = Town()
    town.finish(town.come(prompt(1), "local", decode="p"))
    town.cluster.kill_worker(town.p.workers[0], town.p)
    town.run(5.0)
    town.finish(town.come(prompt(1), "local", decode="p"))
    town.rest()


def t5_an_answer_to_an_earlier_run() -> None:
    """`d` asks by hash, dies, and its next run asks for something else under the same number."""
    town = Town()
    town.finish(*[town.come(prompt(i), "local", decode="p") for i in (1, 2)])
    town.gate.keep(Lent)
    town.come(prompt(1), "hash")
    town.until(lambda: len(town.gate))
    town.kill("d")
    town.run(2.5)
    name = town.come(prompt(2), "hash")
    town.until(lambda: len(town.gate) > 1)
    town.gate.let_go()
    town.finish(name)
    town.rest()


def t6_a_ticket_with_another_prompt() -> None:
    """A client sends the ticket of one prompt with another one: it is computed here."""
    town = Town()
    town.come(prompt(1), answer_delay=20.0)
    town.until(town.leases)
    (lease,) = town.p.half.lender.leases.values()
    ticket = town.p.half.lender._ticket(lease)
    clients = town.cluster.clients
    decode = clients._decode
    clients._decode = lambda life, *_: decode(life, ticket)  # type: ignore[method-assign]
    name = town.come(prompt(2), "local")
    clients._decode = decode  # type: ignore[method-assign]
    town.finish(name)
    assert town.ended(name) == ["right"]
    assert town.d.half.counts["pulls that failed"]


def t6_a_state_is_of_one_token() -> None:
    """The reader's prompt ends where the lease does: no token would be left to compute."""
    for known in (16, 17, 18):
        reader, serving = Reader(STATE), Serving(STATE)
        reader.come("r", a_ticket(), known)
        found = reader.match("r")
        assert found is not None and found < known
        for fetch in reader.admit("r"):
            opened, *_ = serving.open(wanted=fetch.wanted)
            assert "Opened" in str(opened)


def t10_room_for_one_longest_sequence() -> None:
    """Leases whose readers don't come, and a request of `p`'s own."""
    town = Town(blocks={"p": 26, "d": 40})
    for i in range(10):
        town.come(prompt(10 + i), answer_delay=50.0)
    town.run(1.0)
    mine = town.come(prompt(1, 40), "local", decode="p")
    town.finish(mine, within=5.0)
    town.rest()


def t10_a_life_has_an_end() -> None:
    """A reader renews for ever."""
    owner = Owner(lease_s=30.0, life_s=60.0)
    ticket = owner.ticket()
    for _ in range(30):
        owner.later(5.0)
        owner.lender.on_renew("d", Renew((ticket.lease,)))
        owner.acknowledge()
    assert not owner.lender.leases


def t11_an_aborted_prefill_withdraws() -> None:
    """The prefill that `d` reads along with is aborted: `d` doesn't wait for what never comes."""
    small = SchedulerConfig(max_num_batched_tokens=4, max_num_seqs=4)
    town = Town(scheduler=small)
    name = town.come(prompt(1, 40), "stream")
    town.until(town.is_pulling)
    prefill = town.sequence_of(name, -1)
    assert prefill is not None
    town.p.do(lambda: _abort(town.p, prefill))
    town.finish(name, within=3.0)
    town.rest()


def _abort(node: SimNode, request_id: RequestId) -> None:
    assert node.scheduler.abort(request_id), "it had ended already"


def t12_preempted_after_all_have_stopped() -> None:
    """`p` needs the blocks of a prompt that is being read along."""
    owner = Owner(ranks=2)
    owner.lender.lend_at_end("r", "t")
    owner.lender.on_stream("d", Stream("t"))
    owner.lender.admitted("r", ((BlockId(1), BlockId(2), BlockId(3), BlockId(4)),), 16)
    owner.acknowledge()
    owner.news()
    owner.told_workers()
    while not owner.lender.may_preempt("r"):
        assert owner.told_workers() or owner.lender.leases
        for rank in (0, 1):
            for name in list(owner.lender.leases):
                owner.lender.on_revoked(rank, name)  # type: ignore[arg-type]
    assert not owner.lender.leases, "its blocks go while a worker serves them"


def t13_out_of_what_nobody_needs() -> None:
    """`p` is asked for what it holds while its own sequences were promised the rest of the pool."""
    slow = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4)
    town = Town(
        blocks={"p": 18, "d": 40}, soft_share=1.0, scheduler=slow, cache={"max_model_len": 28}
    )
    town.finish(*[town.come(prompt(i, 9), "local", new=1, decode="p") for i in (1, 2, 3)])
    town.faults(long_step=1.0)
    for i in (4, 5):
        town.come(prompt(i, 27), "local", new=1, decode="p")
    town.until(lambda: len(town.p.scheduler.roster.running) == 2)
    town.gate.keep(Lent)
    for i in (1, 2, 3):
        town.come(prompt(i, 9), "hash")
    town.run(0.5)
    free = town.p.manager.block_pool.get_num_free_blocks()
    assert town.p.scheduler.reserved_blocks <= free, "a peer has what a sequence was promised"
    assert town.p.scheduler.reserved_blocks
    town.rest()


def t14_questions_are_answered() -> None:
    """A question about a transfer that never comes: it doesn't stay."""
    owner = Owner(parked_s=5.0)
    owner.lender.on_stream("d", Stream("never"))
    owner.later(5.0)
    assert owner.said()
    assert not owner.lender.transfers


def t14_in_a_bounded_table() -> None:
    """A peer asks for ever new transfers."""
    owner = Owner(max_parked_per_peer=64)
    for i in range(1000):
        owner.lender.on_stream("flood", Stream(f"t{i}"))
    assert len(owner.lender.transfers) <= 64


def t15_all_workers_can_serve() -> None:
    """A ticket reaches its reader before the second worker has its grant."""
    owner = Owner(ranks=2)
    owner.prefill("r")
    owner.acknowledge(0)
    assert owner.news() == []


def t15_all_workers_have_stopped() -> None:
    """The first worker is idle, the second still serves."""
    owner = Owner(ranks=2)
    ticket = owner.ticket()
    owner.lender.on_release("d", Release(ticket.lease, RUN))
    owner.news()
    owner.acknowledge(0)
    assert owner.news() == []


def t15_not_while_something_is_open() -> None:
    """A lease by hash is taken back in the middle of a read, since `p` needs the blocks."""
    for seed in range(8):
        town = Town(
            seed=seed, blocks={"p": 14, "d": 40}, one_sided=seed % 2 == 0, soft_share=1.0,
            cache={"max_model_len": 28},
        )  # fmt: skip
        town.finish(town.come(prompt(1), "local", new=1, decode="p"))
        town.come(prompt(1), "hash")
        town.until(town.is_serving)
        for i in (2, 3):
            town.come(prompt(i, 21), "local", new=5, decode="p")
        town.rest()


def t16_a_read_without_progress() -> None:
    """The reader has opened, and is never heard of again."""
    serving = Serving(sends=False, stall_s=10.0)
    serving.open()
    serving.server.on_revoke(Revoke(serving.lease))
    serving.later(10.0)
    assert not serving.server.num_open


def t16_whose_confirm_is_gone() -> None:
    """The owner cut the link and reused the blocks; the reader asks when even that is forgotten."""
    serving = Serving(sends=False, stall_s=10.0)
    serving.open()
    serving.later(10.0)
    serving.later(60.0)
    serving.news()
    assert "Denied" in str(serving.confirm())


def t17_measures() -> None:
    """Reads that nothing ends but measures: quarantine is over all the same."""
    town = Town(stall_s=3.0)
    town.faults(stuck=1.0)
    for _ in range(4):
        town.come()
    town.run(1.0)
    town.faults()
    town.until(lambda: not town.d.half.borrower.num_quarantined and town.d.scheduler.idle, 90.0)
    town.rest()


def t19_one_reader_at_a_time() -> None:
    """A router gave one ticket to two nodes."""
    serving = Serving(sends=False)
    serving.open(reader="d", link="one")
    serving.open(reader="e", link="two")
    assert serving.server.num_open == 1


def t20_a_pull_belongs_to_its_content() -> None:
    """Who asked first goes away while another waits for the same."""
    reader = Reader()
    reader.come("a", a_ticket())
    reader.come("b", a_ticket(b"another lease..."))
    reader.admit("a")
    reader.borrower.finished("a")
    assert not [message for _, message in reader.told_workers() if isinstance(message, Cancel)]


def t21_what_an_earlier_run_says_late() -> None:
    """`p` lent, died and came back; its next run has been heard of when the answer arrives."""
    town = Town(max_rounds=1, on_failure="fail", answer_s=2.0)
    town.finish(town.come(prompt(1), "local", decode="p"))
    town.gate.keep(Lent)
    name = town.come(prompt(1), "hash")
    town.until(lambda: len(town.gate))
    town.kill("p")
    town.until(lambda: town.p.is_alive)
    other = town.come(prompt(2), "hash", prefill="d", decode="p")
    town.until(lambda: "Borrow" in str([entry.about for entry in list(town.world.log)[-1:]]))
    town.run(0.01)
    town.gate.let_go()
    town.finish(name, other)
    town.rest()


def t22_input_before_timers() -> None:
    """`p` stands still for longer than a lease; the renewals lie in its inbox."""
    town = Town(
        max_rounds=1, on_failure="fail", lease_s=3.0, renewal_s=0.5, blocks={"p": 40, "d": 12}
    )
    waiting = town.come(prompt(2, 40), new=2)
    busy = town.come(prompt(1, 10), "local", new=30)
    town.until(lambda: town.d.scheduler.roster.running)
    town.faults(long_step=1.0)
    town.until(town.leases)
    town.run(1.0)
    town.p.pause(4.0)
    town.finish(busy, waiting, within=400.0)
    town.rest()


def t25_the_clock_covers_waiting() -> None:
    """A lease ends in the middle of a read: the read's own hold stands."""
    serving = Serving()
    serving.open()
    serving.server.on_revoke(Revoke(serving.lease))
    serving.server.sent(("d", RUN, a_part()))
    assert "Confirmed" in str(serving.confirm())


# -- the rules, off --------------------------------------------------------------------------------

Off = Callable[[Patch], None]


def says(module: Any, name: str, answer: Callable[..., Any]) -> Off:
    """A rule that answers this in place of the truth."""
    return lambda patch: patch.setattr(module, name, answer)


def always(module: Any, name: str) -> Off:
    return says(module, name, lambda *_: True)


def row(table: Table[Any, Any, Any], state: Any, event: Any, target: Any, *effects: Any) -> Off:
    """A row that leads elsewhere, or does something else."""
    return lambda patch: patch.setitem(table.rows, (state, event), (target, effects))


def both(*offs: Off) -> Off:
    def off(patch: Patch) -> None:
        for one in offs:
            one(patch)

    return off


def every_run_is_heard(half: SchedulerHalf, peer: NodeId, run: Incarnation) -> None:
    """In place of `node_seen`: nothing of an earlier run is over."""
    half._speaks[peer] = half._runs[peer] = run
    half.contacts.run_seen(peer, run)


def without_quarantine(patch: Patch) -> None:
    def failed(self: Loads, request_id: RequestId) -> Load | None:
        load = self._loads.pop(request_id, None)
        if load is not None:
            self._manager.end_hold(load.block_ids, HoldKind.PULL)
        return load

    patch.setattr(Loads, "failed", failed)


def a_worker_that_is_replaced(patch: Patch) -> None:
    def kill_worker(self: Cluster, worker: SimWorker, node: SimNode) -> None:
        worker.memory.poison(range(node.manager.config.num_blocks))

    patch.setattr(Cluster, "kill_worker", kill_worker)


def by_the_oldest(patch: Patch) -> None:
    """A release names nothing: it ends the oldest lease."""

    def on_release(self: Lender, _peer: NodeId, _message: Release) -> None:
        for found in list(self.leases.values())[:1]:
            self._handle(found, lease.Event.RELEASED)

    patch.setattr(Lender, "on_release", on_release)


def renewed_for_ever(patch: Patch) -> None:
    def restart(self: Lender, of: Any) -> None:
        self.timers.set(("clock", of.lease), self.now + self._settings.lease_s)

    before = Lender.__init__

    def init(self: Lender, *args: Any, **kwargs: Any) -> None:
        before(self, *args, **kwargs)
        self._do[lease.Effect.RESTART_CLOCK] = lambda lease: restart(self, lease)

    patch.setattr(Lender, "__init__", init)


def no_quota(patch: Patch) -> None:
    before = Lender.__init__

    def init(self: Lender, *args: Any, **kwargs: Any) -> None:
        before(self, *args, **kwargs)
        object.__setattr__(self._settings, "max_parked_per_peer", 1 << 30)
        object.__setattr__(self._settings, "max_parked", 1 << 30)

    patch.setattr(Lender, "__init__", init)


def nobody_is_told(patch: Patch) -> None:
    s, e = lease.State, lease.Event
    row(lease.LEASE, s.ACTIVE, e.TAKEN_BACK, s.REVOKING, lease.Effect.SEND_REVOKE)(patch)
    for state in (serve.State.OPEN, serve.State.SENDING):
        row(serve.SERVE, state, serve.Event.REVOKED, state)(patch)


def timers_first(patch: Patch) -> None:
    before = SimNode._resume

    def resume(self: SimNode) -> None:
        if self._paused_until <= self._world.now:
            inbox, self._inbox = self._inbox, []
            self.do(self.half.tick)
            self._inbox = inbox
        before(self)

    patch.setattr(SimNode, "_resume", resume)


def the_clock_rules(patch: Patch) -> None:
    before = Server.on_revoke

    def on_revoke(self: Server, message: Revoke) -> None:
        for open_ in list(self._grants[message.lease].serves.values()):
            self._handle(open_, serve.Event.CLOSE)
        before(self, message)

    patch.setattr(Server, "on_revoke", on_revoke)


_P, _S, _G = part.State, serve.State, grant.State

RULES: list[tuple[Callable[[], None], Off]] = [
    (t1_reading_along, says(rules, "readable", lambda settled, first, last, is_state: last)),
    (t1_by_hash, always(lending, "may_serve")),
    (t2_the_second_try_takes_new_blocks, without_quarantine),
    (
        t2_the_second_try_takes_new_blocks,  # T3: what the owner, or a link's end, says is quiet
        row(
            part.PART,
            _P.LANDING,
            part.Event.CANCELLED,
            _P.OVER,
            part.Effect.REPORT_FAILED,
            part.Effect.REPORT_QUIET,
        ),
    ),
    (
        t4_a_verdict_is_kept,
        row(serve.SERVE, _S.OPEN, serve.Event.CONFIRM, _S.OVER, serve.Effect.FREE),
    ),
    (t4_a_release_ends_its_own_lease, by_the_oldest),
    (t5_a_workers_memory, a_worker_that_is_replaced),
    (
        t5_an_answer_to_an_earlier_run,  # the digest of what was lent would find it, too
        both(always(rules, "is_same_run"), always(rules, "is_same_content")),
    ),
    (t6_a_ticket_with_another_prompt, always(rules, "is_same_content")),
    (
        t6_a_state_is_of_one_token,
        says(rules, "may_resume", lambda resume, local, known, anywhere: max(0, resume - local)),
    ),
    (t10_room_for_one_longest_sequence, always(rules, "may_lend")),
    (t10_a_life_has_an_end, renewed_for_ever),
    (t11_an_aborted_prefill_withdraws, nobody_is_told),
    (t12_preempted_after_all_have_stopped, says(Lender, "may_preempt", lambda *_: True)),
    (t13_out_of_what_nobody_needs, always(lending, "may_lend")),
    (t14_questions_are_answered, says(Lender, "_end_parking", lambda *_: None)),
    (t14_in_a_bounded_table, no_quota),
    (t15_all_workers_can_serve, always(rules, "may_issue")),
    (t15_all_workers_have_stopped, always(rules, "may_return")),
    (
        t15_not_while_something_is_open,
        both(
            row(grant.GRANT, _G.ACTIVE, grant.Event.REVOKE_BUSY, _G.GONE, grant.Effect.ACKNOWLEDGE),
            row(grant.GRANT, _G.GONE, grant.Event.LAST_CLOSED, _G.GONE),
        ),
    ),
    (t16_a_read_without_progress, row(serve.SERVE, _S.OPEN, serve.Event.STALLED, _S.OPEN)),
    (t16_whose_confirm_is_gone, always(rules, "may_confirm")),
    (t17_measures, row(part.PART, _P.STOPPING, part.Event.RESTLESS, _P.STOPPING)),
    (t19_one_reader_at_a_time, always(rules, "may_take_over")),
    (t20_a_pull_belongs_to_its_content, always(rules, "may_cancel")),
    (
        t21_what_an_earlier_run_says_late,
        both(
            says(Cluster, "is_outdated", lambda *_: False),
            says(SchedulerHalf, "node_seen", every_run_is_heard),
        ),
    ),
    (t22_input_before_timers, timers_first),
    (t25_the_clock_covers_waiting, the_clock_rules),
]
STORIES = list(dict.fromkeys(story for story, _ in RULES))


@pytest.mark.parametrize("story", STORIES, ids=[story.__name__ for story in STORIES])
def test_with_the_rule(story: Callable[[], None]) -> None:
    story()


@pytest.mark.parametrize(
    ("story", "off"), RULES, ids=[f"{story.__name__}-{i}" for i, (story, _) in enumerate(RULES)]
)
def test_without_it(story: Callable[[], None], off: Off, monkeypatch: Patch) -> None:
    off(monkeypatch)
    with pytest.raises(BROKEN):
        story()
