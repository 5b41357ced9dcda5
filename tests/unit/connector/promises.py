"""What each table promises, as small models of the world around one machine.

A world says which events can come, seen from outside, and looks at every effect: who is told what,
exactly once, and what is still under way. It is frozen, so all ways through a table can be walked:
there are only so many pairs of a state and a world.
"""

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Protocol, Self

from kvdist.connector.machine import Machine, Table
from kvdist.connector.tables import claim, contact, duty, grant, lease, part, pull, serve


class World(Protocol):
    """Around one machine."""

    def can_come(self, event: Any) -> bool:
        """Whether this can happen now."""

    def after(self, event: Any, effects: Collection[Any]) -> Self:
        """What is true then. Raises: AssertionError if a promise is broken."""

    @property
    def end(self) -> str:
        """The state that it has to be in when all that was promised is done; empty: it isn't."""


def walk(table: Table[Any, Any, Any], world: World) -> Iterator[tuple[Enum, World]]:
    """Every pair of a state and a world that can be reached. Raises: AssertionError for a promise
    that is broken, or can't be kept any more; InvalidTransition for an event that can come and
    mustn't.
    """
    seen: dict[tuple[Enum, World], set[tuple[Enum, World]]] = {}
    start = (table.start, world)
    queue = deque([start])
    while queue:
        here = queue.popleft()
        if here in seen:
            continue
        state, around = here
        seen[here] = set()
        for event in _events(table):
            if not around.can_come(event):
                continue
            machine = Machine(table, "walked")
            machine.state = state
            effects = machine.handle(event)
            assert len(set(effects)) == len(effects), "something is done twice"
            there = (machine.state, around.after(event, effects))
            _check_end(*there)
            seen[here].add(there)
            queue.append(there)
    _check_ends(seen)
    yield from seen


def _events(table: Table[Any, Any, Any]) -> list[Any]:
    kind: type[Enum] = type(next(event for _, event in table.rows))
    return list(kind)


#: Of all tables.
_END_STATES = ("GONE", "OVER", "GOOD", "LOADED", "OFF")


def _check_end(state: Enum, world: World) -> None:
    """A machine is at its end when, and only when, its promise is kept."""
    assert state.name == world.end if world.end else state.name not in _END_STATES


def _check_ends(seen: dict[tuple[Enum, World], set[tuple[Enum, World]]]) -> None:
    """From everywhere the end can be reached."""
    good = {here for here in seen if here[1].end}
    grown = True
    while grown:
        more = {here for here, there in seen.items() if here not in good and good & there}
        good |= more
        grown = bool(more)
    assert len(good) == len(seen), f"no way to the end from {set(seen) - good}"


# -- either side -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContactWorld:
    """Only hello before hello, both ways; whoever is refused hears why, and our side does once."""

    said: bool = False
    decided: str = ""
    is_gone: bool = False

    def can_come(self, event: contact.Event) -> bool:
        e = contact.Event
        match event:
            case e.TURNED_AWAY:
                return True
            case e.CALL:
                return not self.is_gone
            case e.UNANSWERED | e.GAVE_UP:
                return self.said and not self.decided and not self.is_gone
            case e.LOST:
                return bool(self.said or self.decided) and not self.is_gone
            case _:
                return self.decided != "agreed" and not self.is_gone

    def after(self, event: contact.Event, effects: Collection[contact.Effect]) -> "ContactWorld":
        assert list(effects) == self._expected(event)
        e = contact.Event
        match event:
            case e.AGREE:
                return replace(self, decided="agreed")
            case e.DIFFER:
                return replace(self, decided="refused")
            case e.TURNED_AWAY if effects:
                return replace(self, decided="refused")
            case e.GAVE_UP | e.LOST:
                return replace(self, is_gone=True)
            case e.CALL | e.SPOKE if not self.decided:
                return replace(self, said=True)
        return self

    def _expected(self, event: contact.Event) -> list[contact.Effect]:
        e, f = contact.Event, contact.Effect
        refused = self.decided == "refused"
        waits = self.said and not self.decided  # something may, for an answer to our hello
        match event:
            case e.CALL if self.decided:
                return [f.TELL, f.DROP] if refused else [f.SAY]
            case e.CALL:
                return [] if self.said else [f.SEND_HELLO]
            case e.SPOKE:
                return [f.SEND_REFUSED if refused else f.SEND_HELLO]
            case e.UNANSWERED:
                return [f.SEND_HELLO]
            case e.AGREE:
                return [f.MEET, f.SAY] if waits else [f.MEET]
            case e.DIFFER:
                told = [] if refused else [f.TELL, f.DROP] if waits else [f.TELL]
                return [f.SEND_REFUSED, *told]
            case e.TURNED_AWAY:
                knows_us = self.said or self.decided == "agreed"
                hears = knows_us and not refused and not self.is_gone
                return [f.TELL, f.DROP] if hears and waits else [f.TELL] if hears else []
            case _:
                return [f.DROP, f.FORGET] if waits else [f.FORGET]

    @property
    def end(self) -> str:
        return "GONE" if self.is_gone else ""


@dataclass(frozen=True)
class DutyWorld:
    """Nothing new is accepted while it is left; "over" is said once, when nothing of it is left."""

    has: bool = True
    is_over: bool = False

    def can_come(self, event: duty.Event) -> bool:
        e = duty.Event
        match event:
            case e.TAKE:
                return not self.has
            case e.LEAVE:
                return self.has
            case _:
                return not self.has and not self.is_over

    def after(self, event: duty.Event, effects: Collection[duty.Effect]) -> "DutyWorld":
        e, f = duty.Event, duty.Effect
        match event:
            case e.TAKE:
                assert list(effects) == [f.ACCEPT, f.ANNOUNCE]
                return DutyWorld()
            case e.LEAVE:
                assert list(effects) == [f.REFUSE, f.ANNOUNCE]
                return replace(self, has=False)
            case _:
                assert list(effects) == [f.SAY_OVER]
                return replace(self, is_over=True)

    @property
    def end(self) -> str:
        return "OFF" if self.is_over else ""


# -- reader's worker -------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartWorld:
    """One verdict, then one quiet; good only if confirmed; quiet only if nothing can land."""

    asks: str = "open"
    reading: bool = False
    stopped: bool = False
    verdict: str = ""
    quiet: bool = False
    closed: bool = False
    #: The owner has ended it by itself, or can't be reached: it needs no close.
    is_ended: bool = False

    def can_come(self, event: part.Event) -> bool:
        e = part.Event
        match event:
            case e.LANDED | e.STALLED:
                return self.reading and not self.stopped
            case e.READ_FAILED:
                return self.reading
            case e.QUIET | e.RESTLESS:
                return self.reading and self.stopped
            case e.UNANSWERED | e.GAVE_UP:
                return bool(self.asks)
            case _:
                return True  # peers, links and nodes may do so at any time

    def after(self, event: part.Event, effects: Collection[part.Effect]) -> "PartWorld":
        e, f = part.Event, part.Effect
        now = self
        if event in (e.LANDED, e.QUIET):
            now = replace(now, reading=False)
        if event is e.LINK_LOST or (event is e.DENIED and self.asks != "open"):
            now = replace(now, is_ended=True)  # else a repeat may be granted yet
        if event is e.UNANSWERED:
            again = f.SEND_OPEN if self.asks == "open" else f.SEND_CONFIRM
            assert list(effects) == [again], "whoever isn't answered asks again"
        if event is e.STALLED:
            assert f.CUT_LINK in effects, "T16"
        if event is e.RESTLESS:
            assert list(effects) == [f.ESCALATE], "T17"
        if event is e.LANDED:
            assert f.SEND_CONFIRM in effects, "all is there: is it good?"
        if event is e.OPENED and self.asks == "open":
            assert f.BEGIN_READ in effects
        if self.reading and not self.stopped and event in _ENDS_A_READ:
            assert f.STOP_READ in effects
        if not self.verdict and event is e.CANCELLED:
            assert f.REPORT_FAILED in effects, "whoever cancels hears so"
        for effect in effects:
            now = now._effect(event, effect)
        return now

    def _effect(self, event: part.Event, effect: part.Effect) -> "PartWorld":
        f = part.Effect
        assert not self.quiet or effect in (f.SEND_CLOSE,), "after quiet nothing is done"
        match effect:
            case f.BEGIN_READ:
                assert self.asks == "open" and not self.reading and not self.verdict
                return replace(self, asks="", reading=True)
            case f.SEND_CONFIRM:
                assert not self.reading and not self.verdict
                return replace(self, asks="confirm")
            case f.SEND_OPEN:
                assert self.asks == "open"
                return self
            case f.STOP_READ:
                assert self.reading and not self.stopped and self.verdict
                return replace(self, stopped=True)
            case f.SEND_CLOSE:
                assert not self.reading and not self.closed, "the owner hears it once, at the end"
                return replace(self, closed=True)
            case f.REPORT_GOOD:
                assert not self.verdict and event is part.Event.CONFIRMED
                assert self.asks == "confirm"
                return replace(self, verdict="good", asks="")
            case f.REPORT_FAILED:
                assert not self.verdict
                return replace(self, verdict="failed", asks="")
            case f.REPORT_QUIET:
                assert self.verdict and not self.quiet and not self.reading, "T3"
                assert self.verdict == "good" or self.closed or self.is_ended
                return replace(self, quiet=True)
            case _:
                assert effect in (f.CUT_LINK, f.ESCALATE)
                return self

    @property
    def end(self) -> str:
        return ("GOOD" if self.verdict == "good" else "OVER") if self.quiet else ""


_ENDS_A_READ = (
    part.Event.DENIED,
    part.Event.READ_FAILED,
    part.Event.STALLED,
    part.Event.LINK_LOST,
    part.Event.CANCELLED,
)


# -- reader's node ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class PullWorld:
    """Loaded or failed, once; if failed, quiet, once and after it."""

    said: str = ""
    cancelled: bool = False
    quiet: bool = False
    ended: bool = False

    def can_come(self, event: pull.Event) -> bool:
        e = pull.Event
        match event:
            case e.ALL_GOOD:
                return not self.said
            case e.PART_FAILED:
                return self.said != "loaded" and not self.quiet
            case e.ALL_QUIET:
                return self.said == "failed" and not self.quiet
            case _:
                return True

    def after(self, event: pull.Event, effects: Collection[pull.Effect]) -> "PullWorld":
        e, f = pull.Event, pull.Effect
        now = self
        for effect in effects:
            match effect:
                case f.SAY_LOADED:
                    assert not now.said and event is e.ALL_GOOD
                    now = replace(now, said="loaded")
                case f.SAY_FAILED:
                    assert not now.said and event is not e.ALL_GOOD
                    now = replace(now, said="failed")
                case f.CANCEL_PARTS:
                    assert now.said == "failed" and not now.cancelled
                    now = replace(now, cancelled=True)
                case f.SAY_QUIET:
                    assert now.said == "failed" and not now.quiet and event is e.ALL_QUIET
                    now = replace(now, quiet=True)
                case f.END_CLAIM:
                    assert not now.ended and (now.quiet or now.said == "loaded")
                    now = replace(now, ended=True)
        assert now.said or event is e.UNWANTED, "a verdict on the first news"
        assert now.cancelled == (now.said == "failed"), "no part of a failed pull goes on"
        assert now.ended == (now.quiet or now.said == "loaded")
        assert now.quiet or event is not e.ALL_QUIET
        return now

    @property
    def end(self) -> str:
        return ("LOADED" if self.said == "loaded" else "OVER") if self.ended else ""


@dataclass(frozen=True)
class ClaimWorld:
    """A lease whose name is known is released or lost, never while a pull of it is under way."""

    asks: bool = True
    named: bool = False
    lost: bool = False
    pulling: bool = False
    released: bool = False
    forgotten: bool = False
    #: The last that wanted it has gone, and nobody comes back.
    unwanted: bool = False

    def can_come(self, event: claim.Event) -> bool:
        e = claim.Event
        match event:
            case e.PULL:
                return self.named and not (
                    self.pulling or self.lost or self.unwanted or self.released
                )
            case e.PULL_OVER:
                return self.pulling
            case e.UNWANTED:
                return not (self.pulling or self.unwanted or self.forgotten)
            case e.UNANSWERED | e.GAVE_UP:
                return self.asks or (self.released and not self.forgotten)
            case e.LOST:
                return self.named
            case _:
                return True  # peers say what they like

    def after(self, event: claim.Event, effects: Collection[claim.Effect]) -> "ClaimWorld":
        e, f = claim.Event, claim.Effect
        now = self
        match event:
            case e.TICKET if self.asks:
                now = replace(now, asks=False, named=True)
            case e.NOTHING | e.GAVE_UP if self.asks:
                now = replace(now, asks=False)
            case e.LOST if not self.forgotten:
                now = replace(now, lost=True, asks=False)
            case e.PULL:
                now = replace(now, pulling=True)
            case e.PULL_OVER:
                now = replace(now, pulling=False)
            case e.UNWANTED:
                now = replace(now, unwanted=True, asks=False)
            case _:
                pass
        if event is e.UNANSWERED:
            assert list(effects) == [f.SEND_RELEASE if self.released else f.ASK]
        for effect in effects:
            match effect:
                case f.ASK:
                    assert now.asks
                case f.SEND_RELEASE:
                    assert now.named and not now.pulling and not now.lost and now.unwanted
                    now = replace(now, released=True)
                case f.FORGET:
                    assert not now.forgotten and not now.pulling
                    assert not now.named or now.lost or now.released, "a lease is given back"
                    now = replace(now, forgotten=True)
        if now.named and now.unwanted and not now.lost:
            assert now.released
        if self.released and event in (e.RELEASED, e.GAVE_UP):
            assert now.forgotten
        over = now.lost or now.unwanted or (event in (e.NOTHING, e.GAVE_UP) and self.asks)
        assert now.forgotten or now.pulling or now.released or not over
        return now

    @property
    def end(self) -> str:
        return "GONE" if self.forgotten else ""


# -- owner's node ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LeaseWorld:
    """Blocks go back once, after the workers; whoever waits for the ticket hears once."""

    granted: bool = False
    told: str = ""
    clock: bool = False
    revoking: bool = False
    returned: bool = False

    def can_come(self, event: lease.Event) -> bool:
        e = lease.Event
        match event:
            case e.GRANTED:
                return not self.granted and not self.returned
            case e.RENEWED | e.RELEASED:
                return self.granted or self.revoking
            case e.EXPIRED:
                return self.clock
            case e.REVOKED:
                return self.revoking and not self.returned
            case _:
                return True

    def after(self, event: lease.Event, effects: Collection[lease.Effect]) -> "LeaseWorld":
        e, f = lease.Event, lease.Effect
        now = replace(self, granted=self.granted or event is e.GRANTED)
        if event is e.RENEWED and self.clock:
            assert f.RESTART_CLOCK in effects
        if event is e.TAKEN_BACK and self.told == "ticket" and not self.revoking:
            assert f.SEND_WITHDRAWN in effects, "T11"
        for effect in effects:
            match effect:
                case f.ISSUE_TICKET:
                    assert not now.told and now.granted, "T15"
                    now = replace(now, told="ticket")
                case f.REFUSE_TICKET:
                    assert not now.told
                    now = replace(now, told="none")
                case f.RESTART_CLOCK:
                    assert not now.revoking
                    now = replace(now, clock=True)
                case f.SEND_REVOKE:
                    assert not now.revoking
                    now = replace(now, revoking=True, clock=False)
                case f.SEND_WITHDRAWN:
                    assert now.told == "ticket"
                case f.RETURN_BLOCKS:
                    assert not now.returned and event is e.REVOKED
                    now = replace(now, returned=True)
        assert now.told, "the first that happens decides about the ticket"
        assert now.clock == (now.told == "ticket" and not now.revoking)
        ends = event in (e.RELEASED, e.EXPIRED, e.TAKEN_BACK)
        assert now.revoking or not ends
        assert now.returned or event is not e.REVOKED
        return now

    @property
    def end(self) -> str:
        return "GONE" if self.returned else ""


# -- owner's worker --------------------------------------------------------------------------------


@dataclass(frozen=True)
class GrantWorld:
    """A revocation is acknowledged once, and not while something is open; there is no way back."""

    num_open: int = 0
    asked: bool = False
    acknowledged: bool = False

    def can_come(self, event: grant.Event) -> bool:
        e = grant.Event
        match event:
            case e.REVOKE_IDLE:
                return not self.asked and not self.num_open
            case e.REVOKE_BUSY:
                return not self.asked and self.num_open > 0
            case e.LAST_CLOSED:
                return self.num_open > 0
            case _:
                return not self.acknowledged

    def after(self, event: grant.Event, effects: Collection[grant.Effect]) -> "GrantWorld":
        e, f = grant.Event, grant.Effect
        now = self
        if event in (e.REVOKE_IDLE, e.REVOKE_BUSY):
            now = replace(now, asked=True)
        if event is e.LAST_CLOSED:
            now = replace(now, num_open=0)
        if event is e.OPEN:
            assert list(effects) == [f.DENY if self.asked else f.SERVE], "T15"
        for effect in effects:
            match effect:
                case f.SERVE:
                    now = replace(now, num_open=min(2, now.num_open + 1))
                case f.ACKNOWLEDGE:
                    assert now.asked and not now.acknowledged and not now.num_open
                    now = replace(now, acknowledged=True)
                case f.DENY:
                    pass
        assert now.acknowledged == (now.asked and not now.num_open)
        return now

    @property
    def end(self) -> str:
        return "GONE" if self.acknowledged else ""


@dataclass(frozen=True)
class ServeWorld:
    """The hold ends once, when no send is under way; "good" is said only while it stands."""

    sending: bool = False
    over: bool = False
    freed: bool = False

    def can_come(self, event: serve.Event) -> bool:
        e = serve.Event
        match event:
            case e.MORE:
                return not (self.sending or self.over)
            case e.SENT:
                return self.sending
            case e.STALLED:
                return not self.freed
            case _:
                return True

    def after(self, event: serve.Event, effects: Collection[serve.Effect]) -> "ServeWorld":
        e, f = serve.Event, serve.Effect
        now = self
        if event in (e.MORE, e.SENT):
            now = replace(now, sending=event is e.MORE)
        ends = event in (e.CONFIRM, e.CLOSE, e.LINK_LOST, e.STALLED)
        if event is e.CONFIRM and not self.over:
            assert f.KEEP_VERDICT in effects
        if event is e.STALLED:
            assert f.CUT_LINK in effects, "T16"
        if event is e.REVOKED and not self.over:
            assert f.SAY_GONE in effects
        if self.sending and not self.over and ends and event is not e.CONFIRM:
            assert f.STOP_SENDING in effects
        now = replace(now, over=now.over or ends)
        for effect in effects:
            match effect:
                case f.KEEP_VERDICT:
                    assert event is e.CONFIRM and not self.over, "T4"
                case f.FREE:
                    assert not now.freed and not now.sending
                    now = replace(now, freed=True)
                case f.STOP_SENDING:
                    assert now.sending
                case f.SAY_GONE:
                    assert event is e.REVOKED and not self.over
                case f.CUT_LINK:
                    assert event is e.STALLED
        assert now.freed == (now.over and not now.sending)
        return now

    @property
    def end(self) -> str:
        return "OVER" if self.freed else ""
