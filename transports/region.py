"""Memory that stays as it is until its owner has closed it and no peer reads it any more.

Owns:   who shares a region, and when its memory goes.
Knows nothing of: what the memory is, links.
"""

import asyncio
from abc import abstractmethod
from typing import Protocol

from transports.api import Region
from transports.config import MAX_SIZE
from transports.errors import LocalMisuse


class Sharer(Protocol):
    """Lets a peer read a region."""

    def on_closed(self, region: "SharedRegion") -> None:
        """Its owner has closed it: see that reads of it end, then call `let_go`."""


class SharedRegion(Region):
    """Each transport with one-sided reads brings the memory."""

    def __init__(self, size: int) -> None:
        if not isinstance(size, int) or not 0 < size < MAX_SIZE:
            raise LocalMisuse(f"a region of {size!r} bytes")
        self.size = size
        self._sharers: set[Sharer] = set()
        self._closed = False
        self._gone = asyncio.Event()

    @property
    @abstractmethod
    def memory(self) -> memoryview:
        """The same as `view`, also when its owner has closed it and it hasn't gone yet."""

    @abstractmethod
    def _release(self) -> None:
        """Let the memory go; called once."""

    @property
    def view(self) -> memoryview:
        """See `Region.view`."""
        self._check_open()
        return self.memory

    def hold(self, sharer: Sharer) -> None:
        """A peer of `sharer`'s may read it, until that lets go. Raises: LocalMisuse if closed."""
        self._check_open()
        self._sharers.add(sharer)

    def let_go(self, sharer: Sharer) -> None:
        """No peer of `sharer`'s reads it any more. Idempotent."""
        self._sharers.discard(sharer)
        self._release_if_unused()

    def close(self) -> None:
        """See `Region.close`. Views that somebody holds stay good."""
        if self._closed:
            return
        self._closed = True
        for sharer in list(self._sharers):
            sharer.on_closed(self)
        self._release_if_unused()

    async def quiet(self) -> None:
        """See `Region.quiet`."""
        await self._gone.wait()

    def _release_if_unused(self) -> None:
        if self._closed and not self._sharers and not self._gone.is_set():
            self._gone.set()
            self._release()

    def _check_open(self) -> None:
        if self._closed:
            raise LocalMisuse("this region is closed")
