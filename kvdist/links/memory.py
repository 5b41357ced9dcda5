"""A worker's memory, as its links see it.

Owns:   nothing; whoever runs the model owns the memory.
Knows nothing of: what lies where (`layout`).
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvdist.errors import RemoteProtocol
from kvdist.links.layout import Bytes, Layout
from transports.api import Buffer, Region


class Pool(Protocol):
    """Bytes that can be sent, and written."""

    def buffers(self, spans: Sequence[Bytes]) -> Sequence[Buffer]:
        """These bytes themselves, in order."""

    def checksum(self, spans: Sequence[tuple[int, int]]) -> int:
        """Of these bytes (first, size), in order. Takes its time. Raises: RemoteProtocol if they
        aren't there.
        """


@dataclass(frozen=True, slots=True)
class HostPool:
    """Memory of this machine."""

    view: memoryview

    def buffers(self, spans: Sequence[Bytes]) -> Sequence[Buffer]:
        """See `Pool.buffers`."""
        view = self.view
        return [view[first : first + size] for first, size in spans]

    def checksum(self, spans: Sequence[tuple[int, int]]) -> int:
        """See `Pool.checksum`; crc32."""
        value = 0
        for first, size in spans:
            if first + size > len(self.view):
                raise RemoteProtocol(f"bytes {first} to {first + size} of {len(self.view)}")
            value = zlib.crc32(self.view[first : first + size], value)
        return value


@dataclass(frozen=True, slots=True)
class Memory:
    """What a worker lends and fills."""

    pool: Pool
    layout: Layout
    #: The same memory, where peers can be allowed to read it by themselves; None: it is sent.
    region: Region | None = None
    #: What we read by ourselves is compared with what its owner says that it should be.
    is_checked: bool = False
