"""A worker's memory, as its links see it.

Owns:   nothing; whoever runs the model owns the memory.
Knows nothing of: what lies where (`layout`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvdist.links.layout import Bytes, Layout
from transports.api import Buffer, Region


class Pool(Protocol):
    """Bytes that can be sent, and written."""

    def buffers(self, spans: Sequence[Bytes]) -> Sequence[Buffer]:
        """These bytes themselves, in order."""


@dataclass(frozen=True, slots=True)
class HostPool:
    """Memory of this machine."""

    view: memoryview

    def buffers(self, spans: Sequence[Bytes]) -> Sequence[Buffer]:
        """See `Pool.buffers`."""
        view = self.view
        return [view[first : first + size] for first, size in spans]


@dataclass(frozen=True, slots=True)
class Memory:
    """What a worker lends and fills."""

    pool: Pool
    layout: Layout
    #: The same memory, where peers can be allowed to read it by themselves; None: it is sent.
    region: Region | None = None
