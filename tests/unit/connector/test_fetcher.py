"""The reader's worker: where bytes may land, what it says when, and what no peer talks it into."""

from collections.abc import Callable
from typing import Any

import pytest

from kvdist.connector.effects import (
    CutLink,
    Escalate,
    ReadBytes,
    SendToOwnNode,
    SendToPeer,
    StopRead,
)
from kvdist.connector.geometry import Piece
from kvdist.connector.local import Cancel, PartEnded, PartQuiet
from kvdist.connector.messages import (
    Blocks,
    Close,
    Confirm,
    Confirmed,
    Denied,
    Open,
    Opened,
    Settled,
    StillReading,
    TokenSpans,
    Why,
)
from kvdist.ids import BlockId, Incarnation
from tests.halves import ALL, FULL, RUN, STATE, Fetching, a_part, tables

LATER_RUN = Incarnation(2)
THERE = tables(16)
DONE = [PartEnded(a_part(), ""), PartQuiet(a_part())]


def opened(fetching: Fetching, blocks: Blocks = (), settled: int = ALL) -> None:
    fetching.fetcher.on_opened("p", RUN, Opened(fetching.part, blocks, settled))


def place(fetching: Fetching, *spans: tuple[int, int]) -> list[Piece] | None:
    return fetching.fetcher.place("p", RUN, fetching.part, spans)


def landing(**settings: Any) -> Fetching:
    """A part whose bytes may come."""
    fetching = Fetching(**settings)
    opened(fetching)
    fetching.news()
    return fetching


def confirming() -> Fetching:
    """A part whose bytes are there."""
    fetching = landing()
    assert place(fetching, (0, 16)) is not None
    fetching.fetcher.landed(fetching.part, ((0, 16),))
    fetching.news()
    return fetching


def failures(fetching: Fetching) -> list[str]:
    return [m.failure for m in fetching.reported() if isinstance(m, PartEnded)]


# -- the ordinary way ------------------------------------------------------------------------------


def test_sent_bytes() -> None:
    fetching = Fetching()
    assert [type(message) for message in fetching.said()] == [Open]
    opened(fetching)
    assert place(fetching, (0, 6)) == [Piece(BlockId(101), 0, 4), Piece(BlockId(102), 0, 2)]
    fetching.fetcher.landed(fetching.part, ((0, 6),))
    assert place(fetching, (6, 16)) is not None
    assert fetching.news() == []
    fetching.fetcher.landed(fetching.part, ((0, 16),))
    assert fetching.said() == [Confirm(fetching.part, fetching.fetch.lease)]
    fetching.fetcher.on_confirmed("p", RUN, Confirmed(fetching.part))
    assert fetching.reported() == DONE
    assert fetching.fetcher.num_open == 0
    assert not len(fetching.fetcher.timers)


def test_bytes_that_it_reads_itself() -> None:
    fetching = Fetching()
    fetching.news()
    opened(fetching, THERE, 16)
    (read,) = fetching.news()
    assert isinstance(read, ReadBytes)
    assert [piece.block for piece in read.source] == [1, 2, 3, 4]
    assert [piece.block for piece in read.target] == [101, 102, 103, 104]
    fetching.fetcher.landed(fetching.part, read.spans)
    assert [type(message) for message in fetching.said()] == [Confirm]


def test_e1_the_owners_blocks_are_read_by_their_own_size() -> None:
    fetching = Fetching(num_tokens=16, wanted=((4, 16),))
    fetching.news()
    large = ((BlockId(7), BlockId(9)),)
    fetching.fetcher.on_opened("p", RUN, Opened(fetching.part, large, ALL, (8,)))
    (read,) = fetching.news()
    assert isinstance(read, ReadBytes)
    assert read.source == [Piece(BlockId(7), 4, 4), Piece(BlockId(9), 0, 8)]
    assert sum(piece.num_slots for piece in read.target) == 12


@pytest.mark.parametrize("blocks", [(), ((),), ((), ()), THERE])
@pytest.mark.parametrize("sizes", [(), (0,), (4, 4)])
def test_nothing_is_wanted(blocks: Blocks, sizes: tuple[int, ...]) -> None:
    """Whoever lacks nothing still hears whether it is good, whatever the owner's tables are."""
    fetching = Fetching(FULL, STATE, wanted=((16, 16), (16, 16)))
    fetching.fetcher.on_opened("p", RUN, Opened(fetching.part, blocks, ALL, sizes))
    assert [type(message) for message in fetching.said()] == [Open, Confirm]


def test_a_stream_is_read_as_it_settles_one_read_at_a_time() -> None:
    fetching = Fetching()
    opened(fetching, THERE, 6)
    spans = []
    for settled in (9, 9, 12, 5, 16):
        fetching.fetcher.on_settled("p", RUN, Settled(fetching.part, settled))
    for _ in range(2):
        (read,) = [effect for effect in fetching.news() if isinstance(effect, ReadBytes)]
        spans.append(read.spans)
        fetching.fetcher.landed(fetching.part, read.spans)
    assert spans == [((0, 6),), ((6, 16),)]
    assert [type(message) for message in fetching.said()] == [Confirm]


def test_a_reader_that_has_caught_up_goes_on_when_more_settles() -> None:
    fetching = Fetching()
    opened(fetching, THERE, 6)
    fetching.fetcher.landed(fetching.part, ((0, 6),))
    fetching.news()
    fetching.fetcher.on_settled("p", RUN, Settled(fetching.part, 9))
    (read,) = fetching.news()
    assert isinstance(read, ReadBytes)
    assert read.spans == ((6, 9),)


def test_progress_restarts_the_clock() -> None:
    """T16: what is slow isn't stalled."""
    fetching = landing(stall_s=10.0)
    for token in range(15):
        fetching.later(9.0)
        assert place(fetching, (token, token + 1)) is not None
        fetching.fetcher.landed(fetching.part, ((token, token + 1),))
    assert fetching.news() == []
    fetching.later(10.0)
    assert failures(fetching) == ["no progress"]


def test_bytes_that_trickle() -> None:
    """T10: an owner that sends a token every ten seconds doesn't keep a request for ever."""
    fetching = landing(num_tokens=4000, stall_s=10.0, life_s=300.0)
    token = 0
    while place(fetching, (token, token + 1)) is not None:
        assert fetching.fetcher.now <= 320.0
        fetching.later(9.0)
        fetching.fetcher.landed(fetching.part, ((token, token + 1),))
        token += 1
    assert fetching.fetcher.now > 300.0
    assert failures(fetching) == ["no progress"]


def test_progress_is_reported_if_there_is_any() -> None:
    fetching = Fetching(progress_s=2.0, stall_s=60.0)
    opened(fetching, THERE, 4)
    (read,) = [effect for effect in fetching.news() if isinstance(effect, ReadBytes)]
    fetching.later(2.0)
    assert fetching.said() == []
    fetching.fetcher.landed(fetching.part, read.spans)
    fetching.later(2.0)
    fetching.later(2.0)
    assert fetching.said() == [StillReading(fetching.part)]


# -- what may land ---------------------------------------------------------------------------------

REFUSED: list[TokenSpans] = [
    (),
    ((0, 16), (0, 16)),
    ((0, 17),),
    ((0, 1 << 40),),
    ((4, 16),),
    ((8, 4),),
    ((0, 0),),
]


@pytest.mark.parametrize("spans", REFUSED)
def test_bytes_that_nobody_asked_for(spans: TokenSpans) -> None:
    assert place(landing(), *spans) is None


def test_a_body_that_overlaps_or_runs_backwards() -> None:
    fetching = landing()
    assert place(fetching, (0, 8)) is not None
    for spans in [(0, 8), (4, 12), (7, 16), (12, 16), (0, 4)]:
        assert place(fetching, spans) is None
    assert place(fetching, (8, 16)) is not None
    assert place(fetching, (8, 16)) is None


@pytest.mark.parametrize(
    ("peer", "run", "pull"), [("e", 1, 1), ("p", 2, 1), ("p", 1, 2)], ids=["peer", "run", "part"]
)
def test_bytes_of_strangers(peer: str, run: int, pull: int) -> None:
    fetching = landing()
    assert fetching.fetcher.place(peer, Incarnation(run), a_part(pull), ((0, 16),)) is None


def test_bytes_at_another_time() -> None:
    early = Fetching()
    assert place(early, (0, 16)) is None
    assert place(confirming(), (0, 16)) is None
    reading = Fetching()
    opened(reading, THERE)
    assert place(reading, (0, 16)) is None, "it reads by itself"
    over = landing()
    over.fetcher.on_cancel(Cancel(over.part))
    assert place(over, (0, 16)) is None


def test_nothing_again_and_again_is_no_progress() -> None:
    """T16: empty bodies don't keep a part alive."""
    fetching = landing(stall_s=10.0)
    for _ in range(20):
        assert place(fetching, (0, 0)) is None
        fetching.later(1.0)
    assert failures(fetching) == ["no progress"]


# -- liars -----------------------------------------------------------------------------------------

LIES: list[tuple[str, Blocks]] = [
    ("too short", tables(12)),
    ("a hole", ((BlockId(1), BlockId(0), BlockId(3), BlockId(4)),)),
    ("no blocks", ((),)),
]


@pytest.mark.parametrize(("lie", "blocks"), LIES, ids=[lie for lie, _ in LIES])
def test_tables_that_lack_a_block(lie: str, blocks: Blocks) -> None:
    fetching = Fetching()
    opened(fetching, blocks)
    *_, stop = fetching.news()
    assert isinstance(stop, StopRead)
    fetching.fetcher.quiet(fetching.part)
    assert fetching.said() == [Close(fetching.part)]


@pytest.mark.parametrize("sizes", [(0,), (4, 4), (1 << 40,)])
def test_block_sizes_that_make_no_sense(sizes: tuple[int, ...]) -> None:
    fetching = Fetching()
    table = ((BlockId(1),),) if sizes != (1 << 40,) else ((),)
    fetching.fetcher.on_opened("p", RUN, Opened(fetching.part, table, ALL, sizes))
    assert failures(fetching) == ["the owner's tables lack a block"]


Say = Callable[[Fetching], None]
UNASKED: list[tuple[str, Say]] = [
    ("opened by another", lambda f: f.fetcher.on_opened("e", RUN, Opened(f.part, ()))),
    ("opened by a later run", lambda f: f.fetcher.on_opened("p", LATER_RUN, Opened(f.part, ()))),
    ("opened, another part", lambda f: f.fetcher.on_opened("p", RUN, Opened(a_part(2), ()))),
    ("denied by another", lambda f: f.fetcher.on_denied("e", Denied(f.part, Why.GONE))),
    ("confirmed at once", lambda f: f.fetcher.on_confirmed("p", RUN, Confirmed(f.part))),
    ("settled at once", lambda f: f.fetcher.on_settled("p", RUN, Settled(f.part, 16))),
    ("landed, another part", lambda f: f.fetcher.landed(a_part(2), ((0, 16),))),
    ("failed at once", lambda f: f.fetcher.read_failed(f.part, "no")),
    ("quiet at once", lambda f: f.fetcher.quiet(f.part)),
    ("another link lost", lambda f: f.fetcher.link_lost("q/0")),
    ("cancelled, another part", lambda f: f.fetcher.on_cancel(Cancel(a_part(2)))),
]


@pytest.mark.parametrize("say", [s for _, s in UNASKED], ids=[name for name, _ in UNASKED])
def test_what_nobody_asked_for_changes_nothing(say: Say) -> None:
    fetching = Fetching()
    fetching.news()
    say(fetching)
    assert fetching.news() == []
    opened(fetching)
    assert place(fetching, (0, 16)) is not None


def test_good_only_if_the_owner_itself_confirms_and_only_then() -> None:
    fetching = landing()
    fetching.fetcher.on_confirmed("p", RUN, Confirmed(fetching.part))
    assert fetching.reported() == [], "before the bytes"
    fetching = confirming()
    fetching.fetcher.on_confirmed("e", RUN, Confirmed(fetching.part))
    fetching.fetcher.on_confirmed("p", LATER_RUN, Confirmed(fetching.part))
    assert fetching.reported() == [], "by somebody else"
    for _ in range(3):
        fetching.fetcher.on_confirmed("p", RUN, Confirmed(fetching.part))
    assert fetching.reported() == DONE, "once"


def test_opened_twice() -> None:
    fetching = landing()
    opened(fetching, THERE)
    assert fetching.news() == []
    assert place(fetching, (0, 16)) is not None


# -- failure ---------------------------------------------------------------------------------------


def test_quiet_is_what_this_worker_knows_itself() -> None:
    """T3: neither a denial nor the end of the link says that nothing lands any more."""
    fetching = landing()
    assert place(fetching, (0, 16)) is not None
    fetching.fetcher.on_denied("p", Denied(fetching.part, Why.GONE))
    fetching.fetcher.link_lost("p/0")
    fetching.fetcher.on_cancel(Cancel(fetching.part))
    ended, stop = fetching.news()
    assert isinstance(ended, SendToOwnNode)
    assert stop == StopRead("p/0", fetching.part)
    fetching.fetcher.quiet(fetching.part)
    assert fetching.news() == [
        SendToPeer("p/0", Close(fetching.part)),
        SendToOwnNode(PartQuiet(fetching.part)),
    ]


def test_bytes_that_land_after_it_failed() -> None:
    fetching = landing()
    assert place(fetching, (0, 16)) is not None
    fetching.fetcher.link_lost("p/0")
    assert failures(fetching) == ["the link was lost"]
    fetching.fetcher.landed(fetching.part, ((0, 16),))
    assert fetching.reported() == [], "quiet comes by itself"
    fetching.fetcher.quiet(fetching.part)
    fetching.fetcher.landed(fetching.part, ((0, 16),))
    fetching.fetcher.quiet(fetching.part)
    assert fetching.reported() == [PartQuiet(fetching.part)]
    assert fetching.fetcher.counts.total() == 2


def test_a_read_that_fails() -> None:
    """Other bytes of it may still be under way."""
    fetching = Fetching()
    opened(fetching, THERE)
    fetching.news()
    fetching.fetcher.read_failed(fetching.part, "no such region")
    assert failures(fetching) == ["no such region"]
    assert fetching.fetcher.num_open == 1
    fetching.fetcher.read_failed(fetching.part, "and again")
    assert fetching.news() == []


def test_a_read_that_does_not_move_has_its_link_cut() -> None:
    """T16."""
    fetching = landing(stall_s=10.0)
    fetching.later(10.0)
    assert CutLink("p/0") in fetching.news()


def test_b1_what_does_not_come_to_rest_costs_more_and_more() -> None:
    """T17: the link, the endpoint, the context, the worker; quiet never comes by time alone."""
    fetching = landing(stall_s=10.0)
    fetching.later(10.0)
    levels = []
    for second in range(1, 1000):
        fetching.later(1.0)
        levels += [(second, e.level) for e in fetching.news() if isinstance(e, Escalate)]
    assert levels == [(5, 0), (15, 1), (30, 2), (60, 3)]
    assert fetching.fetcher.num_open == 1


@pytest.mark.parametrize("denial", list(Why))
def test_denied(denial: Why) -> None:
    fetching = Fetching()
    fetching.news()
    fetching.fetcher.on_denied("p", Denied(fetching.part, denial))
    (ended, _) = fetching.reported()
    assert isinstance(ended, PartEnded)
    assert denial.name.lower() in ended.failure


def test_k3() -> None:
    """Questions are repeated, so that a lost answer hangs nobody."""
    fetching = Fetching(answer_s=1.0, tries=5)
    for _ in range(4):
        fetching.later(1.0)
    assert [type(message) for message in fetching.said()] == [Open] * 5
    fetching.later(1.0)
    assert fetching.news()[0] == SendToPeer("p/0", Close(fetching.part))
    assert fetching.fetcher.num_open == 0
    again = confirming()
    again.later(1.0)
    assert [type(message) for message in again.said()] == [Confirm]
    again.fetcher.link_lost("p/0")
    again.later(1.0)
    assert [type(message) for message in again.said()] == [Confirm], "on the next link"
    again.fetcher.on_confirmed("p", RUN, Confirmed(again.part))
    assert again.reported() == DONE


def test_a_later_run_of_the_owner_may_deny() -> None:
    fetching = confirming()
    fetching.fetcher.on_denied("p", Denied(fetching.part, Why.GONE))
    assert failures(fetching) == ["the owner says gone"]


def test_a_later_body_lands_first() -> None:
    """T3: over another link of its owner's; the earlier one still lands."""
    fetching = landing()
    assert place(fetching, (0, 8)) is not None
    assert place(fetching, (8, 16)) is not None
    fetching.news()
    fetching.fetcher.landed(fetching.part, ((8, 16),))
    assert fetching.said() == []
    fetching.fetcher.landed(fetching.part, ((0, 8),))
    assert [type(message) for message in fetching.said()] == [Confirm]


@pytest.mark.parametrize(
    ("fetching", "why", "is_gone"),
    [
        (Fetching, Why.GONE, True),
        (landing, Why.GONE, True),
        (confirming, Why.GONE, False),
        (Fetching, Why.TAKEN, False),
        (Fetching, Why.REFUSED, False),
    ],
)
def test_when_it_is_the_lease_that_has_gone(
    fetching: Callable[[], Fetching], why: Why, is_gone: bool
) -> None:
    """A confirm is denied for the sake of its hold: another round may go better."""
    one = fetching()
    one.fetcher.on_denied("p", Denied(one.part, why))
    (ended,) = [m for m in one.reported() if isinstance(m, PartEnded)]
    assert ended.is_lease_gone == is_gone
