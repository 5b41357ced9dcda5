"""Memory that the processes of one host can share: a sealed memfd, made here or found at a peer's.

Knows nothing of: links; how a peer hears of it.
Units:   bytes.
Sealed:  its size can't change any more, so that a reader can't run into memory that is gone, and
         nobody else can map it for writing.
Promise: a mapping lives as long as anybody's view of it. A killed process leaves nothing behind.
Name:    drawn by who makes it, and the system tells it with each descriptor: whoever finds the name
         has found that very memory, on this host and in no other process.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import secrets
import weakref
from typing import Final

from transports.errors import PeerLost, RemoteProtocol, Unsupported

if not hasattr(os, "memfd_create"):
    raise Unsupported("shared memory needs Linux")

NAME_BYTES: Final = 16
#: No new mapping may write (Linux 5.1); Python 3.11 has no name for it.
_F_SEAL_FUTURE_WRITE: Final = 0x10
_NO_RESIZE: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

#: It isn't the peer's fault.
_SHORTAGE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class SealedMemory:
    """Ours, to write. Raises: Unsupported."""

    def __init__(self, size: int) -> None:
        self.name = secrets.token_bytes(NAME_BYTES)
        try:
            self.fd = os.memfd_create(self.name.hex(), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise Unsupported(f"no memfd: {error.strerror}") from None
        self._close_fd = weakref.finalize(self, os.close, self.fd)
        try:
            os.ftruncate(self.fd, size)
            self._map: mmap.mmap | None = mmap.mmap(self.fd, size)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _NO_RESIZE | _F_SEAL_FUTURE_WRITE)
        except (OSError, OverflowError, ValueError) as error:
            self._close_fd()
            raise Unsupported(f"a region of {size} bytes: {error}") from None
        with contextlib.suppress(OSError):  # most kernels have no huge pages for it
            self._map.madvise(mmap.MADV_HUGEPAGE)

    @property
    def view(self) -> memoryview:
        """The memory, until it is closed."""
        assert self._map is not None, "it hasn't gone yet"
        return memoryview(self._map)

    def close(self) -> None:
        """Let go of it. Idempotent."""
        self._map = None  # unmapped with the last view: `mmap.close` wouldn't wait for them
        self._close_fd()


def mapped(fd: int, size: int) -> memoryview:
    """A peer's memory, to read; it keeps a descriptor of its own. Raises: RemoteProtocol for
    anything but a sealed memfd of just that size; PeerLost if this process can take no more.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        length = os.fstat(fd).st_size
    except OSError as error:
        raise RemoteProtocol(f"a region that is no memfd: {error.strerror}") from None
    if seals & _NO_RESIZE != _NO_RESIZE:
        raise RemoteProtocol("a region whose size isn't sealed")
    if length != size:
        raise RemoteProtocol(f"a region of {size} bytes in a memfd of {length}")
    try:
        return memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ))
    except (OSError, OverflowError, ValueError) as error:
        ours = isinstance(error, OSError) and error.errno in _SHORTAGE
        kind = PeerLost if ours else RemoteProtocol
        raise kind(f"a region that can't be mapped: {error}") from None


def found(pid: int, fd: int, name: bytes) -> int | None:
    """A descriptor, the caller's to close, of what process `pid` has open as `fd`; None if that
    isn't the memory of this name, or isn't for us to see: on another host, in another container,
    another user's.
    """
    theirs = f"/proc/{pid}/fd/{fd}"
    try:
        if not _is_named(theirs, name):
            return None
        ours = os.open(theirs, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    if _is_named(f"/proc/self/fd/{ours}", name):
        return ours
    os.close(ours)  # it was closed in between, and the number is another file's
    return None


def _is_named(path: str, name: bytes) -> bool:
    return os.readlink(path).startswith(f"/memfd:{name.hex()} ")
