"""The owner's worker: what it serves, what it denies, and when it says that it has stopped."""

from collections.abc import Sequence

import pytest

from kvdist.connector.codec import decode, encode
from kvdist.connector.effects import (
    CutLink,
    SendBytes,
    SendToOwnNode,
    SendToPeer,
    StopSending,
    WorkerEffect,
)
from kvdist.connector.geometry import Group
from kvdist.connector.local import Extend, Grant, Granted, Revoke, Revoked
from kvdist.connector.messages import (
    MAX_LIST,
    OLDEST_VERSION,
    Blocks,
    Close,
    Confirmed,
    Denied,
    Heads,
    Open,
    Opened,
    Settled,
    StillReading,
    TokenSpan,
    TokenSpans,
    Why,
)
from kvdist.connector.server import MAX_PARTS
from kvdist.connector.settings import Settings
from kvdist.ids import BlockId, Incarnation
from tests.halves import (
    ALL,
    CONTENT,
    FULL,
    NOBODYS,
    RUN,
    STATE,
    WINDOW,
    Serving,
    a_part,
    tables,
)

KEY = ("d", RUN, a_part())


def denial(effects: Sequence[WorkerEffect]) -> Why | None:
    (effect,) = effects
    assert isinstance(effect, SendToPeer)
    return effect.message.why if isinstance(effect.message, Denied) else None


# -- the ordinary way ------------------------------------------------------------------------------


def test_sent_and_confirmed() -> None:
    serving = Serving()
    opened, sent = serving.open()
    assert opened == SendToPeer("link", Opened(a_part(), (), 16))
    assert isinstance(sent, SendBytes)
    assert sum(piece.num_slots for piece in sent.pieces) == 16
    serving.server.sent(KEY)
    assert serving.confirm() == [SendToPeer("link", Confirmed(a_part()))]
    assert serving.server.num_open == 0


def test_read_by_the_reader() -> None:
    serving = Serving(sends=False)
    (opened,) = serving.open()
    assert opened == SendToPeer("link", Opened(a_part(), tables(16), 16, (4,)))
    assert serving.confirm() == [SendToPeer("link", Confirmed(a_part()))]


def test_a_repeat_gets_the_same_answer() -> None:
    serving = Serving()
    serving.open()
    assert [type(effect) for effect in serving.open()] == [SendToPeer], "opened, and sent once"
    serving.server.sent(KEY)
    for _ in range(3):
        assert serving.confirm() == [SendToPeer("link", Confirmed(a_part()))], "T4"
    assert denial(serving.open()) is Why.GONE


def test_a_verdict_is_kept_for_a_while() -> None:
    serving = Serving(verdict_s=60.0)
    serving.open()
    serving.server.sent(KEY)
    serving.confirm()
    serving.later(59.0)
    assert denial(serving.confirm()) is None
    serving.later(1.0)
    assert denial(serving.confirm()) is Why.GONE


def flood(serving: Serving, count: int) -> list[Why | None]:
    """One peer opens and closes one part after the other; what it is told at first."""
    told = []
    for pull in range(count):
        told.append(denial(serving.open(a_part(pull), reader="flood", link="its")[:1]))
        serving.server.on_close("flood", RUN, Close(a_part(pull)))
        serving.news()
    return told


def test_a_peer_has_a_share_of_verdicts() -> None:
    """T4: it is refused when it has used that up; another peer's verdict stands, and it goes on."""
    serving = Serving(sends=False, max_verdicts_per_peer=100, verdict_s=60.0)
    serving.open()
    serving.confirm()
    assert flood(serving, 300) == [None] * 100 + [Why.REFUSED] * 200
    assert serving.server.counts["pulls beyond a peer's share of verdicts"] == 200
    assert denial(serving.confirm()) is None, "the answer was lost, and is given again"
    assert denial(serving.open(a_part(2))) is None
    assert len(serving.server._verdicts) == 101
    serving.server.on_close("d", RUN, Close(a_part(2)))
    serving.later(60.0)
    serving.news()
    assert not serving.server._verdicts and not serving.server._num_kept
    assert flood(serving, 101) == [None] * 100 + [Why.REFUSED]


def test_another_run_of_a_peer_has_no_other_share() -> None:
    serving = Serving(sends=False, max_verdicts_per_peer=3)
    for run in range(1, 6):
        told = denial(serving.open(reader="flood", run=run))
        serving.server.on_close("flood", Incarnation(run), Close(a_part()))
        serving.news()
        assert told is (None if run <= 3 else Why.REFUSED)


def test_what_is_open_counts() -> None:
    serving = Serving(sends=False, max_verdicts_per_peer=3)
    told = [denial(serving.open(a_part(1, reader=rank))) for rank in range(5)]
    assert told == [None] * 3 + [Why.REFUSED] * 2


def test_a_verdict_lasts_as_long_as_a_send_of_ours() -> None:
    """Else the part would get another one when the send returns."""
    serving = Serving(verdict_s=60.0, stall_s=100.0)
    serving.open()
    assert denial(serving.confirm()) is None
    serving.later(60.0)
    assert denial(serving.confirm()) is None
    serving.server.sent(KEY)
    serving.later(60.0)
    assert not serving.server._verdicts and not serving.server._num_kept


# -- how long tables may be ------------------------------------------------------------------------


def listed(effects: Sequence[WorkerEffect]) -> Blocks:
    (effect,) = effects
    assert isinstance(effect, SendToPeer) and isinstance(effect.message, Opened)
    return effect.message.blocks


def test_only_blocks_that_are_wanted_are_listed() -> None:
    serving = Serving(sends=False)
    assert listed(serving.open(wanted=((5, 12),))) == ((0, 2, 3),)
    states = Serving(FULL, STATE, sends=False)
    assert listed(states.open(wanted=((16, 16), (0, 16)))) == ((), (0, 0, 0, 8))


@pytest.mark.parametrize(("sends", "last", "why"), [
    (False, 4 * MAX_LIST, None), (False, 4 * MAX_LIST + 1, Why.REFUSED),
    (True, 4 * MAX_LIST + 1, None),
])  # fmt: skip
def test_tables_that_no_message_has_room_for(sends: bool, last: int, why: Why | None) -> None:
    """Who reads by itself is refused them: its link would be lost for a message that is none."""
    serving = Serving(sends=sends, num_tokens=4 * MAX_LIST + 4)
    effects = serving.open(wanted=((0, last),))
    assert denial(effects[:1]) is why
    assert serving.server.counts["tables that no message has room for"] == (why is not None)
    for effect in effects:
        if isinstance(effect, SendToPeer):
            assert decode(encode(effect.message)) == effect.message


def test_many_tables_that_no_message_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvdist.connector.server.MAX_BLOCKS", 7)
    serving = Serving(FULL, FULL, sends=False)
    assert denial(serving.open(wanted=((0, 16), (0, 16)))) is Why.REFUSED
    assert denial(serving.open(wanted=((0, 16), (0, 12)))) is None


# -- what isn't served -----------------------------------------------------------------------------


def test_unknown_and_outdated_leases() -> None:
    serving = Serving()
    assert denial(serving.open(lease=NOBODYS)) is Why.GONE
    assert denial(serving.open(owner=2)) is Why.GONE
    assert serving.server.num_open == 0


WRONG_SPANS: list[TokenSpans] = [
    (),
    ((0, 16), (0, 16)),
    ((0, 17),),
    ((8, 4),),
    ((0, 1 << 40),),
    ((1 << 39, 1 << 40),),
]


@pytest.mark.parametrize("wanted", WRONG_SPANS)
def test_more_than_the_lease_covers(wanted: TokenSpans) -> None:
    assert denial(Serving().open(wanted=wanted)) is Why.REFUSED


@pytest.mark.parametrize("heads", [(0, 0), (2, 1), (0, 5), (4, 8), (1 << 16, 1 << 16)])
def test_heads_that_are_not_here(heads: Heads) -> None:
    assert denial(Serving().open(heads=heads)) is Why.REFUSED


def test_another_ranks_part() -> None:
    assert denial(Serving().open(a_part(owner=1))) is Why.REFUSED


@pytest.mark.parametrize("last", [4, 8, 15])
def test_a_state_from_another_token(last: int) -> None:
    """F14, T6: the state after the lease's last token, or none."""
    serving = Serving(STATE)
    assert denial(serving.open(wanted=((last - 1, last),))) is Why.REFUSED
    opened, _ = serving.open(a_part(2), wanted=((15, 16),))
    assert isinstance(opened, SendToPeer)


def test_a_window_that_has_gone() -> None:
    serving = Serving(FULL, WINDOW)
    full, window = tables(16, 1, (FULL, WINDOW))
    blocks = (full, (BlockId(0), BlockId(0), *window[2:]))
    serving.server.on_grant(Grant(serving.lease, blocks, 16, 16, CONTENT))
    serving.news()
    assert denial(serving.open(wanted=((0, 16), (4, 16)))) is Why.REFUSED
    assert len(serving.open(a_part(2), wanted=((0, 16), (8, 16)))) == 2


@pytest.mark.parametrize("span", [(0, 0), (0, 16), (4, 20), (0, 24), (20, 20)])
def test_what_an_encoder_made_is_served_whole_or_not_at_all(span: TokenSpan) -> None:
    heard = Group("encoder", 4, num_tokens=20)
    serving = Serving(FULL, heard)
    blocks = (*tables(16), tuple(map(BlockId, range(5, 10))))
    serving.server.on_grant(Grant(serving.lease, blocks, 16, 16, CONTENT))
    serving.news()
    assert denial(serving.open(wanted=((0, 16), span))) is Why.REFUSED
    assert sent_spans(serving.open(a_part(2), wanted=((8, 16), (0, 20)))) == [((8, 16), (0, 20))]


def test_an_encoders_blocks_that_are_not_all_there() -> None:
    serving = Serving(FULL, Group("encoder", 4, num_tokens=20))
    assert denial(serving.open(wanted=((0, 16), (0, 20)))) is Why.REFUSED


def test_one_reader_at_a_time() -> None:
    """T19: who comes second takes over when the first has closed."""
    serving = Serving()
    serving.open()
    other = a_part(9)
    assert denial(serving.open(other, reader="e", link="other")) is Why.TAKEN
    assert len(serving.open(a_part(1, reader=1))) == 2, "another part of the same pull"
    for reader in (0, 1):
        key = ("d", RUN, a_part(1, reader))
        serving.server.sent(key)
        serving.server.on_close("d", RUN, Close(key[2]))
    assert len(serving.open(other, reader="e", link="other")) == 2


def test_a_reader_of_ever_more_ranks() -> None:
    """What one pull can make us send and keep is bounded."""
    serving = Serving()
    for rank in range(3000):
        serving.open(a_part(1, reader=rank))
    assert serving.server.num_open == MAX_PARTS
    assert denial(serving.open(a_part(1, reader=4000))) is Why.REFUSED


def test_another_run_of_the_reader_is_another_reader() -> None:
    serving = Serving()
    serving.open()
    assert denial(serving.open(run=2, link="new")) is Why.TAKEN
    serving.server.link_lost("link")
    serving.server.sent(KEY)
    serving.news()
    assert len(serving.open(run=2, link="new")) == 2


def test_a_repeat_over_another_link() -> None:
    serving = Serving()
    serving.open()
    assert denial(serving.open(link="next")) is Why.GONE


# -- confirm ---------------------------------------------------------------------------------------


def test_a_confirm_of_nothing() -> None:
    assert denial(Serving().confirm()) is Why.GONE


def test_a_confirm_by_somebody_else() -> None:
    serving = Serving()
    serving.open()
    assert denial(serving.confirm(reader="e")) is Why.GONE
    assert denial(serving.confirm(run=2)) is Why.GONE
    assert denial(serving.confirm()) is None


@pytest.mark.parametrize("how", ["close", "link", "stall"])
def test_a_hold_that_has_ended_confirms_nothing(how: str) -> None:
    serving = Serving(sends=False, stall_s=10.0)
    serving.open()
    match how:
        case "close":
            serving.server.on_close("d", RUN, Close(a_part()))
        case "link":
            serving.server.link_lost("link")
        case _:
            serving.later(10.0)
            assert serving.news() == [CutLink("link")], "T16"
    assert serving.server.num_open == 0
    assert denial(serving.confirm()) is Why.GONE


def test_a_confirm_before_all_is_sent() -> None:
    """The reader's own mistake; the hold still ends only when the send has returned."""
    serving = Serving()
    serving.open()
    assert denial(serving.confirm()) is None
    serving.server.on_revoke(Revoke(serving.lease))
    assert serving.news() == []
    serving.server.sent(KEY)
    assert serving.news() == [SendToOwnNode(Revoked(serving.lease))]


# -- the hold and the revocation -------------------------------------------------------------------


def test_an_open_pull_outlives_its_lease() -> None:
    """T15, T25: the revocation waits, and the bytes are good all the same."""
    serving = Serving()
    serving.open()
    serving.server.on_revoke(Revoke(serving.lease))
    assert serving.news() == []
    assert denial(serving.open(a_part(1, reader=1))) is Why.GONE, "nothing new"
    serving.server.sent(KEY)
    confirmed, revoked = serving.confirm()[::-1]
    assert confirmed == SendToPeer("link", Confirmed(a_part()))
    assert revoked == SendToOwnNode(Revoked(serving.lease))
    assert not serving.server.granted_blocks()


def test_a_send_outlives_its_link() -> None:
    """The revocation waits for what this side itself is doing."""
    serving = Serving()
    serving.open()
    serving.server.on_revoke(Revoke(serving.lease))
    serving.server.link_lost("link")
    assert serving.news() == [StopSending("link", KEY)]
    serving.server.sent(KEY)
    serving.server.sent(KEY)
    assert serving.news() == [SendToOwnNode(Revoked(serving.lease))], "once"
    assert serving.server.counts["sends that ended twice"] == 1


def test_a_repeat_when_all_is_over_but_a_send() -> None:
    serving = Serving()
    serving.open()
    serving.server.on_close("d", RUN, Close(a_part()))
    serving.news()
    assert denial(serving.open()) is Why.GONE


def test_a_stalled_send_has_its_link_cut_again_and_again() -> None:
    serving = Serving(stall_s=10.0)
    serving.open()
    serving.later(10.0)
    assert serving.news() == [CutLink("link"), StopSending("link", KEY)]
    serving.later(10.0)
    assert serving.news() == [CutLink("link")]
    serving.server.sent(KEY)
    assert serving.server.num_open == 0


def test_progress_counts_but_not_for_ever() -> None:
    """T16, T10: a reader that says for ever that it reads doesn't hold the blocks for ever."""
    serving = Serving(sends=False, stall_s=10.0, life_s=300.0)
    serving.open()
    seconds = 0
    while serving.server.num_open:
        serving.server.on_still_reading("d", RUN, StillReading(a_part()))
        serving.server.on_still_reading("thief", RUN, StillReading(a_part()))
        serving.later(5.0)
        seconds += 5
        assert seconds <= 320
    assert seconds > 300


def test_a_reader_that_takes_little_at_a_time() -> None:
    """T10, T15: its owner's worker isn't lost for a reader that takes a burst every ten seconds."""
    serving = Serving(num_tokens=4000, burst_tokens=4, stall_s=10.0, life_s=300.0)
    serving.open()
    serving.server.on_revoke(Revoke(serving.lease))
    seconds = 0.0
    while serving.server.num_open:
        assert seconds < Settings(stall_s=10.0, life_s=300.0).revocation_s
        serving.later(9.9)
        seconds += 9.9
        serving.server.sent(KEY)
    assert seconds > 300.0
    news = serving.news()
    assert CutLink("link") in news
    assert SendToOwnNode(Revoked(serving.lease)) in news


def test_closes_of_strangers() -> None:
    serving = Serving()
    serving.open()
    serving.server.on_close("e", RUN, Close(a_part()))
    serving.server.on_close("d", Incarnation(2), Close(a_part()))
    serving.server.on_close("d", RUN, Close(a_part(2)))
    assert serving.server.num_open == 1
    assert serving.server.counts["close of what isn't open"] == 3


def test_ten_thousand_random_opens() -> None:
    """A16: what isn't known leaves nothing behind."""
    serving = Serving()
    for pull in range(10_000):
        serving.open(a_part(pull), lease=NOBODYS)
        serving.confirm(a_part(pull))
    assert serving.server.num_open == 0
    assert not serving.server._verdicts
    assert not len(serving.server.timers)


# -- reading along ---------------------------------------------------------------------------------


def sent_spans(effects: Sequence[WorkerEffect]) -> list[TokenSpans]:
    return [effect.spans for effect in effects if isinstance(effect, SendBytes)]


def test_what_has_settled_is_sent_one_send_at_a_time() -> None:
    """T1."""
    serving = Serving(settled=6)
    assert sent_spans(serving.open()) == [((0, 6),)]
    serving.server.on_extend(Extend(serving.lease, 9))
    serving.server.on_extend(Extend(serving.lease, 12))
    assert serving.news() == []
    serving.server.sent(KEY)
    assert sent_spans(serving.news()) == [((6, 12),)]
    serving.server.sent(KEY)
    assert serving.news() == []
    serving.server.on_extend(Extend(serving.lease, 12))
    serving.server.on_extend(Extend(serving.lease, 3))
    assert serving.news() == []
    serving.server.on_extend(Extend(serving.lease, 16))
    assert sent_spans(serving.news()) == [((12, 16),)]


@pytest.mark.parametrize("sends", [True, False])
def test_who_would_not_hear_how_far_it_may_read_gets_nothing_that_is_being_written(
    sends: bool,
) -> None:
    heads = Serving().geometry.heads_of(0)
    for settled, why in ((6, Why.REFUSED), (16, None)):
        serving = Serving(settled=settled, sends=sends)
        message = Open(a_part(), serving.lease, RUN, ((0, 16),), heads, CONTENT)
        serving.server.on_open("link", "d", RUN, message, OLDEST_VERSION)
        assert denial(serving.news()[:1]) is why


def test_readers_are_told_how_far_they_may_read() -> None:
    serving = Serving(settled=6, sends=False)
    assert serving.open() == [SendToPeer("link", Opened(a_part(), tables(16), 6, (4,)))]
    serving.server.on_extend(Extend(serving.lease, 9))
    assert serving.said() == [Settled(a_part(), 9)]


def test_who_waits_for_what_never_comes_is_told() -> None:
    """T12: and what has all it needs goes on to its end."""
    serving = Serving(settled=8)
    serving.open()
    serving.open(a_part(1, reader=1), wanted=((0, 8),))
    serving.server.on_revoke(Revoke(serving.lease))
    assert serving.said() == [Denied(a_part(), Why.GONE)]
    for reader in (0, 1):
        serving.server.sent(("d", RUN, a_part(1, reader)))
    assert serving.reported() == []
    serving.confirm(a_part(1, reader=1))
    serving.server.on_close("d", RUN, Close(a_part()))
    assert serving.reported() == [Revoked(serving.lease)]


def test_nothing_is_extended_that_isnt_granted() -> None:
    serving = Serving()
    serving.server.on_extend(Extend(NOBODYS, ALL))
    assert serving.news() == []


def test_a_grant_is_acknowledged() -> None:
    assert Serving().server.granted_blocks() == [1, 2, 3, 4]
    serving = Serving()
    serving.server.on_revoke(Revoke(serving.lease))
    assert serving.reported() == [Revoked(serving.lease)]
    assert Granted(serving.lease) not in serving.reported()


def test_a_lease_of_other_tokens() -> None:
    """T6: a ticket that came with another prompt than its own serves nothing."""
    serving = Serving()
    assert denial(serving.open(content=b"d" * 32)) is Why.REFUSED
    opened, _ = serving.open(a_part(2))
    assert opened == SendToPeer("link", Opened(a_part(2), (), 16))
