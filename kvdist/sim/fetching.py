"""What a reader's worker owes to the owners whom it reads of, and to its own node.

Owns:   which parts it has had opened, asked about and closed.
Knows nothing of: bytes, blocks.
Promise: what has failed asks and reads no more (T20); whoever may have it open hears that it is
        over; what has landed whole is asked about, and opened no more (T4); bytes move a burst at a
        time; what stalls has its link cut (T16), and what doesn't come to rest costs more (T17);
        its node hears one verdict of each part.
"""

from collections.abc import Callable

from kvdist.connector.effects import (
    CutLink,
    Escalate,
    ReadBytes,
    SendToOwnNode,
    SendToPeer,
)
from kvdist.connector.fetcher import Fetcher
from kvdist.connector.geometry import Geometry
from kvdist.connector.local import PartEnded
from kvdist.connector.messages import Close, Confirm, Denied, Open, PartId, TokenSpans
from kvdist.connector.settings import Settings
from kvdist.connector.tables.part import State
from kvdist.errors import InvariantViolation
from kvdist.ids import PullId


class Fetching:
    """Of one worker. Raises: InvariantViolation where a promise is broken.

    has_failed: whether its node has said so of a pull; is_met: whether an owner's worker has said
    hello, and can hear anything.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        geometry: Geometry,
        settings: Settings,
        has_failed: Callable[[PullId], bool],
        is_met: Callable[[str], bool],
    ) -> None:
        self._fetcher, self._geometry, self._settings = fetcher, geometry, settings
        self._has_failed, self._is_met = has_failed, is_met
        self._before = fetcher.parts
        #: Of this event: links that are cut; parts that are good, or closed.
        self.cut: set[str] = set()
        self._good: set[PartId] = set()
        self._closed: set[PartId] = set()
        #: A confirm that the event denies.
        self._denied: PartId | None = None
        #: Parts whose bytes are all there, as far as their owners have heard.
        self._confirming: set[PartId] = set()
        #: That are over, but for their quiet; since when they are being stopped.
        self._ended: set[PartId] = set()
        self._stopping: dict[PartId, float] = {}
        #: Owners whose links were given up since.
        self._given_up: set[str] = set()
        self._depth = 0

    def begins(self, message: object = None) -> None:
        """An event comes, a message or another; it may bring others about before all is done that
        follows from it.
        """
        self._depth += 1
        if self._depth > 1:
            return
        self._before = self._fetcher.parts
        self.cut.clear()
        self._good.clear()
        self._closed.clear()
        self._denied = message.part if isinstance(message, Denied) else None

    def does(self, effect: object) -> None:
        """What the worker does because of it."""
        match effect:
            case ReadBytes(part=part, spans=spans):
                self._goes_on(part)
                look_at_burst(self._geometry, self._settings, spans)
            case SendToPeer(message=Open(part)):
                self._goes_on(part)
                if part in self._confirming:
                    raise InvariantViolation(f"T4: {part} is opened anew, and all of it is there")
            case SendToPeer(message=Confirm(part)):
                self._goes_on(part)
                self._confirming.add(part)
            case SendToPeer(message=Close(part)):
                self._closed.add(part)
            case SendToOwnNode(PartEnded(part, failure)):
                if part in self._ended:
                    raise InvariantViolation(f"{part} has two verdicts")
                self._ended.add(part)
                if not failure:
                    self._good.add(part)
            case CutLink(address):
                self.cut.add(address)
            case Escalate(address):
                self.cut.add(address)
                self._given_up.add(address)
            case _:
                pass

    def _goes_on(self, part: PartId) -> None:
        if self._has_failed(part.pull):
            raise InvariantViolation(f"T20: it goes on with {part}, which has failed")

    def ends(self) -> None:
        """All that follows from the event was done."""
        self._depth -= 1
        if self._depth:
            return
        after = self._fetcher.parts
        for part, (address, state) in self._before.items():
            if part in after or part in self._good:
                continue
            self._confirming.discard(part)
            knows = state is State.CONFIRMING and part == self._denied
            hears = self._is_met(address) and address not in self.cut
            if hears and not knows and part not in self._closed:
                raise InvariantViolation(f"T25: {part} is over, and {address} doesn't hear so")
        self._confirming -= self._good
        self._ended &= after.keys()
        stopping = [part for part, (_, state) in after.items() if state is State.STOPPING]
        self._stopping = {p: self._stopping.get(p, self._fetcher.now) for p in stopping}
        self._given_up &= {after[part][0] for part in stopping}

    def has_ticked(self, refused: list[str]) -> None:
        """Time alone ends a read only by a cut (T16)."""
        after = self._fetcher.parts
        for part, since in self._stopping.items():
            late = self._fetcher.now >= since + self._settings.escalation_s[0]
            if late and after[part][0] not in self._given_up:
                raise InvariantViolation(f"T17: {part} isn't quiet, and nothing is done about it")
        for part, (address, state) in self._before.items():
            stalls = state is State.LANDING and after.get(part) != (address, state)
            if stalls and address not in {*self.cut, *refused}:
                raise InvariantViolation(f"T16: {part} stalls, and {address} isn't cut")


def look_at_burst(geometry: Geometry, settings: Settings, spans: TokenSpans) -> None:
    """Bytes move a burst at a time, so that progress is seen (T16); a state is one."""
    longest = max(
        0 if group.kind == "state" else last - first
        for group, (first, last) in zip(geometry.groups, spans, strict=True)
    )
    if longest > settings.burst_tokens:
        raise InvariantViolation(f"T16: {longest} tokens move at a time")
