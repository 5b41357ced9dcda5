"""The rules of an open link: numbering, credit, offers, and what a peer may send when. No I/O.

Knows nothing of: sockets, tasks, clocks, buffers.
Units:  bytes.
Promise: whatever the peer sends, `receive` either returns what it means or raises RemoteProtocol;
         memory for what was received and not taken is at most `window_bytes`.

Credit: every message costs its meta, its small body and a little; the sender pays from what the
receiver has granted and the receiver grants again what its user has taken. Large bodies cost
nothing, since they come only when asked for. All other frames are answers to the peer's own, one
each, or are merged, so they need no credit; and of regions there are only so many at a time.
"""

from dataclasses import dataclass, field
from typing import Final

from transports.config import MAX_WINDOW_BYTES, SessionConfig
from transports.errors import RemoteProtocol
from transports.frame import Flag, Frame, Type
from transports.ledger import Ledger

#: What a message costs beyond its meta and small body: about what Python needs to hold one.
MESSAGE_COST: Final = 256

_AFTER_HANDSHAKE: Final = frozenset(Type) - {Type.HELLO, Type.PROOF, Type.WELCOME, Type.REFUSED}


def cost(meta_bytes: int, small_body_bytes: int) -> int:
    """What a message costs of the window."""
    return MESSAGE_COST + meta_bytes + small_body_bytes


@dataclass(slots=True)
class Landing:
    """A body that was asked for."""

    offer: int
    body_bytes: int
    landed: int = 0


@dataclass(slots=True)
class Session:
    """State of one open link, on one side."""

    config: SessionConfig
    #: Largest meta and largest body that both sides take.
    max_meta_bytes: int
    max_body_bytes: int
    #: Largest body that travels with its message.
    eager_bytes: int
    #: Bytes of messages we may still send.
    credit: int
    #: Our regions that the peer may read.
    regions_out: Ledger
    next_number_out: int = 0
    next_number_in: int = 0
    next_offer: int = 1
    #: The peer decides in order; a verdict on an offer that we have withdrawn may be under way.
    last_verdict_in: int = 0
    #: The peer's offers that our user hasn't decided on, with the size of the body.
    undecided: dict[int, int] = field(default_factory=dict)
    landing: Landing | None = None
    last_offer_in: int = 0
    #: Bytes that the peer may still send.
    granted: int = 0
    #: Bytes that our user has taken and that aren't granted again yet.
    taken: int = 0
    #: The peer's regions that we may read.
    regions_in: Ledger = field(init=False)
    peer_said_bye: bool = False

    def __post_init__(self) -> None:
        self.granted = self.config.window_bytes
        config = self.config
        self.regions_in = Ledger(config.max_region_bytes, config.max_shared_bytes)

    # -- out -----------------------------------------------------------------------------------

    def frame(
        self,
        type_: Type,
        *,
        kind: int = 0,
        argument: int = 0,
        meta: bytes = b"",
        body_bytes: int = 0,
        body_crc: int | None = None,
    ) -> bytes:
        """The next frame's bytes; it must be the next to be written."""
        flags = Flag.NONE if body_crc is None else Flag.BODY_CRC
        number, self.next_number_out = self.next_number_out, self.next_number_out + 1
        return Frame(type_, number, kind, argument, body_bytes, meta, flags, body_crc or 0).encode()

    def pay(self, meta_bytes: int, small_body_bytes: int) -> bool:
        """Take a message's cost from our credit; False, and nothing taken, if it isn't there."""
        price = cost(meta_bytes, small_body_bytes)
        if price > self.credit:
            return False
        self.credit -= price
        return True

    def offer(self) -> int:
        """A number for a body that waits to be asked for."""
        number, self.next_offer = self.next_offer, self.next_offer + 1
        return number

    def accept(self, offer: int) -> None:
        """Ask for the body of an offer of the peer's."""
        assert self.landing is None, "one receiver, one body at a time"
        self.landing = Landing(offer, self.undecided.pop(offer))

    def refuse(self, offer: int) -> None:
        """Do without the body of an offer of the peer's."""
        self.undecided.pop(offer, None)

    def take(self, price: int) -> bool:
        """Our user took a message that cost `price`; True if it is time to grant."""
        self.taken += price
        return self.taken >= self.config.window_bytes // 4

    def grant(self) -> int:
        """All that was taken may come again; call it only when the peer can be told now, or one
        that sends and never reads would be granted without end.
        """
        grant, self.taken = self.taken, 0
        self.granted += grant
        return grant

    # -- in ------------------------------------------------------------------------------------

    def receive(self, frame: Frame) -> Frame:
        """Check a frame against all rules and note it. Raises: RemoteProtocol."""
        if frame.number != self.next_number_in:
            raise RemoteProtocol(f"frame {frame.number} where {self.next_number_in} is due")
        self.next_number_in += 1
        if frame.type not in _AFTER_HANDSHAKE:
            raise RemoteProtocol(f"{frame.type.name} on an open link")
        if self.peer_said_bye:
            raise RemoteProtocol(f"{frame.type.name} after BYE")
        if frame.type is not Type.REGION and len(frame.meta) > self.config.max_meta_bytes:
            raise RemoteProtocol(f"{len(frame.meta)} bytes of meta")
        getattr(self, f"_on_{frame.type.name.lower()}", self._on_other)(frame)
        return frame

    def _on_other(self, frame: Frame) -> None:
        if frame.body_bytes:
            raise RemoteProtocol(f"{frame.type.name} with a body")

    def _on_message(self, frame: Frame) -> None:
        if frame.body_bytes > min(self.config.eager_bytes, self.config.max_body_bytes):
            raise RemoteProtocol(f"a small message with {frame.body_bytes} bytes")
        self._charge(len(frame.meta), frame.body_bytes)

    def _on_offer(self, frame: Frame) -> None:
        if frame.argument <= self.last_offer_in:
            raise RemoteProtocol(f"offer {frame.argument} after {self.last_offer_in}")
        size = frame.body_bytes
        if not 0 < size <= self.config.max_body_bytes:
            raise RemoteProtocol(f"a body of {size} bytes, at most {self.config.max_body_bytes}")
        self._charge(len(frame.meta), 0)
        self.last_offer_in = frame.argument
        self.undecided[frame.argument] = size

    def _charge(self, meta_bytes: int, small_body_bytes: int) -> None:
        self.granted -= cost(meta_bytes, small_body_bytes)
        if self.granted < 0:
            raise RemoteProtocol("more messages than were granted")

    def _on_withdraw(self, frame: Frame) -> None:
        self._on_other(frame)
        if self.landing is not None and self.landing.offer == frame.argument:
            if self.landing.landed:
                raise RemoteProtocol("an offer withdrawn when part of its body had come")
            self.landing = None
        else:
            self.undecided.pop(frame.argument, None)

    def _on_verdict(self, frame: Frame) -> None:
        self._on_other(frame)
        if not self.last_verdict_in < frame.argument < self.next_offer:
            raise RemoteProtocol(f"{frame.type.name} of offer {frame.argument}, which isn't open")
        self.last_verdict_in = frame.argument

    _on_accept = _on_verdict
    _on_refuse = _on_verdict

    def _on_body(self, frame: Frame) -> None:
        landing = self.landing
        if landing is None or landing.offer != frame.argument:
            raise RemoteProtocol(f"a body of offer {frame.argument} that nobody asked for")
        if not 0 < frame.body_bytes <= landing.body_bytes - landing.landed:
            raise RemoteProtocol(f"{frame.body_bytes} bytes of body, too many or none")

    def landed(self, num_bytes: int) -> bool:
        """A part of the body is in its place; True if it was the last."""
        assert self.landing is not None
        self.landing.landed += num_bytes
        if self.landing.landed < self.landing.body_bytes:
            return False
        self.landing = None
        return True

    def _on_credit(self, frame: Frame) -> None:
        self._on_other(frame)
        if not 0 < frame.argument <= MAX_WINDOW_BYTES - self.credit:
            raise RemoteProtocol(f"credit of {frame.argument} bytes")
        self.credit += frame.argument

    def _on_region(self, frame: Frame) -> None:
        if frame.argument != self.regions_in.last + 1:
            raise RemoteProtocol(f"region {frame.argument} after {self.regions_in.last}")
        if complaint := self.regions_in.complaint(frame.body_bytes):
            raise RemoteProtocol(complaint)
        self.regions_in.share(frame.body_bytes)

    def _on_unshare(self, frame: Frame) -> None:
        self._on_other(frame)
        if not self.regions_in.close(frame.argument):
            raise RemoteProtocol(f"UNSHARE of region {frame.argument}, which isn't shared")

    def _on_unshared(self, frame: Frame) -> None:
        self._on_other(frame)
        if not self.regions_out.forget(frame.argument):
            raise RemoteProtocol(f"UNSHARED of region {frame.argument}, which isn't closed")

    def _on_bye(self, frame: Frame) -> None:
        self._on_other(frame)
        if self.landing is not None and self.landing.landed:
            raise RemoteProtocol("BYE when part of a body had come")
        # What the peer had offered and not begun to send is void.
        self.landing = None
        self.undecided.clear()
        self.peer_said_bye = True
