"""The reader's node: what it asks for, what it pulls, and what becomes of requests."""

from typing import Any

import pytest

from kvdist.connector.effects import SendToNode
from kvdist.connector.host import Loaded, LoadFailed, LoadQuiet
from kvdist.connector.local import Cancel, Fetch, PartEnded
from kvdist.connector.messages import (
    MAX_LIST,
    Borrow,
    Lent,
    Progress,
    Release,
    Renew,
    Stream,
    StreamState,
    Ticket,
)
from kvdist.connector.params import ByHash, ByTransfer
from kvdist.errors import InvalidRequest
from kvdist.ids import BlockId, Incarnation, LeaseId, NodeId, PullId
from tests.halves import NOBODYS, RUN, STATE, Reader, a_part, a_ticket, tables

BY_STREAM = ByTransfer("p", "t")
#: Of the first pull of a test.
QUIET = LoadQuiet("r", [BlockId(block) for block in (1, 2, 3, 4)])


def kinds(reader: Reader) -> list[str]:
    """What it said to nodes, but for renewals."""
    return [type(m).__name__ for _, m in reader.said() if not isinstance(m, Renew)]


def moved(reader: Reader) -> list[object]:
    return [effect for effect in reader.news() if not isinstance(effect, SendToNode)]


def failed(reader: Reader) -> list[LoadFailed]:
    return [effect for effect in moved(reader) if isinstance(effect, LoadFailed)]


# -- a pull, from its ticket to its release --------------------------------------------------------


def test_from_the_ticket_to_the_release() -> None:
    reader = Reader()
    reader.come("r", a_ticket())
    assert reader.said() == [("p", Renew((a_ticket().lease,)))]
    (fetch,) = reader.admit("r")
    assert (fetch.owner, fetch.owner_run, fetch.wanted) == ("p", 1, ((0, 16),))
    assert reader.match("r") is None, "it waits for its bytes"
    reader.end([fetch])
    assert reader.news() == [Loaded("r"), SendToNode("p", Release(a_ticket().lease, RUN))]
    reader.borrower.on_released("p", a_ticket().lease)
    assert reader.borrower.num_open == 0
    assert len(reader.borrower.timers) <= 1, "the next renewal, of nothing"


def test_a4() -> None:
    """All is here already: nothing moves, and the lease goes back at once."""
    reader = Reader()
    reader.come("r", a_ticket())
    assert reader.match("r", 16) == 0
    assert reader.admit("r", 16) == []
    assert kinds(reader) == ["Release"]


def test_only_what_is_missing_comes() -> None:
    """F2: the tail, not the head."""
    reader = Reader()
    reader.come("r", a_ticket(num_tokens=32), 33)
    (fetch,) = reader.admit("r", 12)
    assert fetch.wanted == ((12, 32),)
    assert fetch.targets == ((1, 2, 3, 4, 5, 6, 7, 8),)


@pytest.mark.parametrize(("known", "expected"), [(16, 15), (17, 16), (18, 16), (10, 0), (1, 0)])
def test_one_token_is_left_to_compute(known: int, expected: int) -> None:
    """F1: whatever the router added; a prompt shorter than the lease can't be shown to begin it."""
    reader = Reader()
    reader.come("r", a_ticket(), known)
    assert reader.match("r") == expected


@pytest.mark.parametrize(("known", "expected"), [(16, 0), (17, 16), (18, 16)])
def test_a_state_only_where_it_is_of(known: int, expected: int) -> None:
    """F14, T6."""
    reader = Reader(STATE)
    reader.come("r", a_ticket(), known)
    assert reader.match("r") == expected


def test_too_little_to_be_worth_it() -> None:
    reader = Reader(min_pull_tokens=8)
    reader.come("r", a_ticket())
    assert reader.match("r", 8) == 8
    assert reader.match("r", 12) == 0


def test_a_release_is_repeated_until_it_is_answered() -> None:
    """T4, K3."""
    reader = Reader(answer_s=1.0, tries=5)
    reader.come("r", a_ticket())
    reader.borrower.finished("r")
    for _ in range(3):
        assert kinds(reader) == ["Release"]
        reader.later(1.0)
    reader.news()
    reader.borrower.on_released("thief", a_ticket().lease)
    assert reader.borrower.num_open == 1
    reader.borrower.on_released("p", a_ticket().lease)
    reader.borrower.on_released("p", a_ticket().lease)
    assert reader.borrower.num_open == 0
    assert reader.borrower.counts["releases answered twice"] == 2
    reader.later(60.0)
    assert reader.said() == []


def test_a_release_that_is_never_answered() -> None:
    reader = Reader(tries=5)
    reader.come("r", a_ticket())
    reader.borrower.finished("r")
    for _ in range(20):
        reader.later(1.0)
    assert kinds(reader) == ["Release"] * 5
    assert reader.borrower.num_open == 0


def test_renewals_are_one_message_a_peer() -> None:
    """T22: all that is still wanted, and no more."""
    reader = Reader()
    for i in range(3):
        reader.come(f"r{i}", a_ticket(b"lease number 00%d" % i))
    reader.borrower.finished("r1")
    reader.news()
    reader.later(5.0)
    renewals = [message for _, message in reader.said() if isinstance(message, Renew)]
    assert [len(renewal.leases) for renewal in renewals] == [2]


def test_many_tickets_cost_a_renewal_each() -> None:
    """And not one of all for each; later they go together, in messages that a peer takes."""
    reader = Reader()
    for i in range(300):
        reader.come(f"r{i}", a_ticket(b"lease number %03d" % i))
    renewals = [message for _, message in reader.said() if isinstance(message, Renew)]
    assert [len(renewal.leases) for renewal in renewals] == [1] * 300
    reader.later(5.0)
    renewals = [message for _, message in reader.said() if isinstance(message, Renew)]
    assert [len(renewal.leases) for renewal in renewals] == [300]


def test_more_leases_than_a_message_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvdist.connector.wants.MAX_LIST", 2)
    reader = Reader()
    for i in range(5):
        reader.come(f"r{i}", a_ticket(b"lease number %03d" % i))
    reader.news()
    reader.later(5.0)
    renewals = [message for _, message in reader.said() if isinstance(message, Renew)]
    assert [len(renewal.leases) for renewal in renewals] == [2, 2, 1]


# -- tickets that make no sense --------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [0, 3, 5, 6])
def test_e5_a_ticket_of_ranks_that_cannot_share(ranks: int) -> None:
    """The client hears so at once; the node lives."""
    reader = Reader(heads=4)
    with pytest.raises(InvalidRequest, match="tp_size"):
        reader.come("r", a_ticket(ranks=ranks))
    assert reader.borrower.num_open == 0


def ask(reader: Reader, name: str = "r") -> Borrow:
    reader.come(name, ByHash("p"))
    (message,) = [message for _, message in reader.said() if isinstance(message, Borrow)]
    return message


@pytest.mark.parametrize(
    "ticket",
    [
        a_ticket(ranks=0),
        a_ticket(ranks=3),
        Ticket(LeaseId(b"of another node."), "q", RUN, 16, 30_000, a_ticket().num_ranks),
    ],
)
def test_a_peer_that_lends_nonsense(ticket: Ticket) -> None:
    """The node lives, and asks nobody else in that peer's name."""
    reader = Reader(heads=4)
    question = ask(reader)
    reader.borrower.on_lent("p", Lent(question.number, RUN, ticket))
    assert reader.match("r") == 0
    assert reader.borrower.counts["tickets that can't be used"] == 1
    assert reader.borrower.num_open == 0


def test_a_ticket_of_more_tokens_than_there_are() -> None:
    reader = Reader()
    reader.come("r", a_ticket(num_tokens=1 << 40))
    assert reader.match("r") == 0
    states = Reader(STATE)
    states.come("r", a_ticket(num_tokens=1 << 40))
    assert states.match("r") == 0


def test_our_own_ticket() -> None:
    """What this node holds is a local hit; the lease goes back."""
    reader = Reader()
    mine = Ticket(a_ticket().lease, "d", RUN, 16, 30_000, a_ticket().num_ranks)
    reader.come("r", mine)
    assert reader.match("r") == 0
    assert reader.admit("r") == []
    assert [node for node, m in reader.said() if isinstance(m, Release)] == ["d"]


# -- by hash ---------------------------------------------------------------------------------------


def test_asked_lent_and_given_back() -> None:
    reader = Reader()
    question = ask(reader)
    assert len(question.hashes) == 4, "of 17 tokens the last is computed here"
    assert reader.match("r") is None
    reader.borrower.on_lent("p", Lent(question.number, RUN, a_ticket(num_tokens=8)))
    assert reader.match("r") == 8


def test_a_wrong_hint_costs_one_round_trip() -> None:
    reader = Reader()
    question = ask(reader)
    reader.borrower.on_lent("p", Lent(question.number, RUN, None))
    assert reader.match("r") == 0
    assert reader.borrower.num_open == 0


def test_a_node_does_not_ask_itself() -> None:
    reader = Reader()
    reader.come("r", ByHash("d"))
    assert reader.news() == []
    assert reader.match("r") == 0


def test_a3() -> None:
    """Who never answers is asked a few times; then the request goes on without."""
    reader = Reader(answer_s=1.0, tries=5)
    ask(reader)
    for _ in range(5):
        assert reader.match("r") is None
        reader.later(1.0)
    assert kinds(reader) == ["Borrow"] * 4
    assert reader.match("r") == 0
    assert reader.borrower.num_open == 0


def test_what_nobody_wants_any_more_goes_back_at_once() -> None:
    reader = Reader()
    question = ask(reader)
    reader.borrower.finished("r")
    assert reader.borrower.num_open == 0
    for _ in range(2):
        reader.borrower.on_lent("p", Lent(question.number, RUN, a_ticket()))
        assert kinds(reader) == ["Release"]


def test_the_same_answer_twice() -> None:
    reader = Reader()
    question = ask(reader)
    for _ in range(2):
        reader.borrower.on_lent("p", Lent(question.number, RUN, a_ticket()))
    assert kinds(reader) == [], "it isn't released, it is the same lease"
    assert reader.match("r") == 16


def test_two_loans_for_one_question() -> None:
    reader = Reader()
    question = ask(reader)
    other = a_ticket(b"another lease...")
    reader.borrower.on_lent("p", Lent(question.number, RUN, a_ticket()))
    reader.borrower.on_lent("p", Lent(question.number, RUN, other))
    assert [m for _, m in reader.said() if isinstance(m, Release)] == [Release(other.lease, RUN)]


def test_an_answer_to_an_earlier_run() -> None:
    """Both runs have a first question; the lent blocks are of another prompt's tokens."""
    before = Reader(run=1)
    question = ask(before)
    late = Lent(question.number, question.reader_run, a_ticket())
    reader = Reader(run=2)
    reader.come("other", ByHash("p"), 17, first_token=1000)
    reader.news()
    reader.borrower.on_lent("p", late)
    assert reader.match("other") is None, "it waits for its own answer"
    assert kinds(reader) == ["Release"]


@pytest.mark.parametrize(("peer", "number"), [("thief", 1), ("p", 0), ("p", 2), ("p", 1 << 63)])
def test_answers_that_nobody_asked_for(peer: NodeId, number: int) -> None:
    reader = Reader()
    ask(reader)
    reader.come("s", BY_STREAM)
    reader.news()
    reader.borrower.on_lent(peer, Lent(PullId(number), RUN, a_ticket()))
    assert reader.match("r") is None
    assert reader.match("s") is None
    assert [(node, type(m)) for node, m in reader.said()] == [(peer, Release)]


# -- reading along ---------------------------------------------------------------------------------


def test_asked_until_it_is_admitted() -> None:
    reader = Reader(answer_s=1.0, tries=5)
    reader.come("r", BY_STREAM)
    for _ in range(20):
        assert reader.match("r") is None
        reader.borrower.on_stream_state("p", StreamState("t", Progress.QUEUED, None))
        reader.later(1.0)
    reader.borrower.on_stream_state("p", StreamState("t", Progress.ADMITTED, a_ticket()))
    assert reader.match("r") == 16


def test_a_peer_that_says_for_ever_that_it_will_come() -> None:
    """A3: the wait has an end."""
    reader = Reader(life_s=300.0)
    reader.come("r", BY_STREAM)
    seconds = 0
    while reader.match("r") is None:
        reader.borrower.on_stream_state("p", StreamState("t", Progress.QUEUED, None))
        reader.later(1.0)
        seconds += 1
        assert seconds < 400
    assert seconds > 300
    assert reader.borrower.num_open == 0


@pytest.mark.parametrize("progress", [Progress.GONE, Progress.ADMITTED])
def test_a_stream_that_is_over(progress: Progress) -> None:
    reader = Reader()
    reader.come("r", BY_STREAM)
    reader.borrower.on_stream_state("p", StreamState("t", progress, None))
    assert reader.match("r") == 0


def test_a_stream_of_another_peer() -> None:
    reader = Reader()
    reader.come("r", BY_STREAM)
    reader.borrower.on_stream_state("thief", StreamState("t", Progress.GONE, None))
    assert reader.match("r") is None


# -- failure ---------------------------------------------------------------------------------------


def test_a_failed_pull_is_tried_again_when_it_is_quiet() -> None:
    """T2: in blocks of its own."""
    reader = Reader(max_rounds=2)
    reader.come("r", a_ticket())
    first = reader.admit("r")
    reader.end(first, "gone")
    assert failed(reader) == [LoadFailed("r", "gone", again=True)]
    assert reader.match("r") is None
    assert reader.borrower.num_quarantined == 4
    reader.quiet(first)
    assert moved(reader) == [QUIET]
    second = reader.admit("r")
    assert first[0].part != second[0].part
    assert set(first[0].targets[0]).isdisjoint(second[0].targets[0])


@pytest.mark.parametrize(
    ("settings", "again"),
    [
        ({"max_rounds": 1}, True),
        ({"max_rounds": 1, "on_failure": "fail"}, False),
        ({"max_rounds": 1, "max_recompute_tokens": 15}, False),
        ({"max_rounds": 1, "max_recompute_tokens": 16}, True),
        ({"max_rounds": 2, "on_failure": "fail"}, True),
    ],
)
def test_what_becomes_of_the_request(settings: dict[str, Any], again: bool) -> None:
    reader = Reader(**settings)
    reader.come("r", a_ticket())
    fetches = reader.admit("r")
    reader.end(fetches, "gone")
    is_busy = not again and "on_failure" not in settings  # 503, and not 500
    assert failed(reader) == [LoadFailed("r", "gone", again, is_busy)]
    reader.quiet(fetches)
    assert reader.match("r") == (0 if settings["max_rounds"] == 1 else 16)


def test_recomputations_do_not_add_up() -> None:
    """P1: as many at a time as the limit allows; a finished one makes room."""
    reader = Reader(max_rounds=1, max_recompute_tokens=32)
    verdicts = []
    for i in range(4):
        reader.come(f"r{i}", a_ticket(b"lease number 00%d" % i))
        fetches = reader.admit(f"r{i}")
        reader.end(fetches, "gone")
        reader.quiet(fetches)
        verdicts += [failure.again for failure in failed(reader)]
        if i == 2:
            reader.borrower.settled("r0", 16)
    assert verdicts == [True, True, False, True]
    assert reader.borrower.counts["recomputations over the limit"] == 1


def test_b13() -> None:
    """One part fails fast, the other writes on: nothing is free before both are quiet."""
    reader = Reader(heads=4)
    reader.come("r", a_ticket(ranks=2))
    one, two = reader.admit("r")
    reader.end([one], "the link was lost")
    reader.quiet([one])
    assert [type(effect) for effect in moved(reader)] == [LoadFailed]
    assert reader.told_workers() == [(0, Cancel(two.part))]
    reader.end([two], "cancelled")
    assert moved(reader) == []
    reader.quiet([two])
    assert moved(reader) == [QUIET]


def test_a15() -> None:
    """Complete is the set of parts that there are, not a constant."""
    reader = Reader(heads=1, ranks=4)
    reader.come("r", a_ticket(ranks=2))
    fetches = reader.admit("r")
    assert len(fetches) == 4
    for fetch in fetches:
        assert moved(reader) == []
        reader.end([fetch])
    assert moved(reader) == [Loaded("r")]


def test_c3_and_k6() -> None:
    """Verdicts twice, for nobody, of strangers' parts: counted, and nothing follows."""
    reader = Reader()
    reader.come("r", a_ticket())
    fetches = reader.admit("r")
    reader.quiet(fetches)
    reader.end(fetches)
    reader.news()
    reader.end(fetches)
    reader.end(fetches, "gone")
    reader.quiet(fetches)
    reader.borrower.on_part_ended(PartEnded(a_part(99), ""))
    reader.borrower.on_part_quiet(a_part(99))
    assert reader.news() == []
    assert reader.borrower.counts["verdicts twice"] == 3


def test_a_lease_that_is_lost_while_it_is_read() -> None:
    """The pull goes on, by its own hold; nobody releases what is gone."""
    reader = Reader()
    reader.come("r", a_ticket())
    fetches = reader.admit("r")
    reader.borrower.on_withdrawn("p", a_ticket().lease)
    reader.later(5.0)
    reader.end(fetches)
    assert moved(reader) == [Loaded("r")]
    assert reader.borrower.num_open == 0


def test_a_lease_that_is_lost_before_it_is_read() -> None:
    reader = Reader()
    reader.come("r", a_ticket())
    reader.borrower.on_withdrawn("thief", a_ticket().lease)
    assert reader.match("r") == 16
    reader.borrower.on_withdrawn("p", NOBODYS)
    reader.borrower.on_withdrawn("p", a_ticket().lease)
    assert reader.match("r") == 0
    assert reader.borrower.counts["unknown leases withdrawn"] == 2


@pytest.mark.parametrize(("seen", "left"), [(1, 16), (2, 16), (3, 0)])
def test_another_run_of_the_owner(seen: int, left: int) -> None:
    """D14, T21: what an earlier run promised is nothing; what an earlier run says late, too."""
    reader = Reader()
    reader.come("r", a_ticket(run=2))
    reader.borrower.node_seen("p", Incarnation(seen))
    reader.borrower.node_seen("p", Incarnation(1))
    assert reader.match("r") == left


def test_a_ticket_of_an_earlier_run() -> None:
    """D15: it was held back on its way until its owner had started anew."""
    reader = Reader()
    reader.borrower.node_seen("p", Incarnation(2))
    reader.come("r", a_ticket(run=1))
    assert reader.match("r") == 0


def test_two_owners_whose_leases_have_one_name() -> None:
    """Each says what becomes of its own."""
    reader = Reader()
    reader.borrower.node_seen("q", RUN)
    reader.come("of p", a_ticket())
    reader.come("of q", a_ticket(node="q", num_tokens=8))
    assert (reader.match("of p"), reader.match("of q")) == (16, 8)
    reader.borrower.on_withdrawn("p", a_ticket().lease)
    assert (reader.match("of p"), reader.match("of q")) == (0, 8)
    reader.borrower.finished("of q")
    reader.borrower.on_released("q", a_ticket().lease)
    assert reader.borrower.num_open == 0


def test_two_runs_of_an_owner_whose_leases_have_one_name() -> None:
    """A ticket of a run that wasn't heard of yet; what the earlier run says isn't about it."""
    reader = Reader()
    reader.come("old", a_ticket())
    reader.come("new", a_ticket(run=2, num_tokens=8))
    reader.borrower.on_withdrawn("p", a_ticket().lease)
    assert (reader.match("old"), reader.match("new")) == (0, 8)
    reader.borrower.node_seen("p", Incarnation(2))
    reader.borrower.on_withdrawn("p", a_ticket().lease)
    assert reader.match("new") == 0


def test_requests_that_want_nothing_of_others() -> None:
    reader = Reader()
    reader.borrower.admitted("local", tables(16), 0, 0)
    reader.borrower.settled("local", 16)
    reader.borrower.finished("local")
    assert reader.news() == []


# -- several that want the same --------------------------------------------------------------------


def test_one_ticket_for_several() -> None:
    """A7, T19: one claim, released when the last has been admitted."""
    reader = Reader()
    for name in ("a", "b"):
        reader.come(name, a_ticket())
    fetches = reader.admit("a")
    assert reader.match("b") is None, "it waits for the same bytes"
    reader.end(fetches)
    assert kinds(reader) == []
    assert reader.match("b", 16) == 0
    reader.admit("b", 16)
    assert kinds(reader) == ["Release"]


def test_one_content_by_two_leases() -> None:
    """A10, T20: pulled once; the other lease is given back."""
    reader = Reader()
    reader.come("a", a_ticket())
    reader.come("b", a_ticket(b"another lease..."))
    fetches = reader.admit("a")
    assert reader.match("b") is None
    reader.end(fetches)
    assert reader.match("b", 16) == 0
    reader.admit("b", 16)
    reader.news()
    assert [m for _, m in reader.said()] == []
    assert reader.borrower.num_open == 2, "both are being released"


def test_who_asked_first_goes_away() -> None:
    """T20: its pull goes on for the other."""
    reader = Reader()
    reader.come("a", a_ticket())
    reader.come("b", a_ticket(b"another lease..."))
    fetches = reader.admit("a")
    reader.borrower.finished("a")
    assert not [m for _, m in reader.told_workers() if isinstance(m, Cancel)]
    reader.end(fetches)
    assert moved(reader) == [Loaded("a")]


@pytest.mark.parametrize("lease", [b"a lease of p....", b"another lease..."])
def test_who_it_went_on_for_goes_away_too(lease: bytes) -> None:
    """T20: nobody waits any more, by whichever lease."""
    reader = Reader()
    reader.come("a", a_ticket())
    reader.come("b", a_ticket(lease))
    fetches = reader.admit("a")
    reader.borrower.finished("a")
    assert not reader.told_workers()
    reader.borrower.finished("b")
    assert [m for _, m in reader.told_workers()] == [Cancel(fetches[0].part)]
    reader.end(fetches, "cancelled")
    reader.quiet(fetches)
    leases = {a_ticket().lease, LeaseId(lease)}
    released = {m.lease for _, m in reader.said() if isinstance(m, Release)}
    assert released == leases


def test_the_last_that_wanted_it_goes_away() -> None:
    reader = Reader()
    reader.come("a", a_ticket())
    fetches = reader.admit("a")
    reader.borrower.finished("a")
    assert [m for _, m in reader.told_workers()] == [Cancel(fetches[0].part)]
    assert [type(event) for event in moved(reader)] == [LoadFailed]
    reader.end(fetches, "cancelled")
    assert kinds(reader) == [], "not while a pull of it is under way"
    reader.quiet(fetches)
    told: list[object] = []
    for effect in reader.news():
        if isinstance(effect, SendToNode):
            told.append(effect.message)
        else:
            assert isinstance(effect, LoadQuiet)
    assert told == [Release(a_ticket().lease, RUN)]


def test_parts_are_for_the_ranks_that_have_the_heads() -> None:
    reader = Reader(heads=4, ranks=2)
    reader.come("r", a_ticket(ranks=4))
    fetches = reader.admit("r")
    where = [(fetch.part.reader, fetch.address, fetch.heads) for fetch in fetches]
    assert where == [
        (0, "p/0", (0, 1)), (0, "p/1", (1, 2)), (1, "p/2", (2, 3)), (1, "p/3", (3, 4)),
    ]  # fmt: skip
    assert all(isinstance(fetch, Fetch) for fetch in fetches)


def test_what_a_stream_is_asked_by() -> None:
    reader = Reader()
    reader.come("r", BY_STREAM)
    assert [m for _, m in reader.said()] == [Stream("t")]


def test_a_question_by_hash_has_an_end() -> None:
    """However long the prompt: a peer refuses longer lists, and cuts the link."""
    reader = Reader()
    reader.come("r", ByHash("p"), 4 * MAX_LIST + 9)
    ((_, message),) = reader.said()
    assert isinstance(message, Borrow)
    assert len(message.hashes) == MAX_LIST
