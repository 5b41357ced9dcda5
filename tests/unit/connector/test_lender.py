"""The owner's node, told things in every order: who hears what, and what goes back when."""

from typing import Any

import pytest

from kvdist.connector.effects import SendToNode, TicketReady, WorkerLost
from kvdist.connector.host import BlocksReturned
from kvdist.connector.local import Extend, Grant, Revoke
from kvdist.connector.messages import (
    Borrow,
    Lent,
    NoTicket,
    Progress,
    Release,
    Released,
    Renew,
    Stream,
    StreamState,
    Ticket,
    Withdrawn,
)
from kvdist.errors import InvalidRequest
from kvdist.ids import BlockHash, BlockId, Incarnation, PullId, Rank
from tests.halves import NOBODYS, RUN, STATE, WINDOW, Owner, tables


def borrow(number: int = 1, num_hashes: int = 4, run: int = 1) -> Borrow:
    hashes = tuple(BlockHash(bytes([i] * 32)) for i in range(num_hashes))
    return Borrow(PullId(number), Incarnation(run), hashes, 4)


def returned(owner: Owner) -> list[list[int]]:
    return [list(e.block_ids) for e in owner.news() if isinstance(e, BlocksReturned)]


def lent(owner: Owner) -> list[Ticket | None]:
    return [message.ticket for _, message in owner.said() if isinstance(message, Lent)]


def test_it_is_said_whose_blocks_return() -> None:
    """Hosts hold blocks by request; what is lent by hash was nobody's."""
    owner = Owner(cached=4)
    ticket = owner.ticket("mine")
    owner.lender.on_release("d", Release(ticket.lease, RUN))
    owner.lender.on_borrow("d", borrow())
    owner.lender.take_back_soft()
    owner.acknowledge()
    names = [e.request_id for e in owner.news() if isinstance(e, BlocksReturned)]
    assert names == ["mine", None]


# -- a lease, from its request's end to the blocks' return -----------------------------------------


def test_the_ticket_leaves_when_all_workers_can_serve() -> None:
    owner = Owner(ranks=4)
    owner.prefill("r")
    for rank in range(3):
        owner.acknowledge(rank)
        assert owner.news() == [], "T15"
    owner.acknowledge(3)
    (ready,) = owner.news()
    assert isinstance(ready, TicketReady)
    assert ready.ticket is not None
    assert (ready.ticket.resume_tokens, ready.ticket.num_ranks) == (16, 4)


def test_blocks_return_when_all_workers_have_stopped() -> None:
    owner = Owner(ranks=4)
    ticket = owner.ticket()
    owner.lender.on_release("d", Release(ticket.lease, RUN))
    assert owner.said() == [("d", Released(ticket.lease))]
    for rank in range(3):
        owner.acknowledge(rank)
        assert owner.news() == [], "T15"
    owner.acknowledge(3)
    assert returned(owner) == [[1, 2, 3, 4]]
    assert not owner.lender.leases and not len(owner.lender.timers)


def test_a12() -> None:
    """A second release is answered, counted, and ends nothing else."""
    owner = Owner()
    first, other = owner.ticket("a"), owner.ticket("b")
    for _ in range(3):
        owner.lender.on_release("d", Release(first.lease, RUN))
        owner.acknowledge()
    assert returned(owner) == [[1, 2, 3, 4]]
    assert list(owner.lender.leases) == [other.lease]
    assert owner.lender.counts["release of an unknown lease"] == 2


def test_workers_that_say_things_twice() -> None:
    owner = Owner(ranks=2)
    ticket = owner.ticket()
    owner.lender.on_granted(Rank(0), ticket.lease)
    owner.lender.on_release("d", Release(ticket.lease, RUN))
    owner.news()
    owner.acknowledge(0)
    owner.lender.on_revoked(Rank(0), ticket.lease)
    owner.lender.on_revoked(Rank(0), NOBODYS)
    assert returned(owner) == []
    assert owner.lender.counts["revocation acknowledged twice"] == 2
    assert owner.lender.counts["grant acknowledged twice"] == 1


def test_a_worker_that_never_takes_the_grant() -> None:
    owner = Owner(ranks=2, ack_s=5.0)
    owner.prefill("r")
    owner.acknowledge(1)
    owner.later(5.0)
    assert [e for e in owner.news() if isinstance(e, WorkerLost)] == [WorkerLost(Rank(0))]


def test_a_worker_that_never_says_that_it_has_stopped() -> None:
    """T5: longer than any open pull can last, and the worker is lost; so no block is lost."""
    owner = Owner(ranks=2, life_s=300.0, stall_s=10.0, ack_s=5.0)
    ticket = owner.ticket()
    owner.lender.on_release("d", Release(ticket.lease, RUN))
    owner.acknowledge(0)
    owner.news()
    owner.later(324.0)
    assert owner.news() == []
    owner.later(1.0)
    assert owner.news() == [WorkerLost(Rank(1))]


def test_without_renewal_it_runs_out() -> None:
    owner = Owner(lease_s=30.0)
    owner.ticket()
    owner.later(29.9)
    assert not owner.told_workers()
    owner.later(0.1)
    owner.acknowledge()
    assert returned(owner) == [[1, 2, 3, 4]]


def test_renewal_has_an_end() -> None:
    """T10: the whole life of a lease is bounded, however often it is renewed."""
    owner = Owner(lease_s=30.0, life_s=100.0)
    ticket = owner.ticket()
    for _ in range(9):
        owner.later(10.0)
        owner.lender.on_renew("d", Renew((ticket.lease,)))
        assert not owner.told_workers()
    owner.later(10.0)
    assert [message for _, message in owner.told_workers()] == [Revoke(ticket.lease)]


def test_a8() -> None:
    """A lease that is renewed for ever doesn't hide one behind it that has run out."""
    owner = Owner(lease_s=30.0)
    renewed, forgotten = owner.ticket("a"), owner.ticket("b")
    for _ in range(4):
        owner.later(10.0)
        owner.lender.on_renew("d", Renew((renewed.lease,)))
    owner.acknowledge()
    assert len(returned(owner)) == 1
    assert list(owner.lender.leases) == [renewed.lease]
    assert forgotten.lease not in owner.lender.leases


def test_input_is_handled_before_timers() -> None:
    """T22: a renewal that had arrived when the process woke up counts."""
    owner = Owner(lease_s=30.0)
    ticket = owner.ticket()
    owner.lender.now += 35.0
    owner.lender.on_renew("d", Renew((ticket.lease,)))
    owner.lender.tick()
    assert not owner.told_workers()


def test_nothing_to_lend() -> None:
    owner = Owner()
    owner.lender.lend_at_end("short")
    assert owner.lender.finished("short", ((),), 0, is_usable=True) == []
    owner.lender.lend_at_end("failed")
    assert owner.lender.finished("failed", tables(16), 16, is_usable=False) == []
    assert owner.news() == [TicketReady("short", None), TicketReady("failed", None)]
    assert owner.lender.finished("nobody asked", tables(16), 16, is_usable=True) == []
    assert owner.news() == []


def test_only_what_a_reader_needs_is_kept() -> None:
    owner = Owner(STATE)
    owner.prefill("r", 16)
    ((_, grant),) = owner.told_workers()
    assert isinstance(grant, Grant)
    assert grant.blocks == ((0, 0, 0, 4),)


# -- T10: room for one longest sequence ------------------------------------------------------------


def test_leases_at_their_cap() -> None:
    owner = Owner(pool=20, longest=8)
    for name in "abc":
        assert not owner.lender.is_full()
        owner.ticket(name)
    assert owner.lender.num_leased == 12
    assert owner.lender.is_full()
    owner.prefill("d")
    assert owner.news() == [TicketReady("d", None)]


# -- strangers, liars, late ones -------------------------------------------------------------------


def test_a_release_of_nothing() -> None:
    owner = Owner()
    owner.lender.on_release("d", Release(NOBODYS, RUN))
    assert owner.said() == [("d", Released(NOBODYS))], "T14"


def test_a_release_for_another_run() -> None:
    owner = Owner()
    ticket = owner.ticket()
    owner.lender.on_release("d", Release(ticket.lease, Incarnation(2)))
    assert owner.said() == [("d", Released(ticket.lease))]
    assert not owner.told_workers()


def test_a_release_for_somebody_elses_lease() -> None:
    owner = Owner(cached=4)
    owner.lender.on_borrow("d", borrow())
    owner.acknowledge()
    (ticket,) = lent(owner)
    assert ticket is not None
    owner.lender.on_release("thief", Release(ticket.lease, RUN))
    owner.lender.on_renew("thief", Renew((ticket.lease,)))
    assert owner.said() == [("thief", Released(ticket.lease))]
    assert not owner.told_workers()
    assert owner.lender.counts["release by another than the reader"] == 1
    assert owner.lender.counts["renewal of an unknown lease"] == 1
    owner.lender.on_release("d", Release(ticket.lease, RUN))
    assert owner.told_workers()


def test_a_ticket_that_another_reader_takes_over() -> None:
    """T19, P4: the router's first decode node has died, and it gives the ticket to another."""
    owner = streaming(lease_s=30.0)
    owner.lender.finished("r", tables(16), 16, is_usable=True)
    (name,) = owner.lender.leases
    owner.told_workers()
    for _ in range(4):
        owner.later(10.0)
        owner.lender.on_renew("e", Renew((name,)))
    assert not owner.told_workers()
    owner.lender.on_release("e", Release(name, RUN))
    assert owner.told_workers()


def test_a_release_before_the_ticket_left() -> None:
    owner = Owner()
    owner.prefill("r")
    (name,) = owner.lender.leases
    owner.lender.on_release("d", Release(name, RUN))
    owner.lender.on_renew("d", Renew((name,)))
    assert owner.lender.counts.total() == 2
    owner.acknowledge()
    assert any(isinstance(effect, TicketReady) for effect in owner.news())


def test_a_flood_of_renewals_costs_nothing() -> None:
    owner = Owner()
    ticket = owner.ticket()
    for _ in range(20):
        owner.lender.on_renew("d", Renew((NOBODYS, ticket.lease) * 500))
    assert owner.news() == []
    assert owner.lender.counts["renewal of an unknown lease"] == 10_000
    assert len(owner.lender.timers._heap) < 200


# -- by hash ---------------------------------------------------------------------------------------


def test_a_loan_is_answered_once_it_can_be_served() -> None:
    owner = Owner(cached=3)
    owner.lender.on_borrow("d", borrow(num_hashes=8))
    assert owner.news() == []
    owner.acknowledge()
    (ticket,) = lent(owner)
    assert ticket is not None
    assert ticket.resume_tokens == 12


def test_a_repeat_gets_the_same_loan() -> None:
    owner = Owner(cached=3)
    for _ in range(3):
        owner.lender.on_borrow("d", borrow())
    owner.acknowledge()
    owner.lender.on_borrow("d", borrow())
    first, second = lent(owner)
    assert first == second is not None
    assert len(owner.lender.leases) == 1


def test_a_repeat_while_it_is_taken_back_is_answered() -> None:
    """T14: nobody waits for an answer that doesn't come."""
    owner = Owner(cached=3)
    owner.lender.on_borrow("d", borrow())
    owner.acknowledge()
    owner.news()
    owner.lender.take_back_soft()
    owner.lender.on_borrow("d", borrow())
    ((_, withdrawn), (_, answer)) = owner.said()
    assert isinstance(withdrawn, Withdrawn)
    assert answer == Lent(PullId(1), RUN, None)


def test_another_run_of_the_reader_has_numbers_of_its_own() -> None:
    owner = Owner(cached=3)
    owner.lender.on_borrow("d", borrow(run=1))
    owner.lender.on_borrow("d", borrow(run=2))
    owner.acknowledge()
    answers = [message for _, message in owner.said()]
    assert [a.reader_run for a in answers if isinstance(a, Lent)] == [1, 2]
    assert len(owner.lender.leases) == 2


def test_what_is_lent_by_hash_goes_back_first() -> None:
    owner = Owner(cached=3)
    ticket = owner.ticket()
    owner.lender.on_borrow("d", borrow())
    owner.acknowledge()
    owner.news()
    owner.lender.take_back_soft()
    owner.acknowledge()
    assert list(owner.lender.leases) == [ticket.lease], "T13"


def test_taken_back_before_it_was_granted() -> None:
    owner = Owner(cached=3)
    owner.lender.on_borrow("d", borrow())
    owner.lender.take_back_soft()
    assert lent(owner) == [None]
    owner.acknowledge()
    assert returned(owner) == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("message", "settings"),
    [
        (borrow(num_hashes=0), {}),
        (Borrow(PullId(1), RUN, (BlockHash(b""),), 0), {}),
        (Borrow(PullId(1), RUN, (BlockHash(b"x"),), 1 << 40), {}),
        (borrow(), {"soft_share": 0.0}),
    ],
)
def test_what_cannot_be_lent_is_answered(message: Borrow, settings: dict[str, Any]) -> None:
    owner = Owner(cached=3, **settings)
    owner.lender.on_borrow("d", message)
    assert lent(owner) == [None]
    assert not owner.lender.leases


def test_a_flood_of_questions_by_hash() -> None:
    """T13: a peer has a share; all peers together leave room for one longest sequence."""
    owner = Owner(pool=40, longest=8, cached=4, soft_share=0.25)
    for number in range(1000):
        owner.lender.on_borrow("flood", borrow(number))
    assert owner.lender.num_leased == 10
    for number in range(1000):
        owner.lender.on_borrow(f"peer {number}", borrow(number))
    assert owner.lender.num_leased == 32
    owner.acknowledge()
    assert len(owner.news()) == 2000, "each is answered"


# -- reading along ---------------------------------------------------------------------------------


def states(owner: Owner, peer: str = "d") -> list[tuple[str, bool]]:
    return [
        (message.progress.name, message.ticket is not None)
        for node, message in owner.said()
        if node == peer and isinstance(message, StreamState)
    ]


def streaming(**settings: Any) -> Owner:
    """`d` reads along with a prompt of 17 tokens."""
    owner = Owner(**settings)
    owner.lender.lend_at_end("r", "t")
    owner.lender.on_stream("d", Stream("t"))
    owner.lender.admitted("r", tables(16), 16)
    owner.acknowledge()
    return owner


def test_a_stream_from_its_question_to_its_end() -> None:
    owner = Owner()
    owner.lender.lend_at_end("r", "t")
    owner.lender.on_stream("d", Stream("t"))
    assert states(owner) == [("QUEUED", False)]
    owner.lender.admitted("r", tables(16), 16)
    owner.acknowledge()
    assert states(owner) == [("ADMITTED", True)]
    owner.lender.settled("r", 8)
    owner.lender.settled("r", 8)
    owner.lender.settled("r", 40)
    (name,) = owner.lender.leases
    told = [message for _, message in owner.told_workers()]
    assert told == [Extend(name, 8), Extend(name, 16)]
    assert owner.lender.finished("r", tables(16), 16, is_usable=True) == [1, 2, 3, 4]
    (ready,) = owner.news()
    assert isinstance(ready, TicketReady)
    assert ready.ticket is not None


def test_the_question_may_come_first() -> None:
    """K5: it waits, and is answered when the request comes."""
    owner = Owner()
    owner.lender.on_stream("d", Stream("t"))
    assert owner.news() == []
    owner.later(4.0)
    owner.lender.lend_at_end("r", "t")
    assert states(owner) == [("QUEUED", False)]
    owner.later(5.0)
    assert states(owner) == [], "it isn't told that it is gone"


def test_nobody_asks_for_ever() -> None:
    owner = Owner(parked_s=5.0)
    owner.lender.on_stream("d", Stream("t"))
    owner.later(2.0)
    owner.lender.on_stream("d", Stream("t"))
    owner.later(3.0)
    assert states(owner) == [("GONE", False)], "repeats don't make it wait longer"
    assert len(owner.lender.transfers) == 0


def test_a16() -> None:
    """Ten thousand questions about transfers that don't exist: a bounded table, a quota a peer."""
    owner = Owner(max_parked=256, max_parked_per_peer=64)
    for number in range(10_000):
        owner.lender.on_stream(f"peer {number % 20}", Stream(f"t{number}"))
    assert len(owner.lender.transfers) == 256
    assert len(owner.said()) == owner.lender.counts["parked questions over the limit"] == 9744
    owner.later(5.0)
    assert len(owner.said()) == 256, "each is answered"
    assert len(owner.lender.transfers) == 0
    assert not len(owner.lender.timers)
    for number in range(1000):
        owner.lender.on_stream("one", Stream(f"t{number}"))
    assert len(owner.lender.transfers) == 64


def test_k5_transfers_that_are_known_take_no_place() -> None:
    """Many prefills in the queue, each asked for: one more that is asked for early waits."""
    owner = Owner(max_parked=4, max_parked_per_peer=2)
    for number in range(10):
        owner.lender.lend_at_end(f"r{number}", f"t{number}")
        owner.lender.on_stream("d", Stream(f"t{number}"))
    assert states(owner) == [("QUEUED", False)] * 10
    for number in range(10, 12):
        owner.lender.on_stream("d", Stream(f"t{number}"))
    assert states(owner) == [], "they wait"
    owner.lender.on_stream("d", Stream("t12"))
    assert states(owner) == [("GONE", False)]


def test_two_peers_ask_for_one_transfer() -> None:
    """The first waits, the second is answered: neither is forgotten."""
    owner = Owner()
    owner.lender.on_stream("d", Stream("t"))
    owner.lender.on_stream("other", Stream("t"))
    assert states(owner, "other") == [("TAKEN", False)]
    owner.lender.lend_at_end("r", "t")
    assert states(owner) == [("QUEUED", False)]
    owner.lender.on_stream("other", Stream("t"))
    assert states(owner, "other") == [("TAKEN", False)]
    owner.lender.admitted("r", tables(16), 16)
    owner.acknowledge()
    assert states(owner) == [("ADMITTED", True)]
    owner.lender.on_stream("other", Stream("t"))
    assert states(owner, "other") == [("TAKEN", False)]
    owner.lender.on_stream("d", Stream("t"))
    assert states(owner) == [("ADMITTED", True)], "it may ask again"
    owner.lender.may_preempt("r")
    assert [node for node, m in owner.said() if isinstance(m, Withdrawn)] == ["d"]
    assert owner.lender.counts["questions about a transfer that another node asks for"] == 3


def test_one_name_for_two_transfers() -> None:
    """L2: who asked for one would get the K/V of the other; the second is refused."""
    owner = Owner()
    owner.lender.lend_at_end("first", "t")
    with pytest.raises(InvalidRequest, match="transfer_id"):
        owner.lender.lend_at_end("second", "t")
    assert owner.lender.finished("second", tables(16), 16, is_usable=True) == []
    assert owner.news() == []
    owner.lender.finished("first", tables(16), 16, is_usable=False)
    owner.lender.lend_at_end("second", "t")


@pytest.mark.parametrize("kind", ["finished", "aborted"])
def test_a_reader_hears_of_the_end(kind: str) -> None:
    """T11: a prefill that fails or is aborted withdraws at once."""
    owner = streaming()
    owner.news()
    kept = owner.lender.finished("r", tables(16), 16, is_usable=kind == "finished")
    assert kept == [1, 2, 3, 4], "they are held until nobody reads them"
    told = [e.message for e in owner.news() if isinstance(e, SendToNode)]
    assert [type(message) for message in told] == [Withdrawn] * (kind == "aborted")
    owner.acknowledge()
    assert returned(owner) == [[1, 2, 3, 4]] * (kind == "aborted")


def test_preempted_only_after_all_have_stopped() -> None:
    """T12."""
    owner = streaming(ranks=2)
    owner.news()
    assert not owner.lender.may_preempt("r")
    assert not owner.lender.may_preempt("r")
    assert [message for _, message in owner.said()] == [Withdrawn(next(iter(owner.lender.leases)))]
    owner.acknowledge(0)
    assert not owner.lender.may_preempt("r")
    owner.acknowledge(1)
    assert owner.lender.may_preempt("r")
    assert owner.news() == [], "the blocks are the sequence's own"
    owner.lender.on_stream("d", Stream("t"))
    assert states(owner) == [("QUEUED", False)], "it comes again"


def test_aborted_before_its_workers_hold_the_grant() -> None:
    owner = Owner()
    owner.lender.lend_at_end("r", "t")
    owner.lender.admitted("r", tables(16), 16)
    owner.lender.finished("r", tables(16), 0, is_usable=False)
    assert owner.news() == [TicketReady("r", None)]
    owner.acknowledge()
    assert returned(owner) == [[1, 2, 3, 4]]


def test_states_are_not_read_along() -> None:
    owner = Owner(STATE)
    owner.lender.lend_at_end("r", "t")
    owner.lender.on_stream("d", Stream("t"))
    owner.lender.admitted("r", tables(16), 16)
    assert not owner.lender.leases
    assert states(owner) == [("QUEUED", False)]
    owner.lender.finished("r", tables(16), 16, is_usable=True)
    owner.acknowledge()
    assert states(owner) == [("ADMITTED", True)], "the ticket comes at the end"


def test_progress_is_an_answer_each_time() -> None:
    owner = streaming()
    owner.news()
    for _ in range(3):
        owner.lender.on_stream("d", Stream("t"))
    assert states(owner) == [("ADMITTED", True)] * 3


# -- leaving ---------------------------------------------------------------------------------------


def test_draining() -> None:
    owner = Owner(cached=3)
    ticket = owner.ticket("a")
    owner.lender.drain()
    owner.prefill("b")
    owner.lender.on_borrow("d", borrow())
    owner.lender.on_stream("d", Stream("t"))
    ready, nothing, gone = owner.news()
    assert ready == TicketReady("b", None)
    assert nothing == SendToNode("d", Lent(PullId(1), RUN, None, NoTicket.ENDING))
    assert gone == SendToNode("d", StreamState("t", Progress.GONE, None, NoTicket.ENDING))
    assert list(owner.lender.leases) == [ticket.lease], "what is lent stays"


# -- what is over ----------------------------------------------------------------------------------


def test_a_transfer_that_is_over_is_known_to_be() -> None:
    """Nobody waits for it; and what is remembered of such ones is bounded."""
    owner = Owner(max_parked=4)
    for i in range(20):
        owner.lender.lend_at_end(f"r{i}", f"t{i}")
        owner.lender.finished(f"r{i}", tables(16), 16, is_usable=False)
    owner.news()
    owner.lender.on_stream("d", Stream("t19"))
    assert states(owner) == [("GONE", False)]
    owner.lender.on_stream("d", Stream("t0"))
    assert states(owner) == [], "forgotten, so it may still come"
    assert len(owner.lender.transfers.over) == 4


def test_whoever_waits_hears_that_it_failed() -> None:
    owner = Owner()
    owner.lender.lend_at_end("r", "t")
    owner.lender.on_stream("d", Stream("t"))
    owner.news()
    owner.lender.finished("r", tables(16), 16, is_usable=False)
    assert states(owner) == [("GONE", False)]


def test_a_reader_that_needs_no_more_is_lent_nothing_more() -> None:
    """It released while the prefill ran: neither a new lease when that is preempted, nor a ticket
    at its end.
    """
    owner = streaming()
    (name,) = owner.lender.leases
    owner.lender.on_release("d", Release(name, RUN))
    owner.acknowledge()
    owner.news()
    owner.lender.admitted("r", tables(16), 16)
    assert not owner.lender.leases
    assert owner.lender.finished("r", tables(16), 16, is_usable=True) == []
    assert owner.news() == [TicketReady("r", None)]


def test_it_ends_while_it_is_taken_back() -> None:
    owner = streaming()
    owner.lender.may_preempt("r")
    owner.news()
    assert owner.lender.finished("r", tables(16), 16, is_usable=True) == [1, 2, 3, 4]
    assert owner.news() == [TicketReady("r", None)]
    owner.acknowledge()
    assert returned(owner) == [[1, 2, 3, 4]]


def test_a_host_may_say_twice_that_a_request_was_admitted() -> None:
    """As vLLM's does: one lease, and its blocks are held until it is over."""
    owner = Owner()
    owner.lender.lend_at_end("r", "t")
    for _ in range(2):
        owner.lender.admitted("r", tables(16), 16)
    owner.acknowledge()
    assert len(owner.lender.leases) == 1
    assert owner.lender.finished("r", tables(16), 16, is_usable=True) == [1, 2, 3, 4]
    owner.later(31.0)
    owner.acknowledge()
    assert returned(owner) == [[1, 2, 3, 4]]
    assert not owner.lender.leases


def test_a_question_that_comes_again_when_its_lease_is_over() -> None:
    """T14: it is answered, by another lease."""
    owner = Owner(cached=4)
    tickets = []
    for _ in range(2):
        owner.lender.on_borrow("d", borrow())
        owner.acknowledge()
        (ticket,) = lent(owner)
        assert ticket is not None
        tickets.append(ticket.lease)
        owner.lender.on_release("d", Release(ticket.lease, RUN))
        owner.acknowledge()
        owner.news()
    assert len(set(tickets)) == 2


# -- hosts of other kinds --------------------------------------------------------------------------


def test_nobody_reads_along_before_all_blocks_are_there() -> None:
    """T11: a host that takes blocks chunk by chunk says so each time."""
    owner = Owner()
    owner.lender.lend_at_end("r", "t")
    owner.lender.on_stream("d", Stream("t"))
    owner.lender.admitted("r", tables(8), 16)
    owner.acknowledge()
    assert states(owner) == [("QUEUED", False)]
    assert not owner.lender.leases
    owner.lender.admitted("r", tables(16), 16)
    owner.acknowledge()
    assert states(owner) == [("ADMITTED", True)]


def test_a_window_may_have_gone_from_the_tables() -> None:
    """What its reader doesn't need at the end doesn't count."""
    owner = Owner(WINDOW)
    owner.lender.lend_at_end("r", "t")
    owner.lender.admitted("r", ((BlockId(0), BlockId(0), BlockId(0), BlockId(4)),), 16)
    assert not owner.lender.leases, "tokens 8 to 15 are needed"
    owner.lender.admitted("r", ((BlockId(0), BlockId(0), BlockId(3), BlockId(4)),), 16)
    assert len(owner.lender.leases) == 1


def test_a_host_that_preempts_without_asking() -> None:
    """T12: nobody reads along; whoever asks has its ticket when the request has ended."""
    owner = streaming(streams=False)
    assert states(owner) == [("QUEUED", False)]
    assert owner.lender.may_preempt("r")
    assert owner.lender.finished("r", tables(16), 16, is_usable=True) == [1, 2, 3, 4]
    owner.acknowledge()
    assert states(owner) == [("ADMITTED", True)]


def test_a_transfer_that_is_asked_for_after_its_end() -> None:
    """So a host that has to answer before its workers have acknowledged names the transfer."""
    owner = Owner(streams=False)
    owner.lender.lend_at_end("r", "t")
    owner.lender.finished("r", tables(16), 16, is_usable=True)
    owner.lender.on_stream("d", Stream("t"))
    assert states(owner) == [("QUEUED", False)], "T15"
    owner.acknowledge()
    assert states(owner) == [("ADMITTED", True)]


@pytest.mark.parametrize("is_usable", [False, True])
def test_a_request_that_never_ran_has_no_tables(*, is_usable: bool) -> None:
    owner = Owner()
    owner.lender.lend_at_end("r")
    assert owner.lender.finished("r", (), 0, is_usable=is_usable) == []
    assert owner.news() == [TicketReady("r", None)]


def test_all_is_taken_back() -> None:
    """T9."""
    owner = Owner(cached=3)
    owner.ticket("r")
    owner.lender.on_borrow("d", borrow())
    assert owner.lender.num_coming_back == 0
    owner.lender.take_back_all()
    assert owner.lender.num_coming_back == 2
    owner.acknowledge()
    assert sorted(returned(owner)) == [[1, 2, 3], [1, 2, 3, 4]]
    assert owner.lender.num_coming_back == 0
