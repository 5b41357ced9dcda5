"""The connector's half in a worker: where the bytes are, on both ends of a pull.

Owns:   nothing of its own: `Server` and `Fetcher` do; it says who gets which message.
Knows nothing of: requests, schedulers, sockets, tensors.
Driven by: a host that carries out `take_effects` and brings events back; input before `tick` (T22).
"""

from collections import Counter
from collections.abc import Callable

from kvdist.connector.contacts import Contact, Contacts
from kvdist.connector.effects import SendToPeer, ServeKey, WorkerEffect
from kvdist.connector.fetcher import Fetcher
from kvdist.connector.geometry import Geometry, Piece
from kvdist.connector.local import Cancel, Extend, Fetch, Grant, Revoke, ToWorker
from kvdist.connector.messages import (
    Close,
    Confirm,
    Confirmed,
    Denied,
    Greeting,
    Heads,
    Hello,
    Message,
    Open,
    Opened,
    PartId,
    Refusal,
    Refused,
    Settled,
    StillReading,
    TokenSpans,
    WorkerMessage,
)
from kvdist.connector.server import Server
from kvdist.connector.settings import Settings
from kvdist.ids import Incarnation, NodeId, Rank


class WorkerHalf:
    """See the module.

    `sends`: whether an owner sends the bytes over that link; else its reader reads by itself.
    """

    def __init__(
        self,
        hello: Hello,
        rank: Rank,
        geometry: Geometry,
        settings: Settings,
        *,
        sends: Callable[[str], bool],
    ) -> None:
        self._out: list[WorkerEffect] = []
        #: What may be done: hello, and what follows for whom it was said to.
        self._ready: list[WorkerEffect] = []
        self.contacts = Contacts(hello, settings, self._send, _nothing, self._refused)
        self.server = Server(rank, hello.incarnation, geometry, settings, self._out, sends=sends)
        self.fetcher = Fetcher(geometry, settings, self._out)

    def take_effects(self) -> list[WorkerEffect]:
        """What is to be done now, in order."""
        while self._out:
            effect = self._out.pop(0)
            if isinstance(effect, SendToPeer):
                self._say(effect.address, effect.message)
            else:
                self._ready.append(effect)
        effects = self._ready[:]
        self._ready.clear()
        return effects

    def _say(self, link: str, message: WorkerMessage | Greeting) -> None:
        if isinstance(message, Close):  # what was to be asked about that part, isn't
            part = message.part
            self.contacts.take_back(link, lambda waits: getattr(waits, "part", None) == part)
        self.contacts.say(link, message)

    def _send(self, link: str, message: Message, version: int) -> None:
        self._ready.append(SendToPeer(link, message, version))  # type: ignore[arg-type]

    def _refused(self, link: str, differences: tuple[Refusal, ...]) -> None:
        self.fetcher.refused(link, "; ".join(found.field for found in differences))

    @property
    def counts(self) -> Counter[str]:
        """What was ignored, by kind."""
        return self.server.counts + self.fetcher.counts + self.contacts.counts

    def from_node(self, message: ToWorker) -> None:
        """From our own node."""
        match message:
            case Grant():
                self.server.on_grant(message)
            case Extend():
                self.server.on_extend(message)
            case Revoke():
                self.server.on_revoke(message)
            case Fetch():
                self.fetcher.on_fetch(message)
            case Cancel():
                self.fetcher.on_cancel(message)

    def from_peer(
        self, link: str, peer: NodeId, run: Incarnation, message: WorkerMessage | Greeting
    ) -> None:
        """From another node's worker, as its link has proved who it is.

        link: as we name it in `SendToPeer`: where we dialled, the owner's address.
        """
        if not self.contacts.hear(link, peer, run, message):
            return
        match message:
            case Open():
                version = self.contacts.version_of(link)
                self.server.on_open(link, peer, run, message, version)
            case Confirm():
                self.server.on_confirm(link, peer, run, message)
            case Close():
                self.server.on_close(peer, run, message)
            case StillReading():
                self.server.on_still_reading(peer, run, message)
            case Opened():
                self.fetcher.on_opened(peer, run, message)
            case Settled():
                self.fetcher.on_settled(peer, run, message)
            case Denied():
                self.fetcher.on_denied(peer, message)
            case Confirmed():
                self.fetcher.on_confirmed(peer, run, message)
            case Hello() | Refused():
                raise AssertionError(message)  # contacts hear them

    def place(
        self, peer: NodeId, run: Incarnation, part: PartId, spans: TokenSpans
    ) -> list[Piece] | None:
        """Where bytes that a peer sends should land; None: refuse them."""
        return self.fetcher.place(peer, run, part, spans)

    def heads_of(self, part: PartId) -> Heads:
        """Which heads the bytes of a part are of: [first, last)."""
        return self.fetcher.heads_of(part)

    def landed(self, part: PartId, spans: TokenSpans) -> None:
        """They have landed, all of them."""
        self.fetcher.landed(part, spans)

    def read_failed(self, part: PartId, why: str) -> None:
        """Some byte of a part won't come."""
        self.fetcher.read_failed(part, why)

    def quiet(self, part: PartId) -> None:
        """After `StopRead`: no byte of the part can land any more."""
        self.fetcher.quiet(part)

    def sent(self, key: ServeKey) -> None:
        """A `SendBytes` has returned, however it went."""
        self.server.sent(key)

    def link_lost(self, link: str) -> None:
        """A data link has ended, and moves nothing any more."""
        self.contacts.lost(link)
        self.server.link_lost(link)
        self.fetcher.link_lost(link)

    def clock(self, now: float) -> None:
        """It is now so late; to be said before anything is handed over."""
        self.contacts.now = self.server.now = self.fetcher.now = now

    def tick(self) -> None:
        """Do what is due."""
        self.contacts.tick()
        self.server.tick()
        self.fetcher.tick()

    def next_at(self) -> float | None:
        """When to call `tick` at the latest."""
        all_timers = (self.contacts.timers, self.server.timers, self.fetcher.timers)
        times = [timers.next_at() for timers in all_timers]
        return min((at for at in times if at is not None), default=None)


def _nothing(_link: str, _contact: Contact) -> None:
    """What waited is said; nobody else waits for a worker's hello."""
