"""What an owner's worker owes to those whom it serves, and to the blocks that it sends.

Owns:   which sends are under way or were told to stop, and what was said of confirms.
Knows nothing of: what is sent; links but for their names.
Promise: a block is held while it is sent; one send of a pull at a time; what is over sends no more
        and, if the reader may not know, has its link cut (T16); a confirm asked for twice has one
        answer (T4).
"""

from kvdist.connector.effects import CutLink, Escalate, SendBytes, SendToPeer, ServeKey, StopSending
from kvdist.connector.messages import Confirmed, Denied, PartId
from kvdist.connector.server import Server
from kvdist.connector.tables.serve import State
from kvdist.errors import InvariantViolation

_BUSY = (State.SENDING, State.ENDING)


class Serving:
    """Of one worker. Raises: InvariantViolation where a promise is broken."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._under_way: set[ServeKey] = set()
        self._stopped: set[ServeKey] = set()
        #: Links that the latest event has cut.
        self.cut: set[str] = set()
        #: By link and part: the latest answer of this event to it.
        self._said: dict[tuple[str, PartId], object] = {}
        #: By who asked and part: what was said, until when that counts.
        self._verdicts: dict[tuple[str, PartId], tuple[object, float]] = {}
        self._before = server.pulls
        self._depth = 0

    def begins(self) -> None:
        """An event comes; it may bring others about before all is done that follows from it."""
        self._depth += 1
        if self._depth > 1:
            return
        self._before = self._server.pulls
        self.cut.clear()
        self._said.clear()

    def does(self, effect: object) -> None:
        """What the worker does because of it."""
        match effect:
            case SendBytes(key=key):
                if key in self._under_way:
                    raise InvariantViolation(f"two sends at a time for {key}")
                self._under_way.add(key)
                self._stopped.discard(key)
            case StopSending(key=key):
                self._stopped.add(key)
            case CutLink(address) | Escalate(address):
                self.cut.add(address)
            case SendToPeer(address, Confirmed(part) | Denied(part)):
                self._said[address, part] = type(effect.message)
            case _:
                pass

    def returned(self, key: ServeKey) -> None:
        """A send has returned; the worker will hear so."""
        self._under_way.discard(key)

    def ends(self) -> None:
        """All that follows from the event was done."""
        self._depth -= 1
        if self._depth:
            return
        serves = self._server.pulls
        busy = {key for key, (_, state) in serves.items() if state in _BUSY}
        if busy != self._under_way:
            raise InvariantViolation(f"sends for {self._under_way}, held for {busy}")
        ending = {key for key, (_, state) in serves.items() if state is State.ENDING}
        if going_on := ending - self._stopped - self._server.confirmed:
            raise InvariantViolation(f"nobody wants what is sent for {going_on}")

    def has_ticked(self) -> None:
        """Time alone ends what is open only by a cut (T16)."""
        serves = self._server.pulls
        for key, before in self._before.items():
            if serves.get(key) != before and before[0] not in self.cut:
                raise InvariantViolation(f"T16: {key} stalls, and {before[0]} isn't cut")

    def has_confirmed(self, link: str, reader: str, part: PartId, now: float, kept: float) -> None:
        """A confirm was answered."""
        said = self._said.get((link, part))
        if said is None:
            return
        first, until = self._verdicts.get((reader, part), (said, now))
        if now < until and first is not said:
            raise InvariantViolation(f"T4: {part} of {reader} has two verdicts")
        if now >= until:
            self._verdicts[reader, part] = said, now + kept
