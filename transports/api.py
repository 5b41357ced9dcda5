"""What every transport promises: ordered, reliable messages over one link to one peer.

Knows nothing of: blocks, requests, tensors; any one transport.
Units:   sizes are bytes, times seconds.
Buffers: a body is a sequence of C-contiguous buffers, some of them may be empty; the receiver names
         the buffers that it lands in, per message, and their sizes need only add up to the body's.
         They must not overlap: what they held then would be left to chance, so that a checksum of
         the body may end the link.
Tasks:   at most one task sends and one receives on a link; a second raises `LocalMisuse`.
Time:    callers use `asyncio.timeout`; a transport's own deadlines are in `SessionConfig`.
Cancel:  a cancelled `send` or `recv` that has begun to move a body aborts the link; one that was
         only waiting leaves it as it was. Who waits for a one-sided read only waits.
Proved by: `transports.testing.conformance`, which every transport passes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

#: Anything with the buffer protocol, or that lends memory of this machine by DLPack (tensors); on
#: transports with `device_memory` also memory on a GPU, by `__cuda_array_interface__` or DLPack.
#: It is lent from the call on that names it until that is over. What a GPU still computes is waited
#: for, in the call and with the loop standing still, where the lender names a stream: always by
#: DLPack, by `stream` in `__cuda_array_interface__`. Who names none (torch by the latter, `None`)
#: must have synchronized before. Who fills such a buffer is done when `recv` or the read returns.
Buffer: TypeAlias = object


@dataclass(frozen=True, slots=True)
class Head:
    """What arrives before a body: enough for the receiver to say where it should land."""

    kind: int  #: 0 .. 255; its meaning is the caller's
    meta: bytes = b""  #: at most `SessionConfig.max_meta_bytes`
    body_bytes: int = 0  #: 0 if there is no body


#: Called once for each message that has a body, before that is read, and for no other: returns the
#: buffers to fill, in order, or raises `BodyRefused`, and then no byte is written anywhere. So it
#: is with whatever else it raises, which `recv` passes on, and with what can't be filled
#: (LocalMisuse): that message is gone, its sender hears of it as of a refusal, and the link goes
#: on. A peer may withdraw a large body before it has begun to send it: then nothing was written,
#: and `recv` goes on to the next message.
Placer: TypeAlias = Callable[[Head], Sequence[Buffer]]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a transport can do here."""

    #: Peers may read registered regions without the owner's doing.
    one_sided_reads: bool = False
    #: Bodies and regions may be GPU memory.
    device_memory: bool = False
    #: Bytes move between processes of one host only.
    same_host_only: bool = False


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, as proved by the handshake."""

    node_id: str
    incarnation: str
    address: str


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [offset, offset + length) of a region."""

    offset: int
    length: int


class Region(ABC):
    """Local memory that peers may be allowed to read."""

    size: int

    @property
    @abstractmethod
    def view(self) -> memoryview:
        """The memory itself."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it: reads by peers end, with all their bytes or with RegionClosed, and no new
        ones begin, as soon as they hear of it (which is not in order with messages). The memory
        stays as it is until each peer that it was shared with has said that none of its reads is
        under way, or its link has ended; then it goes by itself. A peer that never says so costs
        this memory until then, and nothing else. Idempotent.
        """

    @abstractmethod
    async def quiet(self) -> None:
        """After `close`: return when no peer reads it any more and the memory has gone, but for
        what views of it keep; for those who must know before they allocate more.
        """


@runtime_checkable
class Read(Protocol):
    """A one-sided read. It has begun, and goes on by itself, whether or not somebody waits for it,
    until all bytes have landed, it fails, it is cancelled, or its link ends; any of these ends it
    for good. Any number of tasks may wait; one that is cancelled only stops waiting. Until it is
    quiet the buffers are the read's.
    """

    async def wait(self) -> None:
        """Return when all bytes have landed. Raises, to all who wait: ReadCancelled, RegionClosed,
        PeerLost, RemoteProtocol, LocalMisuse (a buffer has gone).
        """

    def cancel(self) -> None:
        """End it, unless it has ended. Cancelled is not quiet: bytes may still land."""

    async def quiet(self) -> None:
        """Return when no byte can land any more, whether it succeeded, failed or was cancelled."""


class Link(ABC):
    """One established connection; the same object on both sides."""

    peer: Peer
    #: What this link can do: at most what its transport can.
    capabilities: Capabilities

    @abstractmethod
    async def send(self, kind: int, meta: bytes = b"", body: Sequence[Buffer] = ()) -> None:
        """Send one message; on return the buffers may be overwritten (not: has arrived).

        A small body travels with its message, so that its sender doesn't hear of a refusal.
        Raises: BodyRefused, PeerClosed, PeerLost, RemoteProtocol, LocalMisuse.
        """

    @abstractmethod
    async def recv(self, place: Placer | None = None) -> Head:
        """Receive one message, its body written straight into `place(head)`.

        Raises: BodyRefused (from `place`; the link goes on), PeerClosed, PeerLost, RemoteProtocol,
        LocalMisuse.
        """

    @abstractmethod
    async def share(self, region: Region) -> int:
        """Let this peer read `region`, until that is closed; returns the number under which it
        finds it, in order with messages: the same each time, and never another region's.
        Raises: Unsupported, LocalMisuse (it is closed, or more than the peer takes), PeerLost,
        PeerClosed.
        """

    @abstractmethod
    def read(self, region: int, spans: Sequence[Span], into: Sequence[Buffer]) -> Read:
        """Begin to read spans of a region that the peer shares into local buffers, in order.

        Raises: Unsupported, RegionClosed (the peer no longer shares it), LocalMisuse (it never did,
        spans out of range, unequal sizes).
        """

    @abstractmethod
    async def close(self) -> None:
        """Flush, then end the link; the peer sees PeerClosed. Idempotent, never raises."""

    @abstractmethod
    def abort(self) -> None:
        """End the link now; the peer sees PeerLost. Idempotent; safe in `finally`."""

    @abstractmethod
    async def quiet(self) -> None:
        """Return when no byte can land in any buffer any more; for a link that has ended."""


class Listener(ABC):
    """Where peers arrive."""

    #: Address to hand to peers, with the real port.
    address: str

    @abstractmethod
    async def accept(self) -> Link:
        """The next peer that passed the handshake. Raises: LocalMisuse once closed."""

    @abstractmethod
    async def close(self) -> None:
        """Accept no more; links go on. Idempotent."""


class Transport(ABC):
    """Makes links of one scheme; owns them and all their tasks.

    Use it as a context: leaving it aborts what is still open and leaves nothing behind.
    """

    scheme: str
    capabilities: Capabilities

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager["Transport"]:
        """Enter the context that owns links and tasks."""

    @abstractmethod
    async def listen(self, address: str) -> Listener:
        """Raises: Unreachable (address in use), LocalMisuse (no such address), Unsupported (what it
        needs isn't there).
        """

    @abstractmethod
    async def connect(self, address: str) -> Link:
        """Raises: Unreachable, Refused, RemoteProtocol, LocalMisuse, Unsupported."""

    @abstractmethod
    def allocate(self, size: int) -> Region:
        """Memory that peers can be allowed to read. Raises: LocalMisuse (no size), Unsupported (no
        reads here, or less memory).
        """
