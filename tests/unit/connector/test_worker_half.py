"""Two workers' halves, wired back to back: what one says the other hears, in order."""

from collections import deque

import pytest

from kvdist.connector.effects import (
    CutLink,
    Escalate,
    ReadBytes,
    SendBytes,
    SendToOwnNode,
    SendToPeer,
    StopRead,
    StopSending,
    WorkerEffect,
)
from kvdist.connector.geometry import Geometry
from kvdist.connector.local import (
    Cancel,
    Extend,
    Fetch,
    FromWorker,
    Grant,
    Granted,
    PartEnded,
    PartQuiet,
    Revoke,
    Revoked,
)
from kvdist.connector.messages import PartId, TokenSpans
from kvdist.connector.settings import Settings
from kvdist.connector.worker_half import WorkerHalf
from kvdist.ids import LeaseId, Rank
from tests.halves import CONTENT, FULL, RUN, a_hello, a_part, tables

LEASE = LeaseId(b"a lease of p....")


class Wire:
    """A link between `d`'s worker, who dialled, and `p`'s; bytes land when they are sent."""

    def __init__(self, *, sends: bool, burst_tokens: int = 4096) -> None:
        geometry, settings = Geometry((FULL,), 4), Settings(burst_tokens=burst_tokens)
        self.now = 0.0
        self.owner, self.reader = (
            WorkerHalf(a_hello(node), Rank(0), geometry, settings, sends=lambda _link: sends)
            for node in "pd"
        )
        #: Of all bytes that moved: which tokens.
        self.moved: list[TokenSpans] = []
        self.heard: list[FromWorker] = []
        #: What hosts keep back: sends and reads that don't end by themselves.
        self.hangs = False
        self.is_cut = False
        self.measures: list[int] = []

    def play(self) -> None:
        """All that follows, until nothing follows."""
        todo: deque[tuple[WorkerHalf, WorkerEffect]] = deque()
        while True:
            for half in (self.owner, self.reader):
                todo.extend((half, effect) for effect in half.take_effects())
            if not todo:
                return
            half, effect = todo.popleft()
            self._carry_out(half, effect)

    def _carry_out(self, half: WorkerHalf, effect: WorkerEffect) -> None:
        match effect:
            case SendToOwnNode(message):
                self.heard.append(message)
            case SendToPeer(_, message):
                if not self.is_cut and half is self.reader:
                    self.owner.from_peer("link", "d", RUN, message)
                elif not self.is_cut:
                    self.reader.from_peer("p/0", "p", RUN, message)
            case SendBytes(_, key, spans):
                if self.hangs:
                    return
                self.moved.append(spans)
                if self.reader.place("p", RUN, key[2], spans) is not None:
                    self.reader.landed(key[2], spans)
                self.owner.sent(key)
            case ReadBytes(_, part, spans):
                if not self.hangs:
                    self.moved.append(spans)
                    self.reader.landed(part, spans)
            case StopSending(_, key):
                self.owner.sent(key)
            case StopRead(_, part):
                if not self.hangs:
                    self.reader.quiet(part)
            case CutLink():
                self.cut()
            case Escalate(_, level):
                self.measures.append(level)

    def cut(self) -> None:
        if not self.is_cut:
            self.is_cut = True
            self.owner.link_lost("link")
            self.reader.link_lost("p/0")

    def later(self, seconds: float) -> None:
        self.now += seconds
        for half in (self.owner, self.reader):
            half.clock(self.now)
        for half in (self.owner, self.reader):
            half.tick()
        self.play()

    def grant(self, settled: int = 16) -> None:
        self.owner.from_node(Grant(LEASE, tables(16), 16, settled, CONTENT))

    def fetch(self, part: PartId | None = None) -> None:
        wanted = ((0, 16),)
        self.reader.from_node(
            Fetch(part or a_part(), LEASE, "p", RUN, wanted, (0, 4), tables(16, 101), CONTENT)
        )
        self.play()


@pytest.fixture(params=[True, False], ids=["sent", "read"])
def wire(request: pytest.FixtureRequest) -> Wire:
    return Wire(sends=request.param)


GOOD = [PartEnded(a_part(), ""), PartQuiet(a_part())]


def test_a_pull_from_open_to_confirm(wire: Wire) -> None:
    wire.grant()
    wire.fetch()
    assert wire.heard == [Granted(LEASE), *GOOD]
    wire.owner.from_node(Revoke(LEASE))
    wire.play()
    assert wire.heard[3:] == [Revoked(LEASE)]
    assert not wire.owner.counts + wire.reader.counts


@pytest.mark.parametrize("sends", [True, False])
def test_long_pulls_move_in_bursts(sends: bool) -> None:
    """T16: so that progress is seen, and others have a turn."""
    wire = Wire(sends=sends, burst_tokens=6)
    wire.grant()
    wire.fetch()
    assert wire.moved == [((0, 6),), ((6, 12),), ((12, 16),)]
    assert wire.heard == [Granted(LEASE), *GOOD]


def test_reading_along(wire: Wire) -> None:
    wire.grant(settled=5)
    wire.fetch()
    for settled in (6, 11, 15):
        wire.owner.from_node(Extend(LEASE, settled))
        wire.play()
    assert wire.heard == [Granted(LEASE)]
    wire.owner.from_node(Extend(LEASE, 16))
    wire.play()
    assert wire.heard == [Granted(LEASE), *GOOD]


def test_nothing_was_granted(wire: Wire) -> None:
    wire.fetch()
    assert wire.heard == [PartEnded(a_part(), "the owner says gone", True), PartQuiet(a_part())]


def test_a_reader_that_goes_away(wire: Wire) -> None:
    """Its close ends the owner's hold; and only then the revocation is acknowledged."""
    wire.hangs = True
    wire.grant()
    wire.fetch()
    wire.owner.from_node(Revoke(LEASE))
    wire.play()
    assert wire.heard == [Granted(LEASE)]
    wire.hangs = False
    wire.reader.from_node(Cancel(a_part()))
    wire.play()
    assert wire.heard[1:] == [
        PartEnded(a_part(), "cancelled"), PartQuiet(a_part()), Revoked(LEASE),
    ]  # fmt: skip


def test_bytes_that_never_come(wire: Wire) -> None:
    """The link is cut, both sides let go, and measures follow until the bytes rest."""
    wire.hangs = True
    wire.grant()
    wire.fetch()
    wire.owner.from_node(Revoke(LEASE))
    for _ in range(11):
        wire.later(1.0)
    assert wire.is_cut
    ended = [m for m in wire.heard if isinstance(m, PartEnded)]
    assert [bool(m.failure) for m in ended] == [True]
    assert Revoked(LEASE) in wire.heard
    assert PartQuiet(a_part()) not in wire.heard
    for _ in range(70):
        wire.later(1.0)
    assert wire.measures == [0, 1, 2, 3]
    wire.reader.quiet(a_part())
    wire.play()
    assert PartQuiet(a_part()) in wire.heard


def test_the_link_is_lost(wire: Wire) -> None:
    wire.hangs = True
    wire.grant()
    wire.fetch()
    wire.hangs = False
    wire.cut()
    wire.play()
    assert wire.heard[1:] == [PartEnded(a_part(), "the link was lost"), PartQuiet(a_part())]
    wire.owner.from_node(Revoke(LEASE))
    wire.play()
    assert wire.heard[3:] == [Revoked(LEASE)]


def test_when_to_call_again(wire: Wire) -> None:
    assert wire.owner.next_at() is None and wire.reader.next_at() is None
    wire.hangs = True
    wire.grant()
    wire.fetch()
    assert wire.owner.next_at() == 10.0, "it watches for progress"
    assert wire.reader.next_at() in (2.0, 10.0), "so does it; and reports, if it reads itself"


def test_a_read_that_fails() -> None:
    wire = Wire(sends=False)
    wire.hangs = True
    wire.grant()
    wire.fetch()
    wire.hangs = False
    wire.reader.read_failed(a_part(), "no such region")
    wire.play()
    assert wire.heard[1:] == [PartEnded(a_part(), "no such region"), PartQuiet(a_part())]
    assert not wire.owner.server.num_open


def test_what_was_cancelled_before_hello_is_not_opened(wire: Wire) -> None:
    wire.grant()
    wire.is_cut = True  # the first hello gets lost
    wire.fetch()
    wire.reader.from_node(Cancel(a_part()))
    wire.play()
    wire.is_cut = False
    wire.later(1.0)
    assert wire.owner.counts["close of what isn't open"] == 1
    assert not wire.owner.server.num_open and not wire.owner.counts["messages before hello"]
    wire.fetch(a_part(2))
    assert PartEnded(a_part(2), "") in wire.heard
