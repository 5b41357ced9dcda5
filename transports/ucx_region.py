"""Memory that peers read through UCX without our doing, and the same seen from the peer.

Owns:   a region's memory and its registration; a remote region's handle.
Knows nothing of: links, frames.
Units:  bytes.

    size 8 | address 8 | rkey: what `ucp_rkey_pack` made
"""

import contextlib
import mmap
import struct
from ctypes import byref, c_size_t, c_void_p, string_at
from typing import Final

from transports import ucp
from transports.api import Read, Region
from transports.errors import LocalMisuse, ReadCancelled, RemoteProtocol, TransportError
from transports.pieces import Pieces
from transports.ucx_context import Context
from transports.ucx_memory import address_of, gets
from transports.ucx_operation import Get
from transports.ucx_worker import Worker
from transports.wire import RemoteRegion

_DESCRIPTION = struct.Struct("<QQ")
_MAX_RKEY_BYTES: Final = 4096
#: UCX isn't told how long an rkey is: after a broken one it reads zeros, not our heap.
_PADDING: Final = bytes(64 << 10)
_FIELDS_ADDRESS_LENGTH: Final = 0b11


class UcxRegion(Region):
    """Anonymous memory, registered with the contexts of the links that share it."""

    def __init__(self, context: Context, size: int) -> None:
        if size < 1:
            raise LocalMisuse(f"a region of {size} bytes")
        self.size = size
        self.context = context
        self._memory: mmap.mmap | None = _map(size)
        self._view = memoryview(self._memory)
        #: By context: what `ucp_mem_map` gave.
        self._handles: dict[int, int] = {}

    @property
    def view(self) -> memoryview:
        """See `Region.view`."""
        if self._memory is None:
            raise LocalMisuse("this region is closed")
        return self._view

    def describe(self, context: int) -> bytes:
        """What a peer needs to read it over a worker of this context."""
        address = address_of(self.view)
        if context not in self._handles:
            self._handles[context] = self._registered(context, address)
        blob, size = c_void_p(), c_size_t()
        lib = self.context.library
        status = lib.ucp_rkey_pack(context, self._handles[context], byref(blob), byref(size))
        ucp.check(status, "rkey_pack")
        try:
            return _DESCRIPTION.pack(self.size, address) + string_at(blob, size.value)
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

    def close(self) -> None:
        """See `Region.close`; the memory goes with the last view of it."""
        if self._memory is None:
            return
        for context, handle in self._handles.items():
            self.context.library.ucp_mem_unmap(context, handle)
        self._handles.clear()
        memory, self._memory, self._view = self._memory, None, memoryview(b"")
        with contextlib.suppress(BufferError):
            memory.close()


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

    def __init__(self, worker: Worker, description: bytes) -> None:
        size = len(description)
        if not _DESCRIPTION.size < size <= _DESCRIPTION.size + _MAX_RKEY_BYTES:
            raise RemoteProtocol(f"a region described in {size} bytes")
        self.size, self._address = _DESCRIPTION.unpack_from(description)
        if not self.size or self._address + self.size > 1 << 63:
            raise RemoteProtocol("a region beyond all memory")
        self._worker = worker
        try:
            self._rkey = worker.unpack(description[_DESCRIPTION.size :] + _PADDING)
        except TransportError as error:
            raise RemoteProtocol(f"a region that can't be read: {error}") from None

    def read(self, pieces: Pieces) -> Read:
        """See `RemoteRegion.read`."""
        getting = Get(gets(self._address, pieces), self._rkey, pieces.targets)
        self._worker.start(getting)
        return UcxRead(getting)

    def close(self) -> None:
        """See `RemoteRegion.close`."""
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
