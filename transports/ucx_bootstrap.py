"""The socket beside a UCX link: handshake, exchange of worker addresses, then a lifeline.

Owns:   one TCP connection of small frames: length 4 (little-endian) | payload.
Knows nothing of: what the frames say, UCX.
Why:    UCX believes any worker address it is given, so strangers mustn't name one: the handshake
        passes here first. And a process that dies, however it dies, ends this connection at once,
        where UCX over shared memory needs a second, or never notices (killed and not reaped).
Promise: what strangers can make us keep is `MAX_WAITING` frames of `MAX_FRAME_BYTES`.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Final

from transports.errors import PeerLost, RemoteProtocol, TransportError
from transports.frame import HEAD_BYTES, MAX_META_BYTES

MAX_FRAME_BYTES: Final = HEAD_BYTES + MAX_META_BYTES
MAX_WAITING: Final = 4

#: The last frame: all before it has been flushed, on the socket and beside it.
_GOODBYE: Final = b"bye"

_LENGTH = struct.Struct("<I")


class Bootstrap(asyncio.Protocol):
    """One side. `on_open` gets it once it is connected, `on_end` is called when it has ended."""

    def __init__(self, on_open: Callable[["Bootstrap"], None]) -> None:
        self._on_open = on_open
        self.on_end: Callable[[], None] = lambda: None
        self.peer_address = ""
        self.received_bytes = 0
        self.error: TransportError | None = None
        #: The peer has flushed everything; that it hangs up then is no loss.
        self.said_goodbye = False
        self._transport: asyncio.Transport | None = None
        self._unread = bytearray()
        self._frames: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        host, port, *_ = transport.get_extra_info("peername") or ("?", 0)
        self.peer_address = f"ucx://[{host}]:{port}" if ":" in host else f"ucx://{host}:{port}"
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self.received_bytes += len(data)
        self._unread += data
        while len(self._unread) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._unread)
            if length > MAX_FRAME_BYTES or len(self._frames) >= MAX_WAITING:
                self._fail(RemoteProtocol("too much said before anybody asked"))
                return
            if len(self._unread) < _LENGTH.size + length:
                break
            self._take(bytes(self._unread[_LENGTH.size : _LENGTH.size + length]))
            del self._unread[: _LENGTH.size + length]

    def _take(self, frame: bytes) -> None:
        if frame == _GOODBYE:
            self.said_goodbye = True
        else:
            self._frames.append(frame)
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        reason = f": {exc}" if exc is not None else ""
        self.error = self.error or PeerLost(f"the peer's process hung up{reason}")
        self._changed.set()
        self._closed.set()
        self.on_end()

    def _fail(self, error: TransportError) -> None:
        self.error = self.error or error
        self.abort()

    def send(self, payload: bytes) -> None:
        """Send a frame. Raises: PeerLost, RemoteProtocol."""
        self.check()
        assert self._transport is not None
        self._transport.write(_LENGTH.pack(len(payload)) + payload)

    async def receive(self) -> bytes:
        """The next frame. Raises: PeerLost, RemoteProtocol."""
        while not self._frames:
            self.check()
            self._changed.clear()
            await self._changed.wait()
        return self._frames.popleft()

    def say_goodbye(self) -> None:
        """Nothing more will be sent, and all that was sent has been flushed. Raises: PeerLost."""
        self.send(_GOODBYE)

    async def goodbye(self) -> None:
        """Return when the peer has said goodbye. Raises: PeerLost if it never will."""
        while not self.said_goodbye:
            self.check()
            self._changed.clear()
            await self._changed.wait()

    def check(self) -> None:
        """Raises: what it ended with."""
        if self.error is not None:
            raise type(self.error)(*self.error.args)

    def abort(self) -> None:
        """End it now. Idempotent."""
        self.error = self.error or PeerLost("the link has ended on this side")
        self._changed.set()
        if self._transport is not None:
            self._transport.abort()

    async def closed(self) -> None:
        """Return when its socket is closed."""
        await self._closed.wait()
