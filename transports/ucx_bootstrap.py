"""The socket beside a UCX link: handshake, exchange of worker addresses, then a lifeline.

Owns:   one connected socket, and its place in the loop's selector.
Knows nothing of: what the frames say, UCX.
Frames: length 4 (little-endian) | payload.
Why:    UCX believes any worker address it is given, so strangers mustn't name one: the handshake
        passes here first. And a process that dies, however it dies, ends this connection at once,
        where UCX over shared memory needs a second, or never notices (killed and not reaped).
Promise: what a peer can make us keep is `MAX_WAITING` frames of `MAX_FRAME_BYTES`.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Final

from transports.errors import PeerLost, RemoteProtocol, TransportError
from transports.frame import HEAD_BYTES, MAX_META_BYTES
from transports.sockets import reason_of

MAX_FRAME_BYTES: Final = HEAD_BYTES + MAX_META_BYTES
MAX_WAITING: Final = 4

#: The last frame: all before it has been flushed, on the socket and beside it.
_GOODBYE: Final = b"bye"
_LENGTH = struct.Struct("<I")


class Bootstrap:
    """One side. `on_end` is called, from the loop, when the peer has ended it."""

    def __init__(self, sock: socket.socket) -> None:
        self.on_end: Callable[[], None] | None = None
        self.error: TransportError | None = None
        #: The peer has flushed everything; that it hangs up then is no loss.
        self.said_goodbye = False
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._unread = bytearray()
        self._frames: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._loop.add_reader(sock.fileno(), self._on_readable)

    def send(self, payload: bytes) -> None:
        """Send a frame. Raises: PeerLost, RemoteProtocol."""
        self.check()
        frame = _LENGTH.pack(len(payload)) + payload
        try:
            sent = self._sock.send(frame)
        except OSError as error:
            raise PeerLost(reason_of(error)) from None
        # All that is ever sent here fits into a socket's buffer, unless the peer reads nothing.
        if sent < len(frame):
            raise PeerLost("the peer doesn't read")

    async def receive(self) -> bytes:
        """The next frame. Raises: PeerLost, RemoteProtocol."""
        while not self._frames:
            await self._until_changed()
        return self._frames.popleft()

    def say_goodbye(self) -> None:
        """Nothing more will be sent, and all that was sent has been flushed. Raises: PeerLost."""
        self.send(_GOODBYE)

    async def goodbye(self) -> None:
        """Return when the peer has said goodbye. Raises: PeerLost if it never will."""
        while not self.said_goodbye:
            await self._until_changed()

    async def _until_changed(self) -> None:
        self.check()
        self._changed.clear()
        await self._changed.wait()

    def check(self) -> None:
        """Raises: what it ended with."""
        if self.error is not None:
            raise type(self.error)(*self.error.args)

    def _on_readable(self) -> None:
        try:
            data = self._sock.recv(MAX_FRAME_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(PeerLost(f"the peer's process is gone: {reason_of(error)}"))
            return
        if not data:
            self._end(PeerLost("the peer's process hung up"))
            return
        self._unread += data
        while len(self._unread) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._unread)
            if length > MAX_FRAME_BYTES or len(self._frames) >= MAX_WAITING:
                self._end(RemoteProtocol("no UCX peer, or one that says more than was asked"))
                return
            if len(self._unread) < _LENGTH.size + length:
                return
            self._take(bytes(self._unread[_LENGTH.size : _LENGTH.size + length]))
            del self._unread[: _LENGTH.size + length]

    def _take(self, frame: bytes) -> None:
        if frame == _GOODBYE:
            self.said_goodbye = True
        else:
            self._frames.append(frame)
        self._changed.set()

    def _end(self, error: TransportError) -> None:
        on_end = self.on_end
        self.close(error)
        if on_end is not None:
            on_end()

    def close(self, reason: TransportError) -> None:
        """End it now; whoever waits hears `reason`. Idempotent."""
        if self.error is not None:
            return
        self.error = reason
        self.on_end = None
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        self._changed.set()
