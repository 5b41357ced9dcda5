"""The rules of a link: by hand, and as a state machine against a naive model of both sides."""

import dataclasses
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.property.effort import effort
from tests.transports.linked import config
from transports.config import SessionConfig, least_window
from transports.errors import RemoteProtocol
from transports.frame import Frame, Type, decode
from transports.ledger import MAX_REGIONS, Ledger
from transports.session import MESSAGE_COST, Session, cost

EAGER = 1000
WINDOW = least_window(EAGER)
SETTINGS = config(eager_bytes=EAGER, window_bytes=WINDOW, max_body_bytes=10_000)


def _session(settings: SessionConfig = SETTINGS) -> Session:
    return Session(
        settings,
        max_meta_bytes=settings.max_meta_bytes,
        max_body_bytes=settings.max_body_bytes,
        eager_bytes=settings.eager_bytes,
        credit=WINDOW,
        regions_out=Ledger(settings.max_region_bytes, settings.max_shared_bytes),
    )


class Told:
    """A session and the next number of its peer."""

    def __init__(self, settings: SessionConfig = SETTINGS) -> None:
        self.session = _session(settings)

    def __call__(self, type_: Type, **fields: Any) -> Frame:
        number = self.session.next_number_in
        return self.session.receive(Frame(type_, **{"number": number, **fields}))


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_later_part_of_a_body_can_not_exceed_what_is_left(told: Told) -> None:
    told(Type.OFFER, argument=1, body_bytes=5000)
    told.session.accept(1)
    told(Type.BODY, argument=1, body_bytes=3000)
    assert not told.session.landed(3000)
    with pytest.raises(RemoteProtocol, match="too many"):
        told(Type.BODY, argument=1, body_bytes=2001)


@pytest.mark.parametrize(
    ("type_", "fields"),
    [
        (Type.PING, {"number": 1}),
        (Type.HELLO, {}),
        (Type.REFUSED, {}),
        (Type.PING, {"body_bytes": 1}),
        (Type.MESSAGE, {"body_bytes": EAGER + 1}),
        (Type.OFFER, {"argument": 1, "body_bytes": 0}),
        (Type.OFFER, {"argument": 1, "body_bytes": 10_001}),
        (Type.OFFER, {"argument": 0, "body_bytes": 5000}),
        (Type.ACCEPT, {"argument": 1}),
        (Type.REFUSE, {"argument": 0}),
        (Type.BODY, {"argument": 1, "body_bytes": 5}),
        (Type.CREDIT, {"argument": 0}),
        (Type.CREDIT, {"argument": 1 << 40}),
        (Type.REGION, {"argument": 2, "body_bytes": 5}),
        (Type.REGION, {"argument": 0, "body_bytes": 5}),
        (Type.REGION, {"argument": 1, "body_bytes": 0}),
        (Type.REGION, {"argument": 1, "body_bytes": (1 << 40) + 1}),
        (Type.UNSHARE, {"argument": 1}),
        (Type.UNSHARED, {"argument": 1}),
        (Type.BYE, {"body_bytes": 3}),
    ],
    ids=str,
)
def test_what_a_peer_may_not_do(told: Told, type_: Type, fields: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocol):
        told(type_, **fields)


def test_more_than_was_granted(told: Told) -> None:
    for _ in range(WINDOW // cost(0, EAGER)):
        told(Type.MESSAGE, body_bytes=EAGER)
    assert 0 <= told.session.granted < cost(0, EAGER)
    with pytest.raises(RemoteProtocol, match="granted"):
        told(Type.MESSAGE, body_bytes=EAGER)


def test_a_grant_counts_once_it_is_told(told: Told) -> None:
    session = told.session
    while session.granted > cost(0, EAGER):
        told(Type.MESSAGE, body_bytes=EAGER)
    before = session.granted
    due = [session.take(cost(0, EAGER)) for _ in range(60)]
    assert not due[0]
    assert due[-1]
    assert session.granted == before
    assert session.grant() == 60 * cost(0, EAGER)
    assert session.granted == before + 60 * cost(0, EAGER)
    assert session.grant() == 0


def test_small_bodies_obey_the_limit_of_all_bodies() -> None:
    session = _session(config(max_body_bytes=10))
    with pytest.raises(RemoteProtocol):
        session.receive(Frame(Type.MESSAGE, 0, body_bytes=11))


def test_nothing_follows_bye(told: Told) -> None:
    told(Type.OFFER, argument=1, body_bytes=5000)
    told(Type.BYE)
    assert not told.session.undecided
    with pytest.raises(RemoteProtocol, match="after BYE"):
        told(Type.PING)


def test_no_bye_within_a_body(told: Told) -> None:
    told(Type.OFFER, argument=1, body_bytes=5000)
    told.session.accept(1)
    told(Type.BODY, argument=1, body_bytes=10)
    told.session.landed(10)
    with pytest.raises(RemoteProtocol, match="BYE when"):
        told(Type.BYE)


def test_a_withdrawn_body_may_not_come(told: Told) -> None:
    told(Type.OFFER, argument=3, body_bytes=5000)
    told.session.accept(3)
    told(Type.WITHDRAW, argument=3)
    assert told.session.landing is None
    with pytest.raises(RemoteProtocol):
        told(Type.BODY, argument=3, body_bytes=5000)


def test_no_withdrawal_within_a_body(told: Told) -> None:
    told(Type.OFFER, argument=3, body_bytes=5000)
    told.session.accept(3)
    told(Type.BODY, argument=3, body_bytes=10)
    told.session.landed(10)
    with pytest.raises(RemoteProtocol):
        told(Type.WITHDRAW, argument=3)


def test_a_verdict_counts_once_and_in_order(told: Told) -> None:
    for _ in range(3):
        told.session.offer()
    told(Type.REFUSE, argument=2)  # the first was withdrawn, and had no verdict
    for late in (1, 2):
        with pytest.raises(RemoteProtocol):
            told(Type.ACCEPT, argument=late)


def test_too_many_regions(told: Told) -> None:
    """Those that were closed count until the peer was told that they aren't read any more."""
    for number in range(1, MAX_REGIONS + 1):
        told(Type.REGION, argument=number, body_bytes=1)
    told(Type.UNSHARE, argument=7)
    with pytest.raises(RemoteProtocol):
        told(Type.REGION, argument=MAX_REGIONS + 1, body_bytes=1)
    assert told.session.regions_in.forget(7)
    again = Frame(Type.REGION, told.session.next_number_in, 0, MAX_REGIONS + 1, 1)
    assert told.session.receive(again) is again


def test_regions_beyond_their_limits() -> None:
    told = Told(dataclasses.replace(SETTINGS, max_region_bytes=100, max_shared_bytes=250))
    told(Type.REGION, argument=1, body_bytes=100)
    told(Type.REGION, argument=2, body_bytes=100)
    ledger = told.session.regions_in
    assert not ledger.complaint(50)
    assert ledger.complaint(51)
    told(Type.UNSHARE, argument=1)
    assert ledger.complaint(51)
    assert ledger.forget(1)
    assert not ledger.complaint(100)
    with pytest.raises(RemoteProtocol, match="at most 100"):
        told(Type.REGION, argument=3, body_bytes=101)


@pytest.mark.parametrize("again", [Type.REGION, Type.UNSHARE, Type.UNSHARED])
def test_a_region_ends_once(told: Told, again: Type) -> None:
    told(Type.REGION, argument=1, body_bytes=5)
    told(Type.UNSHARE, argument=1)
    with pytest.raises(RemoteProtocol):
        told(again, argument=1, body_bytes=5 if again is Type.REGION else 0)


def test_the_peer_lets_go_once_of_what_was_closed(told: Told) -> None:
    ledger = told.session.regions_out
    numbers = [ledger.share(10) for _ in range(3)]
    assert ledger.close(numbers[1])
    assert not ledger.close(numbers[1])
    told(Type.UNSHARED, argument=numbers[1])
    assert (ledger.num_bytes, list(ledger.sizes)) == (20, [1, 3])
    for number in (1, 2, 4):
        with pytest.raises(RemoteProtocol, match="isn't closed"):
            told(Type.UNSHARED, argument=number)


HOSTILE = st.tuples(
    st.sampled_from(Type),
    st.integers(0, 6) | st.integers(0, 1 << 63),
    st.sampled_from([0, 1, 10, EAGER, EAGER + 1, 5000, 10_001, 1 << 63]),
    st.sampled_from([0, 10, 0xFFFF]),
)


@given(st.lists(HOSTILE, max_size=60), st.data())
def test_whatever_comes_is_bounded(
    frames: list[tuple[Type, int, int, int]], data: st.DataObject
) -> None:
    """Any sound frames at all, with a user that takes, accepts and refuses: typed errors, and what
    lies unread never exceeds the window."""
    told = Told()
    unread: deque[int] = deque()
    session = told.session
    for type_, argument, size, meta in frames:
        before = session.landing
        try:
            told(type_, argument=argument, body_bytes=size, meta=bytes(meta))
        except RemoteProtocol:
            return
        if type_ in (Type.MESSAGE, Type.OFFER):
            unread.append(cost(meta, size if type_ is Type.MESSAGE else 0))
        if type_ is Type.BODY:
            assert before is not None
            session.landed(size)
        assert sum(unread) <= WINDOW
        assert len(session.undecided) <= WINDOW // MESSAGE_COST
        assert session.regions_in.num_bytes <= session.config.max_shared_bytes
        takes: bool = data.draw(st.booleans())
        if unread and takes and session.take(unread.popleft()):
            session.grant()
        if session.undecided and session.landing is None and data.draw(st.booleans()):
            offer = min(session.undecided)
            (session.accept if data.draw(st.booleans()) else session.refuse)(offer)


@dataclass
class Side:
    """One side as a naive model has it, beside the session."""

    session: Session = field(default_factory=_session)
    wire: deque[bytes] = field(default_factory=deque)  #: frames on their way from here
    sent: list[tuple[str, int]] = field(default_factory=list)
    taken: list[tuple[str, int]] = field(default_factory=list)
    unread: deque[tuple[Frame, int]] = field(default_factory=deque)
    offer: int = 0  #: our open offer, 0 if none
    accepted: bool = False
    size: int = 0  #: bytes of its body that are left to be sent
    withdrawn: set[int] = field(default_factory=set)
    on_wire: int = 0  #: cost of messages under way from here
    grants_on_wire: int = 0
    said_bye: bool = False
    regions: dict[int, int] = field(default_factory=dict)  #: ours that the peer may read
    to_confirm: list[int] = field(default_factory=list)  #: the peer's that it has closed

    def say(self, type_: Type, **fields: Any) -> None:
        self.wire.append(self.session.frame(type_, **fields))


class TwoHonestSides(RuleBasedStateMachine):
    """Whatever two sides do that keep the rules: no RemoteProtocol, credit is conserved, and what
    is taken is what was sent, in order, without what was withdrawn.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sides = Side(), Side()

    def _of(self, which: int) -> tuple[Side, Side]:
        return self.sides[which], self.sides[1 - which]

    @rule(which=st.integers(0, 1), meta=st.integers(0, 0xFFFF), size=st.integers(0, EAGER))
    def send(self, which: int, meta: int, size: int) -> None:
        me, _ = self._of(which)
        if me.said_bye or me.session.peer_said_bye or me.offer:
            return
        had = me.session.credit
        paid = me.session.pay(meta, size)
        assert paid == (cost(meta, size) <= had)
        if paid:
            me.say(Type.MESSAGE, meta=bytes(meta), body_bytes=size)
            me.on_wire += cost(meta, size)
            me.sent.append(("small", size))

    @rule(which=st.integers(0, 1), size=st.integers(EAGER + 1, 10_000))
    def offer(self, which: int, size: int) -> None:
        me, _ = self._of(which)
        if me.said_bye or me.session.peer_said_bye or me.offer or not me.session.pay(0, 0):
            return
        me.offer, me.accepted, me.size = me.session.offer(), False, size
        me.say(Type.OFFER, argument=me.offer, body_bytes=size)
        me.on_wire += cost(0, 0)
        me.sent.append(("large", me.offer))

    @rule(which=st.integers(0, 1))
    def withdraw(self, which: int) -> None:
        """As long as no byte of it has been sent."""
        me, _ = self._of(which)
        if not me.offer or me.size < 0 or me.said_bye or (me.accepted and me.size == 0):
            return
        if me.accepted and ("begun", me.offer) in me.sent:
            return
        me.say(Type.WITHDRAW, argument=me.offer)
        me.withdrawn.add(me.offer)
        me.offer = 0

    @rule(which=st.integers(0, 1), size=st.integers(1, 10_000))
    def send_part(self, which: int, size: int) -> None:
        me, _ = self._of(which)
        if not me.offer or not me.accepted or me.said_bye:
            return
        part = min(size, me.size)
        me.say(Type.BODY, argument=me.offer, body_bytes=part)
        if ("begun", me.offer) not in me.sent:
            me.sent.append(("begun", me.offer))
        me.size -= part
        if not me.size:
            me.offer = 0

    @rule(which=st.integers(0, 1))
    def deliver(self, which: int) -> None:
        me, peer = self._of(which)
        if not me.wire:
            return
        frame = peer.session.receive(decode(me.wire.popleft()))
        match frame.type:
            case Type.MESSAGE | Type.OFFER:
                small = frame.body_bytes if frame.type is Type.MESSAGE else 0
                price = cost(len(frame.meta), small)
                me.on_wire -= price
                peer.unread.append((frame, price))
            case Type.BODY:
                if peer.session.landed(frame.body_bytes):
                    peer.taken.append(("large", frame.argument))
            case Type.ACCEPT | Type.REFUSE if frame.argument == peer.offer:
                peer.accepted = frame.type is Type.ACCEPT
                if not peer.accepted:
                    peer.withdrawn.add(peer.offer)
                    peer.offer = 0
            case Type.CREDIT:
                me.grants_on_wire -= frame.argument
            case Type.UNSHARE:
                peer.to_confirm.append(frame.argument)
            case Type.UNSHARED:
                del peer.regions[frame.argument]
            case _:
                pass

    @precondition(lambda self: any(side.unread for side in self.sides))
    @rule(which=st.integers(0, 1), accept=st.booleans())
    def take(self, which: int, accept: bool) -> None:
        me, _ = self._of(which)
        if not me.unread or me.session.landing is not None:
            return
        frame, price = me.unread.popleft()
        due = me.session.take(price)
        if due and not me.said_bye:
            grant = me.session.grant()
            me.say(Type.CREDIT, argument=grant)
            me.grants_on_wire += grant
        if frame.type is Type.MESSAGE:
            me.taken.append(("small", frame.body_bytes))
        elif frame.argument in me.session.undecided and not me.said_bye:
            (me.session.accept if accept else me.session.refuse)(frame.argument)
            me.say(Type.ACCEPT if accept else Type.REFUSE, argument=frame.argument)

    @rule(which=st.integers(0, 1), size=st.integers(1, 1000))
    def share(self, which: int, size: int) -> None:
        me, _ = self._of(which)
        if not me.said_bye and not me.session.regions_out.complaint(size):
            number = me.session.regions_out.share(size)
            assert number not in me.regions
            me.regions[number] = size
            me.say(Type.REGION, argument=number, body_bytes=size)

    @precondition(lambda self: any(side.regions for side in self.sides))
    @rule(which=st.integers(0, 1), chance=st.randoms())
    def close_a_region(self, which: int, chance: Random) -> None:
        me, _ = self._of(which)
        if me.regions and not me.said_bye:
            number = chance.choice(list(me.regions))
            if me.session.regions_out.close(number):
                me.say(Type.UNSHARE, argument=number)

    @precondition(lambda self: any(side.to_confirm for side in self.sides))
    @rule(which=st.integers(0, 1))
    def let_go_of_a_region(self, which: int) -> None:
        me, _ = self._of(which)
        if me.to_confirm and not me.said_bye:
            number = me.to_confirm.pop()
            assert me.session.regions_in.forget(number)
            me.say(Type.UNSHARED, argument=number)

    @rule(which=st.integers(0, 1))
    def bye(self, which: int) -> None:
        """Only when no body of ours is under way, and none lands here."""
        me, _ = self._of(which)
        if me.said_bye or me.offer or me.session.landing is not None:
            return
        me.say(Type.BYE)
        me.said_bye = True

    @invariant()
    def credit_is_conserved(self) -> None:
        for me, peer in (self.sides, self.sides[::-1]):
            unread = sum(price for _, price in peer.unread)
            assert (
                me.session.credit + me.on_wire + unread + peer.session.taken + (peer.grants_on_wire)
                == WINDOW
            )
            assert unread + peer.session.taken + peer.session.granted == WINDOW
            assert peer.session.granted >= 0

    @invariant()
    def regions_are_counted_until_both_have_let_go(self) -> None:
        for me, peer in (self.sides, self.sides[::-1]):
            assert me.session.regions_out.sizes == me.regions
            assert me.session.regions_out.num_bytes == sum(me.regions.values())
            assert peer.session.regions_in.sizes.items() <= me.regions.items()

    @invariant()
    def what_is_taken_is_what_was_sent(self) -> None:
        for me, peer in (self.sides, self.sides[::-1]):
            sent = [
                item
                for item in me.sent
                if item[0] != "begun" and not (item[0] == "large" and item[1] in me.withdrawn)
            ]
            taken = peer.taken
            if me.offer or peer.session.landing or peer.unread or me.wire:
                sent = [item for item in sent if item in taken or item[0] == "small"]
                taken = [item for item in taken if item in sent or item[0] == "small"]
            assert taken == sent[: len(taken)]


TestTwoHonestSides = TwoHonestSides.TestCase
TestTwoHonestSides.settings = effort(30, steps=60)
