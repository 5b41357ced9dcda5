"""A transport with something between its links and its wires.

Knows nothing of: what comes between; see `faults` and `record`.
"""

import contextlib
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence

from transports.address import Address
from transports.api import Region
from transports.base import Bound, OnWire, WireTransport
from transports.wire import RemoteRegion, Wire


class WrappedTransport(WireTransport):
    """Has the API of the transport within, which is opened and closed with it."""

    def __init__(self, inner: WireTransport) -> None:
        super().__init__(inner.config)
        self.scheme = inner.scheme
        self.capabilities = inner.capabilities
        self._inner = inner

    @abstractmethod
    def wrap(self, wire: Wire) -> Wire:
        """What a link gets instead of `wire`."""

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[WireTransport]:
        """See `Transport.open`."""
        async with self._inner.open(), super().open():
            yield self

    async def dial(self, address: Address) -> Wire:
        """See `WireTransport.dial`."""
        return self.wrap(await self._inner.dial(address))

    async def bind(self, address: Address, on_wire: OnWire) -> Bound:
        """See `WireTransport.bind`."""
        return await self._inner.bind(address, lambda wire: on_wire(self.wrap(wire)))

    def allocate(self, size: int) -> Region:
        """See `Transport.allocate`."""
        return self._inner.allocate(size)


class WrappedWire(Wire):
    """Passes everything on."""

    #: While set, what `received_bytes` shows: the peer seems silent.
    frozen_bytes: int | None = None

    def __init__(self, inner: Wire) -> None:
        self.inner = inner
        self.capabilities = inner.capabilities
        self.peer_address = inner.peer_address
        self.least_part_bytes = inner.least_part_bytes

    @property
    def received_bytes(self) -> int:
        """See `Wire.received_bytes`."""
        return self.inner.received_bytes if self.frozen_bytes is None else self.frozen_bytes

    @received_bytes.setter
    def received_bytes(self, value: int) -> None:
        raise AssertionError("the wire within counts")

    async def trusted(self) -> None:
        """See `Wire.trusted`."""
        await self.inner.trusted()
        self.capabilities = self.inner.capabilities  # it may have found out only now

    async def send(self, head: bytes, body: Sequence[memoryview] = ()) -> None:
        """See `Wire.send`."""
        await self.inner.send(head, body)

    async def send_part(self, head: bytes, body: Sequence[memoryview], num_bytes: int) -> None:
        """See `Wire.send_part`."""
        await self.inner.send_part(head, body, num_bytes)

    async def recv_head(self) -> bytes:
        """See `Wire.recv_head`."""
        return await self.inner.recv_head()

    async def recv_body(self, into: Sequence[memoryview]) -> None:
        """See `Wire.recv_body`."""
        await self.inner.recv_body(into)

    def abort(self) -> None:
        """See `Wire.abort`."""
        self.inner.abort()

    async def close(self) -> None:
        """See `Wire.close`."""
        await self.inner.close()

    async def quiet(self) -> None:
        """See `Wire.quiet`."""
        await self.inner.quiet()

    def share(self, region: Region) -> bytes:
        """See `Wire.share`."""
        return self.inner.share(region)

    def attach(self, description: bytes, size: int) -> RemoteRegion:
        """See `Wire.attach`."""
        return self.inner.attach(description, size)
