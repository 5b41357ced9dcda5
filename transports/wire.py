"""What a transport has to bring: an ordered, reliable pipe for heads and bodies.

Knows nothing of: frames' meaning, sessions, credit. `link.WireLink` makes links of it.
Units:  bytes.
Contract: what one side sends by `send(head, body)` the other reads by `recv_head` and, if there
         is a body, by one `recv_body` for exactly as many bytes, in the same order. At most one
         task sends and one receives. After an error or a cancelled call the wire is only good for
         `abort`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from transports.api import Capabilities, Read, Region
from transports.errors import TransportError, Unsupported
from transports.pieces import Pieces


class RemoteRegion(ABC):
    """A peer's memory that we may read."""

    size: int

    @abstractmethod
    def read(self, pieces: Pieces) -> Read:
        """Begin a read of pieces that are known to be in range."""

    @abstractmethod
    def close(self, reason: TransportError) -> None:
        """No more reads, and those under way end with `reason` as soon as they can. Only the
        first reason counts.
        """

    async def quiet(self) -> None:  # noqa: B027 (where steps are never half done, they all are)
        """After `close`: return when no read is under way any more, and it was let go of."""


class Wire(ABC):
    """One connection."""

    capabilities: Capabilities
    #: For people and logs.
    peer_address: str
    #: Parts of large bodies are at least this large: for wires where each part costs round trips.
    least_part_bytes: int = 0
    #: Counts up with every byte that arrives: silence is when it stands still.
    received_bytes: int = 0

    @abstractmethod
    async def send(self, head: bytes, body: Sequence[memoryview] = ()) -> None:
        """Send; on return all buffers may be overwritten. Raises: PeerLost."""

    @abstractmethod
    async def send_part(self, head: bytes, body: Sequence[memoryview], num_bytes: int) -> None:
        """Send the first bytes of a frame and nothing more ever, like a process that dies in the
        middle of it. A wire that moves pieces sends only whole ones. Raises: PeerLost.
        """

    @abstractmethod
    async def recv_head(self) -> bytes:
        """The next head with its meta. Raises: PeerLost, RemoteProtocol."""

    @abstractmethod
    async def recv_body(self, into: Sequence[memoryview]) -> None:
        """Fill the buffers, in order, with the body of the last head. Raises: PeerLost."""

    @abstractmethod
    def abort(self) -> None:
        """End it now: both directions fail, here and there. Idempotent, never raises."""

    @abstractmethod
    async def close(self) -> None:
        """What was sent arrives, then the sending direction ends. Never raises."""

    @abstractmethod
    async def quiet(self) -> None:
        """After `abort`: return when no byte can land in a buffer that was named to it."""

    async def trusted(self) -> None:  # noqa: B027 (most have nothing to do here)
        """The handshake has passed: do now what isn't done with strangers; both sides are called
        before any other frame. Raises: PeerLost, RemoteProtocol.
        """

    def share(self, region: Region) -> bytes:
        """What the peer needs to read `region`. Raises: Unsupported."""
        raise self.no_reads()

    def attach(self, description: bytes, size: int) -> RemoteRegion:
        """The peer's region that was described so; `size` is within the limits that we set, and
        remains to be checked against what is there. Raises: Unsupported, RemoteProtocol.
        """
        raise self.no_reads()

    def no_reads(self) -> Unsupported:
        """The error for what this wire can't do."""
        return Unsupported(f"{type(self).__name__} has no one-sided reads")
