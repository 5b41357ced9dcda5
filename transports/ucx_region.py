"""Memory that peers read through UCX without our doing, and the same seen from the peer.

Owns:   a region's memory and its registration; a remote region's handle.
Knows nothing of: links, frames.
Units:  bytes.

    address 8 | rkey: what `ucp_rkey_pack` made
"""

import contextlib
import mmap
import struct
import weakref
from ctypes import byref, c_size_t, c_void_p, string_at
from typing import Final

from transports import ucp
from transports.api import Read
from transports.errors import LocalMisuse, ReadCancelled, RemoteProtocol, TransportError
from transports.pieces import Pieces
from transports.region import SharedRegion
from transports.ucx_context import Context
from transports.ucx_memory import address_of, gets
from transports.ucx_operation import Get
from transports.ucx_worker import Worker
from transports.wire import RemoteRegion

_ADDRESS = struct.Struct("<Q")
_MAX_RKEY_BYTES: Final = 4096
#: UCX isn't told how long an rkey is: after a broken one it reads zeros, not our heap.
_PADDING: Final = bytes(64 << 10)
_FIELDS_ADDRESS_LENGTH: Final = 0b11


class UcxRegion(SharedRegion):
    """Anonymous memory, registered with the contexts of the links that share it."""

    def __init__(self, context: Context, size: int) -> None:
        super().__init__(size)
        self.context = context
        self._map = _map(size)
        self._view = memoryview(self._map)
        #: By context: what `ucp_mem_map` gave.
        self._handles: dict[int, int] = {}

    @property
    def memory(self) -> memoryview:
        """See `SharedRegion.memory`."""
        return self._view

    def describe(self, context: int) -> bytes:
        """What a peer needs to read it over a worker of this context."""
        address = address_of(self._view)
        if context not in self._handles:
            self._handles[context] = self._registered(context, address)
        blob, size = c_void_p(), c_size_t()
        lib = self.context.library
        status = lib.ucp_rkey_pack(context, self._handles[context], byref(blob), byref(size))
        ucp.check(status, "rkey_pack")
        try:
            return _ADDRESS.pack(address) + string_at(blob, size.value)
        finally:
            lib.ucp_rkey_buffer_release(blob)

    def _registered(self, context: int, address: int) -> int:
        params = ucp.MemMapParams(
            field_mask=_FIELDS_ADDRESS_LENGTH, address=address, length=self.size
        )
        handle = c_void_p()
        status = self.context.library.ucp_mem_map(context, byref(params), byref(handle))
        ucp.check(status, "mem_map")
        return handle.value or 0

    def _release(self) -> None:
        for context, handle in self._handles.items():
            self.context.library.ucp_mem_unmap(context, handle)
        self._handles.clear()
        self._view = memoryview(b"")
        with contextlib.suppress(BufferError):  # it goes with the last view of it
            self._map.close()


def _map(size: int) -> mmap.mmap:
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise LocalMisuse(f"no memory of {size} bytes: {error}") from None
    with contextlib.suppress(OSError):  # kernels without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class RemoteUcxRegion(RemoteRegion):
    """A peer's region. Raises: RemoteProtocol for a description that can't be one."""

    def __init__(self, worker: Worker, description: bytes, size: int) -> None:
        if not _ADDRESS.size < len(description) <= _ADDRESS.size + _MAX_RKEY_BYTES:
            raise RemoteProtocol(f"a region described in {len(description)} bytes")
        (self._address,) = _ADDRESS.unpack_from(description)
        if self._address + size > 1 << 63:
            raise RemoteProtocol("a region beyond all memory")
        self.size = size
        self._worker = worker
        #: Those that may be under way; the worker keeps them until they have ended.
        self._gets: weakref.WeakSet[Get] = weakref.WeakSet()
        try:
            self._rkey = worker.unpack(description[_ADDRESS.size :] + _PADDING)
        except TransportError as error:
            raise RemoteProtocol(f"a region that can't be read: {error}") from None

    def read(self, pieces: Pieces) -> Read:
        """See `RemoteRegion.read`."""
        getting = Get(gets(self._address, pieces), self._rkey, pieces.targets)
        self._worker.start(getting)
        self._gets.add(getting)
        return UcxRead(getting)

    def close(self, reason: TransportError) -> None:
        """See `RemoteRegion.close`: no further get is posted; those under way can't be stopped."""
        for getting in list(self._gets):
            getting.stop(reason)

    async def quiet(self) -> None:
        """See `RemoteRegion.quiet`."""
        for getting in list(self._gets):
            await getting.quiet()
        self._worker.drop(self._rkey)


class UcxRead:
    """See `Read`."""

    def __init__(self, getting: Get) -> None:
        self._getting = getting

    async def wait(self) -> None:
        """See `Read.wait`."""
        await self._getting.result()

    def cancel(self) -> None:
        """See `Read.cancel`: no further get is posted; those under way can't be stopped."""
        self._getting.stop(ReadCancelled("the read was cancelled"))

    async def quiet(self) -> None:
        """See `Read.quiet`."""
        await self._getting.quiet()
