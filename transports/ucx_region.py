"""Memory that peers read through UCX without our doing, and the same seen from the peer.

Owns:   a region's memory and its registration; a remote region's handle.
Knows nothing of: links, frames.
Units:  bytes.

On one host a peer finds the memory itself, if it may, and copies from it: `ucp_get` would take a
system call for each span there.

    process 4 | descriptor 4 | name 16 | address 8 | rkey: what `ucp_rkey_pack` made
"""

import os
import struct
import weakref
from ctypes import byref, c_size_t, c_void_p, string_at
from typing import Any, Final

from transports import ucp
from transports.api import Read
from transports.device import on_device
from transports.errors import ReadCancelled, RemoteProtocol, TransportError
from transports.mapped import MappedRegion
from transports.pieces import Pieces
from transports.region import SharedRegion
from transports.sealed import NAME_BYTES, SealedMemory, found, mapped
from transports.ucx_context import Context
from transports.ucx_memory import address_of, gets
from transports.ucx_operation import Get
from transports.ucx_worker import Worker
from transports.wire import RemoteRegion

_DESCRIPTION = struct.Struct(f"<II{NAME_BYTES}sQ")
_MAX_RKEY_BYTES: Final = 4096
#: UCX isn't told how long an rkey is: after a broken one it reads zeros, not our heap.
_PADDING: Final = bytes(64 << 10)
_FIELDS_ADDRESS_LENGTH: Final = 0b11


class UcxRegion(SharedRegion):
    """Sealed memory, registered with the contexts of the links that share it."""

    def __init__(self, context: Context, size: int) -> None:
        super().__init__(size)
        self.context = context
        self._sealed = SealedMemory(size)
        #: By context: what `ucp_mem_map` gave.
        self._handles: dict[int, int] = {}
        #: Also when nobody closed it: registrations go before the memory does.
        self._unregister = weakref.finalize(self, _unmap, context.library, self._handles)
        self._unregister.atexit = False

    @property
    def memory(self) -> memoryview:
        """See `SharedRegion.memory`."""
        return self._sealed.view

    def describe(self, context: int) -> bytes:
        """What a peer needs to read it over a worker of this context."""
        address = address_of(self.memory)
        if context not in self._handles:
            self._handles[context] = self._registered(context, address)
        blob, size = c_void_p(), c_size_t()
        lib = self.context.library
        status = lib.ucp_rkey_pack(context, self._handles[context], byref(blob), byref(size))
        ucp.check(status, "rkey_pack")
        try:
            where = _DESCRIPTION.pack(os.getpid(), self._sealed.fd, self._sealed.name, address)
            return where + string_at(blob, size.value)
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
        self._unregister()
        self._sealed.close()


def _unmap(library: Any, handles: dict[int, int]) -> None:
    for context, handle in handles.items():
        library.ucp_mem_unmap(context, handle)


class RemoteUcxRegion(RemoteRegion):
    """A peer's region. Raises: RemoteProtocol for a description that can't be one."""

    def __init__(self, worker: Worker, description: bytes, size: int) -> None:
        if not _DESCRIPTION.size < len(description) <= _DESCRIPTION.size + _MAX_RKEY_BYTES:
            raise RemoteProtocol(f"a region described in {len(description)} bytes")
        process, fd, name, self._address = _DESCRIPTION.unpack_from(description)
        if self._address + size > 1 << 63:
            raise RemoteProtocol("a region beyond all memory")
        self.size = size
        self._worker = worker
        #: Those that may be under way; the worker keeps them until they have ended.
        self._gets: weakref.WeakSet[Get] = weakref.WeakSet()
        try:
            self._rkey = worker.unpack(description[_DESCRIPTION.size :] + _PADDING)
        except TransportError as error:
            raise RemoteProtocol(f"a region that can't be read: {error}") from None
        self._seen = _seen(process, fd, name, size)

    def read(self, pieces: Pieces) -> Read:
        """See `RemoteRegion.read`; only UCX writes to the memory of a GPU."""
        if self._seen is not None and not on_device(pieces.targets):
            return self._seen.read(pieces)
        getting = Get(gets(self._address, pieces), self._rkey, pieces.targets)
        self._worker.start(getting)
        self._gets.add(getting)
        return UcxRead(getting)

    def close(self, reason: TransportError) -> None:
        """See `RemoteRegion.close`: no further get is posted; those under way can't be stopped."""
        if self._seen is not None:
            self._seen.close(reason)
        for getting in list(self._gets):
            getting.stop(reason)

    async def quiet(self) -> None:
        """See `RemoteRegion.quiet`."""
        for getting in list(self._gets):
            await getting.quiet()
        self._worker.drop(self._rkey)


def _seen(process: int, fd: int, name: bytes, size: int) -> MappedRegion | None:
    """The region as memory that we see, if we do. Raises: RemoteProtocol."""
    ours = found(process, fd, name)
    if ours is None:
        return None
    try:
        return MappedRegion(mapped(ours, size))
    finally:
        os.close(ours)


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
