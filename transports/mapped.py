"""A peer's region whose memory we see: reads of it are copies, until it is closed.

Knows nothing of: how the memory came to be visible; regions that only the network can reach.
Quiet:  a step of a copy is never half done, so that with `close` all reads are quiet and nothing
        of the memory is held.
"""

from transports.api import Read
from transports.copying import Copies
from transports.errors import TransportError
from transports.pieces import Pieces
from transports.wire import RemoteRegion


class MappedRegion(RemoteRegion):
    """See the module."""

    def __init__(self, memory: memoryview) -> None:
        self.size = len(memory)
        self._memory = memory
        self._copies = Copies()

    def read(self, pieces: Pieces) -> Read:
        """See `RemoteRegion.read`."""
        return self._copies.begin(lambda: self._memory, pieces)

    def close(self, reason: TransportError) -> None:
        """See `RemoteRegion.close`."""
        self._copies.end(reason)
        self._memory = memoryview(b"")
