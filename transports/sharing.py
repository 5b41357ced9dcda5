"""The regions of one link: ours that the peer may read, and the peer's that we may.

Owns:   which region has which number, and what is still to be said about those that were closed.
Knows nothing of: the link's tasks, any one transport.
Closed: the owner says UNSHARE; the reader stops its reads and, once they are quiet, says UNSHARED;
        then both forget the number, and the owner lets the memory go. An owner whose reader never
        answers keeps that memory until the link ends, and nothing else waits for it.
"""

import asyncio

from transports.api import Region
from transports.control import Control
from transports.errors import (
    LocalMisuse,
    PeerLost,
    RegionClosed,
    RemoteProtocol,
    Unsupported,
)
from transports.frame import Frame, Type
from transports.region import SharedRegion
from transports.session import Session
from transports.wire import RemoteRegion, Wire


class Sharing:
    """See the module. `let_go` must run until the link ends, then `end` is called."""

    def __init__(self, wire: Wire, session: Session, control: Control) -> None:
        self._wire = wire
        self._session = session
        self._control = control
        self._ours: dict[int, SharedRegion] = {}
        self._numbers: dict[SharedRegion, int] = {}
        self._theirs: dict[int, RemoteRegion] = {}
        #: Those of the peer's that it has closed and that may still be read.
        self._closed: asyncio.Queue[int] = asyncio.Queue()

    # -- ours ----------------------------------------------------------------------------------

    def share(self, region: Region) -> tuple[int, bytes]:
        """A region's number, and the frame that must be written next: none if the peer knows it.
        Raises: Unsupported, LocalMisuse.
        """
        if not self._wire.capabilities.one_sided_reads:
            raise self._wire.no_reads()
        if not isinstance(region, SharedRegion):
            raise LocalMisuse("not a region of this transport")
        region.hold(self)
        if region in self._numbers:
            return self._numbers[region], b""
        try:
            if complaint := self._session.regions_out.complaint(region.size):
                raise LocalMisuse(f"the peer takes no more: {complaint}")
            description = self._wire.share(region)
        except BaseException:
            region.let_go(self)
            raise
        number = self._session.regions_out.share(region.size)
        self._ours[number], self._numbers[region] = region, number
        return number, self._session.frame(
            Type.REGION, argument=number, meta=description, body_bytes=region.size
        )

    def on_closed(self, region: SharedRegion) -> None:
        """See `Sharer.on_closed`."""
        number = self._numbers.pop(region)
        self._session.regions_out.close(number)
        self._control.say(Type.UNSHARE, number)

    def unshared(self, number: int) -> None:
        """The peer has let go of a region of ours."""
        self._ours.pop(number).let_go(self)

    # -- the peer's ----------------------------------------------------------------------------

    def attach(self, frame: Frame) -> None:
        """The peer shares a region with us. Raises: RemoteProtocol."""
        try:
            region = self._wire.attach(frame.meta, frame.body_bytes)
        except Unsupported as error:
            raise RemoteProtocol(f"a region where there can be none: {error}") from None
        self._theirs[frame.argument] = region

    def find(self, number: int) -> RemoteRegion:
        """Raises: RegionClosed, LocalMisuse if the peer never shared that."""
        ledger = self._session.regions_in
        if not isinstance(number, int) or not 0 < number <= ledger.last:
            raise LocalMisuse(f"the peer shares no region {number!r}")
        if number not in self._theirs or number in ledger.closed:
            raise RegionClosed(f"the peer has closed region {number}")
        return self._theirs[number]

    def unshare(self, number: int) -> None:
        """The peer has closed a region: reads of it stop."""
        self._theirs[number].close(RegionClosed(f"the peer has closed region {number}"))
        self._closed.put_nowait(number)

    async def let_go(self) -> None:
        """Tell the peer of each region that it closed when no read of it is under way any more."""
        while True:
            number = await self._closed.get()
            await self._theirs[number].quiet()
            del self._theirs[number]
            self._control.say(Type.UNSHARED, number)

    async def stop(self) -> None:
        """The link is about to end cleanly: return when none of the peer's regions is read."""
        for region in self._theirs.values():
            region.close(PeerLost("the link to the region's owner has ended"))
        for region in list(self._theirs.values()):
            await region.quiet()

    # -- the end -------------------------------------------------------------------------------

    def end(self) -> None:
        """The link has ended, and so has whatever it allowed. Idempotent."""
        for theirs in self._theirs.values():
            theirs.close(PeerLost("the link to the region's owner has ended"))
        self._theirs.clear()
        ours, self._ours = self._ours, {}
        self._numbers.clear()
        for region in ours.values():
            region.let_go(self)
