"""What an owner's worker owes to those whom it serves, and to the blocks that it sends.

Owns:   which sends are under way or were told to stop, and what was said of confirms.
Knows nothing of: what is sent; links but for their names.
Promise: a block is held while it is sent; one send of a pull at a time; what is over sends no more
        and, if the reader may not know, has its link cut (T16); a confirm asked for twice has one
        answer, and a good one only if it is known to be good (T4); a lease has one reader at a time
        (T19); whoever waits for what will never be written is told (T11).
"""

from kvdist.connector.effects import CutLink, Escalate, SendBytes, SendToPeer, ServeKey, StopSending
from kvdist.connector.geometry import Geometry
from kvdist.connector.messages import Confirmed, Denied, Opened, PartId, Settled, since
from kvdist.connector.server import Server
from kvdist.connector.settings import Settings
from kvdist.connector.tables.serve import State
from kvdist.errors import InvariantViolation
from kvdist.ids import LeaseId
from kvdist.sim.fetching import look_at_burst

_BUSY = (State.SENDING, State.ENDING)


class Serving:
    """Of one worker. Raises: InvariantViolation where a promise is broken."""

    def __init__(self, server: Server, geometry: Geometry, settings: Settings) -> None:
        self._server, self._geometry, self._settings = server, geometry, settings
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
            case SendBytes(key=key, spans=spans):
                look_at_burst(self._geometry, self._settings, spans)
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
            case SendToPeer(address, Opened(part), version) if version < since(Settled):
                self._opens_to_older(address, part)
            case _:
                pass

    def _opens_to_older(self, address: str, part: PartId) -> None:
        for key, (_, is_unwritten) in self._server.reads.items():
            if key[2] == part and is_unwritten and self._server.pulls[key][0] == address:
                raise InvariantViolation(f"{key} reads along, and wouldn't hear how far it may")

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
        goes_on = {key for key, (_, state) in serves.items() if state is not State.ENDING}
        if over := goes_on & (self._server.confirmed | (self._stopped & self._under_way)):
            raise InvariantViolation(f"T25: {over} are over, and go on")
        readers: dict[LeaseId, object] = {}
        for key, (lease, _) in self._server.reads.items():
            reader = (key[0], key[1], key[2].pull)
            if readers.setdefault(lease, reader) != reader:
                raise InvariantViolation(f"T19: {reader} and {readers[lease]} read one lease")

    def has_revoked(self, lease: LeaseId) -> None:
        """A lease was taken back."""
        for key, (of, is_unwritten) in self._server.reads.items():
            address, state = self._server.pulls[key]
            waits = of == lease and is_unwritten and state is not State.ENDING
            if waits and self._said.get((address, key[2])) is not Denied:
                raise InvariantViolation(f"T11: {key} isn't told that it waits in vain")

    def has_closed(self, key: ServeKey) -> None:
        """Its reader has said that it stops."""
        if self._server.pulls.get(key, ("", State.ENDING))[1] is not State.ENDING:
            raise InvariantViolation(f"T25: {key} was closed, and goes on")

    def has_ticked(self) -> None:
        """Time alone ends what is open only by a cut (T16)."""
        serves = self._server.pulls
        for key, before in self._before.items():
            if serves.get(key) != before and before[0] not in self.cut:
                raise InvariantViolation(f"T16: {key} stalls, and {before[0]} isn't cut")

    def has_confirmed(self, link: str, key: ServeKey, reader: str, now: float, kept: float) -> None:
        """A confirm was answered."""
        part = key[2]
        said = self._said.get((link, part))
        if said is None:
            return
        if said is Confirmed and key not in self._server.confirmed:
            raise InvariantViolation(f"T4: nobody knows that {part} of {reader} is good")
        first, until = self._verdicts.get((reader, part), (said, now))
        if now < until and first is not said:
            raise InvariantViolation(f"T4: {part} of {reader} has two verdicts")
        if now >= until:
            self._verdicts[reader, part] = said, now + kept
