"""Links within one process: the reference that all other transports are measured by.

Owns:   the addresses that are bound in this process.
Knows nothing of: sockets, threads: both ends of a link are in one event loop.
Regions: plain memory; a one-sided read is a copy.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from transports.address import Address
from transports.api import Capabilities, Region
from transports.base import Bound, OnWire, WireTransport
from transports.buffers import Cursor, copy, total
from transports.errors import LocalMisuse, PeerLost, RemoteProtocol, Unreachable, Unsupported
from transports.mapped import MappedRegion
from transports.region import SharedRegion
from transports.wire import RemoteRegion, Wire

#: Bytes of heads that may lie between the two sides.
_PIPE_BYTES = 256 << 10


#: Regions that were announced and not yet attached.
_Shelf: TypeAlias = "dict[int, MemoryRegion]"


class _Pipe:
    """One direction: heads are queued, bodies are copied from hand to hand."""

    def __init__(self) -> None:
        self.heads: deque[bytes] = deque()
        self.waiting_bytes = 0
        self.body: Sequence[memoryview] | None = None
        self.broken = self.ended = False
        self.changed = asyncio.Event()

    async def until_changed(self) -> None:
        self.changed.clear()
        await self.changed.wait()

    def put(self, head: bytes, body: Sequence[memoryview]) -> None:
        self.heads.append(head)
        self.waiting_bytes += len(head)
        self.body = body if total(body) else None
        self.changed.set()

    def check(self) -> None:
        if self.broken:
            raise PeerLost("the link broke")

    def break_off(self) -> None:
        """Nothing more passes, and nothing of the sender's is held."""
        self.broken = True
        self.heads.clear()
        self.body = None
        self.changed.set()


class MemoryWire(Wire):
    """One side of a pair."""

    capabilities = Capabilities(one_sided_reads=True, same_host_only=True)

    def __init__(self, out: _Pipe, into: _Pipe, address: str, shelf: _Shelf) -> None:
        self._out = out
        self._in = into
        self._shelf = shelf
        self.peer_address = address

    async def send(self, head: bytes, body: Sequence[memoryview] = ()) -> None:
        """See `Wire.send`; with a body it returns when the other side has copied it."""
        pipe = self._out
        await self._until_room()
        pipe.put(head, body)
        while pipe.body is not None and not pipe.broken:
            await pipe.until_changed()
        pipe.check()

    async def _until_room(self) -> None:
        pipe = self._out
        while pipe.waiting_bytes > _PIPE_BYTES and not pipe.broken:
            await pipe.until_changed()
        pipe.check()
        if pipe.ended:
            raise LocalMisuse("this direction has ended")

    async def send_part(self, head: bytes, body: Sequence[memoryview], num_bytes: int) -> None:
        """See `Wire.send_part`: a head passes whole or not at all, of a body exactly so much."""
        await self._until_room()
        if num_bytes >= len(head):
            part = b"".join(Cursor(body).peek(num_bytes - len(head)))
            self._out.put(head, [memoryview(part)])
        await self.close()

    async def recv_head(self) -> bytes:
        """See `Wire.recv_head`."""
        pipe = self._in
        while not pipe.heads:
            pipe.check()
            if pipe.ended:
                raise PeerLost("the peer has gone")
            await pipe.until_changed()
        pipe.check()
        head = pipe.heads.popleft()
        pipe.waiting_bytes -= len(head)
        pipe.changed.set()
        self.received_bytes += len(head)
        return head

    async def recv_body(self, into: Sequence[memoryview]) -> None:
        """See `Wire.recv_body`."""
        pipe = self._in
        while pipe.body is None:
            pipe.check()
            if pipe.ended:
                raise PeerLost("the peer has gone")
            await pipe.until_changed()
        pipe.check()
        size, wanted = total(pipe.body), total(into)
        broke_off = pipe.ended and size < wanted
        if size != wanted and not broke_off:
            raise RemoteProtocol("a body of another size than its head said")
        copy(pipe.body, Cursor(into).peek(size) if broke_off else into)
        self.received_bytes += size
        pipe.body = None
        pipe.changed.set()
        if broke_off:
            raise PeerLost("the peer has gone")
        await asyncio.sleep(0)

    def abort(self) -> None:
        """See `Wire.abort`."""
        if not self._out.ended:  # what was sent before `close` still arrives
            self._out.break_off()
        self._in.break_off()

    async def close(self) -> None:
        """See `Wire.close`."""
        self._out.ended = True
        self._out.changed.set()

    async def quiet(self) -> None:
        """Bodies are copied in one go: nothing is ever under way."""

    def share(self, region: Region) -> bytes:
        """See `Wire.share`."""
        if not isinstance(region, MemoryRegion):
            raise LocalMisuse("not a region of this transport")
        self._shelf[id(region)] = region
        return id(region).to_bytes(8, "little")

    def attach(self, description: bytes, size: int) -> RemoteRegion:
        """See `Wire.attach`."""
        region = self._shelf.pop(int.from_bytes(description, "little"), None)
        if region is None or region.size != size:
            raise RemoteProtocol("a region that nobody shared")
        return MappedRegion(region.memory)


class MemoryRegion(SharedRegion):
    """Memory that this process's peers may read."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        try:
            self._bytes = bytearray(size)
        except MemoryError:
            raise Unsupported(f"a region of {size} bytes: there is no memory for it") from None

    @property
    def memory(self) -> memoryview:
        """See `SharedRegion.memory`."""
        return memoryview(self._bytes)

    def _release(self) -> None:
        self._bytes = bytearray()


_bound: dict[str, tuple[asyncio.AbstractEventLoop, OnWire]] = {}


class MemoryTransport(WireTransport):
    """`memory://name`: names are those of this process."""

    scheme = "memory"
    capabilities = MemoryWire.capabilities

    async def dial(self, address: Address) -> Wire:
        """See `WireTransport.dial`."""
        _check(address)
        if address.host not in _bound:
            raise Unreachable(f"nobody listens at {address}")
        loop, on_wire = _bound[address.host]
        if loop is not asyncio.get_running_loop():
            raise Unreachable(f"{address} is in another event loop")
        there, back = _Pipe(), _Pipe()
        shelf: _Shelf = {}
        on_wire(MemoryWire(back, there, f"{address}#dialled", shelf))
        return MemoryWire(there, back, str(address), shelf)

    async def bind(self, address: Address, on_wire: OnWire) -> Bound:
        """See `WireTransport.bind`."""
        _check(address)
        if address.host in _bound:
            raise Unreachable(f"{address} is in use")
        _bound[address.host] = asyncio.get_running_loop(), on_wire

        def unbind() -> None:
            _bound.pop(address.host, None)

        return Bound(address, unbind)

    def allocate(self, size: int) -> Region:
        """See `Transport.allocate`."""
        return MemoryRegion(size)


def _check(address: Address) -> None:
    if not address.host or address.path:
        raise LocalMisuse(f"{address} lacks a name, or has more than that")
