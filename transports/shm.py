"""Links within one host: messages over a unix socket, regions as memory that both sides map.

Owns:   the descriptors that are on their way, and the socket's file.
Knows nothing of: frames, sessions.
Regions: a sealed memfd, handed over with the frame that announces it. Its size can't change any
         more, so that a reader can't run into memory that is gone, and nobody else can map it for
         writing.
Promise: descriptors are either mapped or closed; a mapping lives as long as anybody's view of it;
         a killed process leaves nothing but the socket's file, which the next listener replaces.
"""

import array
import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from transports.address import Address
from transports.api import Capabilities, Region
from transports.base import MAX_WAITING, Bound, OnWire, WireTransport
from transports.errors import LocalMisuse, RemoteProtocol, Unreachable, Unsupported
from transports.mapped import MappedRegion
from transports.region import SharedRegion
from transports.sealed import SealedMemory, mapped
from transports.stream import Door, StreamWire
from transports.wire import RemoteRegion, Wire

#: Size of what the socket holds of one direction.
SOCKET_BYTES: Final = 4 << 20

#: Room for more descriptors than ever come with one read, so that surplus ones are noticed.
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(8 * array.array("i").itemsize)
#: Of the frame being read and of the next one.
_MAX_WAITING_FDS: Final = 2
_CREDENTIALS: Final = struct.Struct("3i")
#: Of sockets (sun_path, without the end).
_MAX_PATH_BYTES: Final = 107
#: Where no socket can be, whatever others do.
_NO_PLACE: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST}
)
#: How long to wait before trying again what the system can't tell us about.
_AGAIN_S: Final = 0.01


class ShmWire(StreamWire):
    """A unix socket that also carries descriptors."""

    capabilities = Capabilities(one_sided_reads=True, same_host_only=True)

    def __init__(self, sock: socket.socket, peer_address: str) -> None:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
        super().__init__(sock, peer_address)
        #: To go with the next write.
        self._fds_out: list[int] = []
        #: Those that came, with how far the stream had come by then.
        self._fds_in: deque[tuple[int, int]] = deque()
        #: Those that came with the last head.
        self._fds_of_head: list[int] = []

    def _read(self, buffers: Sequence[memoryview], size: int) -> int:
        num_bytes, ancillary, flags, _ = self._sock.recvmsg_into(
            buffers, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
        )
        self._drained = num_bytes < size
        if ancillary or flags & socket.MSG_CTRUNC:
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds = array.array("i")
                    fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                    self._fds_in += [(self.received_bytes + num_bytes, fd) for fd in fds]
            if flags & socket.MSG_CTRUNC:
                raise RemoteProtocol("descriptors got lost: too many came, or none are left here")
            if len(self._fds_in) > _MAX_WAITING_FDS:
                raise RemoteProtocol("surplus descriptors")
        return num_bytes

    def _write(self, buffers: Sequence[bytes | memoryview]) -> int:
        if not self._fds_out:
            return super()._write(buffers)
        num_bytes = socket.send_fds(self._sock, buffers, self._fds_out)
        _close_all(self._fds_out)
        return num_bytes

    async def recv_head(self) -> bytes:
        """See `Wire.recv_head`."""
        if self._fds_of_head:
            raise RemoteProtocol("surplus descriptors")
        head = await super().recv_head()
        position = self.received_bytes - (self._stop - self._start)
        while self._fds_in and self._fds_in[0][0] <= position:
            self._fds_of_head.append(self._fds_in.popleft()[1])
        return head

    def share(self, region: Region) -> bytes:
        """See `Wire.share`."""
        if not isinstance(region, ShmRegion):
            raise LocalMisuse("not a region of this transport")
        self._fds_out.append(region.duplicate())
        return b""

    def attach(self, description: bytes, size: int) -> RemoteRegion:
        """See `Wire.attach`: the descriptor says all that there is to say."""
        if description:
            raise RemoteProtocol("no description of a region")
        if len(self._fds_of_head) != 1:
            raise RemoteProtocol(f"{len(self._fds_of_head)} descriptors came with a region")
        try:
            return MappedRegion(mapped(self._fds_of_head[0], size))
        finally:
            _close_all(self._fds_of_head)

    def abort(self) -> None:
        """See `Wire.abort`."""
        super().abort()
        _close_all(self._fds_out)
        _close_all(self._fds_of_head)
        while self._fds_in:
            os.close(self._fds_in.popleft()[1])


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


class ShmRegion(SharedRegion):
    """Memory that peers on this host may map."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._sealed = SealedMemory(size)

    @property
    def memory(self) -> memoryview:
        """See `SharedRegion.memory`."""
        return self._sealed.view

    def duplicate(self) -> int:
        """Another descriptor of it, the caller's to close. Raises: Unsupported."""
        try:
            return os.dup(self._sealed.fd)
        except OSError as error:
            raise Unsupported(f"no descriptor for a region: {error.strerror}") from None

    def _release(self) -> None:
        self._sealed.close()


class ShmTransport(WireTransport):
    """`shm:///path`: a unix socket's path; whoever may open the file may connect."""

    scheme = "shm"
    capabilities = ShmWire.capabilities

    async def dial(self, address: Address) -> Wire:
        """See `WireTransport.dial`."""
        path = _path(address)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            while True:
                try:
                    sock.connect(path)
                    break
                except BlockingIOError:  # many others are waiting to be let in
                    await asyncio.sleep(_AGAIN_S)
            return ShmWire(sock, str(address))
        except OSError as error:
            sock.close()
            raise Unreachable(f"{address}: {error.strerror or error}") from None
        except BaseException:
            sock.close()
            raise

    async def bind(self, address: Address, on_wire: OnWire) -> Bound:
        """See `WireTransport.bind`."""
        path = _path(address)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(sock.fileno(), 0o600)  # the file gets this mode when it is made
            async with _alone(Path(path).parent, self.config.handshake_s):
                try:
                    sock.bind(path)
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise
                    _remove_dead(path)
                    sock.bind(path)
                sock.listen(MAX_WAITING)
                made = os.stat(path)
        except OSError as error:
            sock.close()
            kind = LocalMisuse if error.errno in _NO_PLACE else Unreachable
            raise kind(f"{address}: {error.strerror or error}") from None
        except BaseException:
            sock.close()
            raise
        door = Door(sock, lambda came: ShmWire(came, _describe(came, address)), on_wire)

        def close() -> None:
            door.close()
            with contextlib.suppress(OSError):
                now = os.lstat(path)
                if (now.st_dev, now.st_ino) == (made.st_dev, made.st_ino):
                    os.unlink(path)

        return Bound(address, close)

    def allocate(self, size: int) -> Region:
        """See `Transport.allocate`."""
        return ShmRegion(size)


def _path(address: Address) -> str:
    if address.host or not address.path.startswith("/"):
        raise LocalMisuse(f"{address} is not of the form shm:///path")
    if len(os.fsencode(address.path)) > _MAX_PATH_BYTES:
        raise LocalMisuse(f"{address}: a socket's path has at most {_MAX_PATH_BYTES} bytes")
    return address.path


def _describe(sock: socket.socket, address: Address) -> str:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return f"{address}#process-{_CREDENTIALS.unpack(raw)[0]}"


@contextlib.asynccontextmanager
async def _alone(folder: Path, patience_s: float) -> AsyncIterator[None]:
    """Of all who make or replace a socket in this folder, only the caller does so now."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        async with asyncio.timeout(patience_s):
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(_AGAIN_S)
        yield
    finally:
        os.close(fd)


def _remove_dead(path: str) -> None:
    """Remove a socket that nobody listens at. Raises: OSError if somebody does, or may."""
    in_use = OSError(errno.EADDRINUSE, "in use")
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise OSError(errno.EEXIST, "there is something else than a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        if probe.connect_ex(path) != errno.ECONNREFUSED:
            raise in_use
    os.unlink(path)
