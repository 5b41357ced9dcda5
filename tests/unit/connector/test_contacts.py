"""Hello comes first, both ways, whatever gets lost; whoever can't be worked with hears why."""

import random
from collections import deque
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from kvdist.connector.codec import decode, encode
from kvdist.connector.contacts import MAX_WAITING, Contact, Contacts
from kvdist.connector.messages import (
    MAX_GROUPS,
    OLDEST_VERSION,
    VERSION,
    Fingerprint,
    Hello,
    Message,
    Refusal,
    Refused,
    Renew,
    Role,
    Stream,
)
from kvdist.connector.settings import Settings
from kvdist.connector.tables.contact import State
from kvdist.errors import InvariantViolation
from kvdist.ids import Incarnation, LeaseId, NodeId
from tests.halves import RUN, a_fingerprint, a_hello


class Side:
    """One of two who meet; what it says is kept until `Pair` delivers it."""

    def __init__(self, hello: Hello) -> None:
        self.hello = hello
        self.sent: deque[tuple[Message, int]] = deque()
        self.met: list[str] = []
        self.refused: list[tuple[Refusal, ...]] = []
        self.acted_on: list[Message] = []
        self.contacts = Contacts(
            hello,
            Settings(),
            lambda _, message, version: self.sent.append((message, version)),
            self._met,
            lambda _, differences: self.refused.append(differences),
        )

    def _met(self, name: str, _: Contact) -> None:
        self.met.append(name)

    def state(self, of: NodeId) -> State | None:
        contact = self.contacts[of]
        return None if contact is None else contact.machine.state

    def hear(self, node: NodeId, message: Message, run: Incarnation = RUN) -> None:
        self.contacts.run_seen(node, run)
        if self.contacts.hear(node, node, run, message):
            self.acted_on.append(message)
        self.contacts.check()

    def take(self) -> list[Message]:
        taken = [message for message, _ in self.sent]
        self.sent.clear()
        return taken

    def later(self, seconds: float) -> None:
        self.contacts.now += seconds
        self.contacts.tick()
        self.contacts.check()


class Pair:
    """`p` and `d`, and what is under way between them."""

    def __init__(self, *, p: Fingerprint | None = None, d: Fingerprint | None = None) -> None:
        self.sides = {
            name: Side(Hello(name, RUN, fingerprint or a_fingerprint()))
            for name, fingerprint in (("p", p), ("d", d))
        }
        self.p, self.d = self.sides["p"], self.sides["d"]

    def deliver(self, sender: NodeId, message: Message, version: int) -> None:
        """As bytes, as they are read by who hears them."""
        to = self.d if sender == "p" else self.p
        data = encode(message, version)
        heard = decode(data, to.hello.fingerprint.latest_version)
        to.hear(sender, heard, self.sides[sender].hello.incarnation)

    def play(self) -> None:
        """All that is said arrives, and what follows."""
        for _ in range(100):
            if not (self.p.sent or self.d.sent):
                return
            for name, side in self.sides.items():
                while side.sent:
                    self.deliver(name, *side.sent.popleft())
        raise AssertionError("they greet each other for ever")

    def restart(self, name: NodeId) -> None:
        old = self.sides[name].hello
        run = Incarnation(old.incarnation + 1)
        self.sides[name] = Side(replace(old, incarnation=run))
        self.p, self.d = self.sides["p"], self.sides["d"]


RENEW = Renew((LeaseId(b"l" * 16),))
OLD = a_fingerprint(latest_version=OLDEST_VERSION)
OTHER = a_fingerprint(weights="other", dtype="float16")


def test_nothing_is_said_before_hello() -> None:
    pair = Pair()
    pair.d.contacts.say("p", RENEW)
    (hello,) = pair.d.take()
    assert hello == pair.d.hello
    pair.p.hear("d", hello)
    (answer,) = pair.p.take()
    assert answer == replace(pair.p.hello, heard=RUN)
    assert pair.d.contacts.num_waiting == 1
    pair.d.hear("p", answer)
    assert pair.d.take() == [RENEW], "and no third hello"
    assert pair.d.met == ["p"] and pair.p.met == ["d"]
    assert pair.p.contacts.timers.next_at() is pair.d.contacts.timers.next_at() is None


def test_nothing_is_acted_on_before_hello() -> None:
    """Who speaks first is asked who it is, and says the rest when its question comes again."""
    pair = Pair()
    pair.p.hear("d", RENEW)
    assert not pair.p.acted_on
    pair.play()
    assert pair.p.state("d") is pair.d.state("p") is State.AGREED
    pair.p.hear("d", RENEW)
    assert pair.p.acted_on == [RENEW]


def test_both_begin_at_once() -> None:
    pair = Pair()
    pair.p.contacts.say("d", RENEW)
    pair.d.contacts.say("p", RENEW)
    pair.play()
    assert pair.p.acted_on == pair.d.acted_on == [RENEW]


def test_a_hello_that_gets_lost_comes_again() -> None:
    pair = Pair()
    pair.d.contacts.say("p", RENEW)
    pair.d.sent.clear()
    pair.d.later(1.0)
    pair.p.hear("d", pair.d.take()[0])
    pair.p.sent.clear()  # its answer gets lost as well
    pair.d.later(1.0)
    pair.play()
    assert pair.p.acted_on == [RENEW]


def test_nobody_is_there() -> None:
    """After some tries all is forgotten, and the next message begins anew."""
    pair = Pair()
    pair.d.contacts.say("p", RENEW)
    for _ in range(Settings().tries):
        pair.d.later(1.0)
    assert len(pair.d.take()) == Settings().tries
    assert pair.d.contacts["p"] is None and not pair.d.contacts.num_waiting
    pair.d.contacts.say("p", RENEW)
    assert pair.d.take() == [pair.d.hello]


def test_what_waits_is_bounded_and_said_once() -> None:
    pair = Pair()
    pair.d.contacts.say("p", Stream("again"))
    pair.d.contacts.say("p", Stream("again"))
    assert pair.d.contacts.num_waiting == 1
    for number in range(MAX_WAITING):
        pair.d.contacts.say("p", Stream(f"{number}"))
    assert pair.d.contacts.num_waiting == MAX_WAITING
    pair.play()
    assert pair.p.acted_on == [Stream(f"{number}") for number in range(MAX_WAITING)]


# -- restarts, and links ---------------------------------------------------------------------------


def test_another_run_says_hello_anew() -> None:
    pair = Pair()
    pair.d.contacts.say("p", RENEW)
    pair.play()
    pair.restart("p")
    pair.d.contacts.say("p", RENEW)
    pair.play()
    assert not pair.p.acted_on, "it didn't know who speaks"
    assert pair.d.state("p") is pair.p.state("d") is State.AGREED
    pair.d.contacts.say("p", RENEW)
    pair.play()
    assert pair.p.acted_on == [RENEW]


def test_another_link_begins_with_hello() -> None:
    pair = Pair()
    pair.d.contacts.say("p", RENEW)
    pair.play()
    pair.d.contacts.lost("p")
    pair.d.contacts.lost("p")
    pair.d.contacts.say("p", RENEW)
    assert pair.d.take() == [pair.d.hello]


@pytest.mark.parametrize("hello", [a_hello("x"), a_hello("p", 2)], ids=["node", "run"])
def test_a_hello_of_somebody_else(hello: Hello) -> None:
    """Links have proved who speaks."""
    pair = Pair()
    pair.d.hear("p", hello)
    assert pair.d.contacts["p"] is None and not pair.d.sent
    assert pair.d.contacts.counts["hellos of somebody else"] == 1


@settings(max_examples=200)
@given(st.integers(0, 1 << 32))
def test_whatever_happens_they_agree_in_the_end(seed: int) -> None:
    """Messages are lost, doubled, late, out of order; runs end; links too. Then all is sound."""
    chance = random.Random(seed)
    pair = Pair(d=chance.choice((None, OLD)))
    under_way: list[tuple[NodeId, Incarnation, Message, int]] = []
    for _ in range(chance.randrange(40)):
        name = chance.choice("pd")
        side, peer = pair.sides[name], "d" if name == "p" else "p"
        under_way += [(name, side.hello.incarnation, *sent) for sent in side.sent]
        side.sent.clear()
        match chance.randrange(8):
            case 0:
                pair.restart(name)
            case 1:
                side.contacts.lost(peer)
            case 2:
                side.later(1.0)
            case 3 | 4:
                side.contacts.say(peer, chance.choice((RENEW, Stream("t"))))
            case _:
                if not under_way:
                    continue
                sender, run, message, version = chance.choice(under_way)
                if run == pair.sides[sender].hello.incarnation:
                    pair.deliver(sender, message, version)
    for _ in range(3):
        pair.p.contacts.say("d", RENEW)
        pair.d.contacts.say("p", RENEW)
        pair.play()
        pair.p.later(1.0)
        pair.d.later(1.0)
        pair.play()
    assert pair.p.acted_on[-1:] == pair.d.acted_on[-1:] == [RENEW]
    assert not pair.p.contacts.num_waiting + pair.d.contacts.num_waiting
    assert pair.p.contacts.timers.next_at() is pair.d.contacts.timers.next_at() is None


# -- versions --------------------------------------------------------------------------------------


def test_the_highest_version_of_both() -> None:
    for p, d, version in ((None, None, VERSION), (OLD, None, 1), (None, OLD, 1), (OLD, OLD, 1)):
        pair = Pair(p=p, d=d)
        pair.d.contacts.say("p", RENEW)
        assert pair.d.sent[0][1] == pair.d.hello.fingerprint.latest_version
        pair.play()
        assert pair.d.contacts.version_of("p") == pair.p.contacts.version_of("d") == version
        pair.d.contacts.say("p", RENEW)
        assert pair.d.sent.pop() == (RENEW, version)


def test_what_an_older_peer_lacks_is_never_said() -> None:
    pair = Pair(p=OLD)
    pair.d.contacts.say("p", Stream("before hello"))
    pair.d.contacts.say("p", RENEW)
    pair.play()
    pair.d.contacts.say("p", Stream("afterwards"))
    pair.play()
    assert pair.p.acted_on == [RENEW]
    assert pair.d.contacts.counts["messages that an older peer doesn't know"] == 2


def test_who_agreed_on_an_older_version_keeps_to_it() -> None:
    pair = Pair(d=OLD)
    pair.d.contacts.say("p", RENEW)
    pair.play()
    pair.p.hear("d", Stream("t"))
    assert pair.p.acted_on == [RENEW]
    assert pair.p.contacts.counts["messages of a later version than was agreed on"] == 1


# -- refusals --------------------------------------------------------------------------------------

DIFFERENT: dict[str, dict[str, Any]] = {
    "weights": {"weights": "other"},
    "dtype": {"dtype": "float16"},
    "element_bits": {"element_bits": 8},
    "scales": {"scales": "5ca1e5"},
    "head_size": {"head_size": 128},
    "num_layers of group 0": {"num_layers": (3,)},
    "drafter": {"drafter": "eagle"},
    "layout": {"layout": "token head"},
}


@pytest.mark.parametrize("first", ["p", "d"])
@pytest.mark.parametrize("field", DIFFERENT)
def test_both_name_what_differs(field: str, first: NodeId) -> None:
    pair = Pair(p=a_fingerprint(**DIFFERENT[field]))
    pair.sides[first].contacts.say("d" if first == "p" else "p", RENEW)
    pair.play()
    assert pair.p.state("d") is pair.d.state("p") is State.REFUSED
    ((found,),), ((mirrored,),) = pair.d.refused, pair.p.refused
    assert found.field == mirrored.field == field
    assert (found.ours, found.theirs) == (mirrored.theirs, mirrored.ours)
    assert not pair.p.acted_on and not pair.d.acted_on


def test_no_version_in_common() -> None:
    later = replace(a_fingerprint(), oldest_version=VERSION + 1, latest_version=VERSION + 2)
    pair = Pair()
    pair.d.hear("p", Hello("p", RUN, later))
    assert pair.d.take()[1:] == [Refused(RUN, (Refusal("versions", "(1, 2)", "(3, 4)"),))]


def test_all_that_differs_is_named_however_much() -> None:
    """And fits into a message: the most groups, each unlike ours in everything."""
    group = a_fingerprint().groups[0]
    strange = replace(group, kind="x" * 256, num_layers=9, window=7, chunk=5, block_size=3)
    ours = replace(a_fingerprint(), groups=(group,) * MAX_GROUPS)
    side = Side(Hello("d", RUN, ours))
    side.hear("p", Hello("p", RUN, replace(ours, groups=(strange,) * MAX_GROUPS)))
    refused = side.take()[1]
    assert isinstance(refused, Refused) and len(refused.differences) == 6 * MAX_GROUPS
    assert decode(encode(refused)) == refused


def test_nothing_is_said_to_who_is_refused_but_why() -> None:
    pair = Pair(p=OTHER)
    pair.d.contacts.say("p", RENEW)
    pair.play()
    pair.d.contacts.say("p", RENEW)
    assert not pair.d.sent and not pair.d.contacts.num_waiting
    assert len(pair.d.refused) == 2, "our own side hears it whenever it tries"
    pair.d.hear("p", RENEW)
    (refused,) = pair.d.take()
    assert isinstance(refused, Refused)
    assert [found.field for found in refused.differences] == ["weights", "dtype"]
    pair.d.hear("p", pair.p.hello)
    assert [type(message) for message in pair.d.take()] == [Hello, Refused]
    assert len(pair.d.refused) == 2


def test_a_restart_with_other_settings_heals_it() -> None:
    pair = Pair(p=OTHER)
    pair.d.contacts.say("p", RENEW)
    pair.play()
    pair.sides["p"] = pair.p = Side(a_hello("p", 2))
    pair.p.contacts.say("d", RENEW)
    pair.play()
    assert pair.d.acted_on == [RENEW]


def test_a_peer_may_know_more_reasons_than_we() -> None:
    pair = Pair()
    pair.d.contacts.say("p", RENEW)
    pair.play()
    pair.d.hear("p", Refused(RUN, (Refusal("something new", "theirs", "ours"),)))
    assert pair.d.refused == [(Refusal("something new", "ours", "theirs"),)]
    assert pair.d.state("p") is State.REFUSED


def test_whoever_refused_us_and_speaks_all_the_same_hears_why() -> None:
    """Its hello got lost; what it misread of ours came rightly the second time."""
    pair = Pair()
    pair.d.contacts.say("p", RENEW)
    pair.d.hear("p", Refused(RUN, (Refusal("weights", "theirs", "ours"),)))
    pair.d.take()
    pair.d.hear("p", RENEW)
    assert pair.d.take() == [Refused(RUN, (Refusal("weights", "ours", "theirs"),))]


def test_another_run_than_the_one_that_refused_us_is_greeted() -> None:
    pair = Pair()
    pair.d.contacts.say("p", RENEW)
    pair.d.hear("p", Refused(RUN, (Refusal("weights", "theirs", "ours"),)))
    pair.d.take()
    pair.d.contacts.run_seen("p", Incarnation(RUN + 1))
    pair.d.contacts.say("p", RENEW)
    assert isinstance(pair.d.take()[0], Hello)


def test_refusals_of_other_runs_mean_nothing() -> None:
    pair = Pair()
    pair.d.hear("p", Refused(RUN, ()))
    assert pair.d.contacts["p"] is None
    pair.d.contacts.say("p", RENEW)
    pair.play()
    pair.d.hear("p", Refused(Incarnation(7), ()))
    assert pair.d.state("p") is State.AGREED


def test_a_run_has_one_fingerprint() -> None:
    """Rubbish after hello changes nothing; rubbish before it is healed by a sound one."""
    pair = Pair()
    pair.d.contacts.say("p", RENEW)
    pair.play()
    pair.d.hear("p", Hello("p", RUN, OTHER))
    assert pair.d.state("p") is State.AGREED
    assert pair.d.contacts.counts["fingerprints that changed in a run"] == 1
    strange = Pair()
    strange.d.hear("p", Hello("p", RUN, OTHER))
    strange.d.sent.clear()
    strange.p.contacts.say("d", RENEW)
    strange.play()
    assert strange.d.acted_on == [RENEW]


# -- roles -----------------------------------------------------------------------------------------


def test_a_new_role_is_announced() -> None:
    """To whom we know, once; a word that comes late doesn't count."""
    pair = Pair()
    pair.d.contacts.say("p", RENEW)
    pair.play()
    pair.p.contacts.announce(Role.DECODE)
    pair.p.contacts.announce(Role.PREFILL)
    (one, _), (two, _) = pair.p.sent
    pair.d.hear("p", two)
    pair.d.hear("p", one)
    assert _role_of(pair.d, "p") is Role.PREFILL
    assert pair.d.met == ["p", "p"] and not pair.d.sent


def _role_of(side: Side, node: NodeId) -> Any:
    contact = side.contacts[node]
    assert contact is not None and contact.hello is not None
    return contact.hello.role


def test_what_a_contact_keeps_goes_with_its_state() -> None:
    pair = Pair()
    pair.p.contacts.say("d", RENEW)
    pair.p.contacts.check()
    pair.p.contacts.timers.cancel("d")
    with pytest.raises(InvariantViolation, match="d is greeting"):
        pair.p.contacts.check()

    pair = Pair()
    pair.p.contacts.say("d", RENEW)
    pair.play()
    assert pair.p.contacts.versions == {"d": VERSION}
    assert pair.p.contacts.refused == []
    contact = pair.p.contacts["d"]
    assert contact is not None
    contact.waiting[RENEW] = None
    with pytest.raises(InvariantViolation, match="d is agreed"):
        pair.p.contacts.check()

    pair = Pair(d=OTHER)
    pair.p.contacts.say("d", RENEW)
    pair.play()
    assert pair.p.contacts.versions == {}
    assert pair.p.contacts.refused == ["d"]
    contact = pair.p.contacts["d"]
    assert contact is not None
    contact.hello = pair.d.hello
    with pytest.raises(InvariantViolation, match="d is refused"):
        pair.p.contacts.check()
