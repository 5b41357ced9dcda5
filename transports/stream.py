"""A wire over a stream socket: heads are read ahead, bodies go straight to where they belong.

Owns:   one connected socket, and its place in the loop's selector.
Knows nothing of: what kind of stream it is; `tcp`, `tls` and `shm` say what differs.
Units:  bytes.
Cost:   one system call for a small frame with its body; for a large one, one each `CALL_BYTES`.
Turns:  a call goes on only for `TURN_BYTES` before the loop has its turn.
Promise: after `abort`, or a call that failed or was cancelled, no byte lands in any buffer.
"""

import asyncio
import contextlib
import errno
import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final

from transports.api import Capabilities
from transports.buffers import Cursor, as_misuse, total
from transports.errors import PeerLost, RemoteProtocol, TransportError
from transports.frame import HEAD_BYTES, MAGIC, MAX_META_BYTES, meta_bytes
from transports.wire import Wire

#: Room for heads that are read ahead, and for small bodies behind them.
AHEAD_BYTES: Final = 72 << 10
#: Bytes of one system call: enough to make it cheap, few enough that its buffers are not many.
CALL_BYTES: Final = 1 << 20
#: Bytes between two turns of the loop: about half a millisecond.
TURN_BYTES: Final = 2 << 20
#: What a frame counts against that, whatever its size.
FRAME_COST: Final = 16 << 10
#: Buffers that one system call takes (IOV_MAX).
MAX_BUFFERS: Final = 1024
#: How long a listener waits when this process has run out of descriptors or memory.
SHORTAGE_S: Final = 0.5

#: First bytes of what TLS says first: an alert, a handshake.
_TLS_RECORDS: Final = b"\x15\x16"
#: SO_LINGER on, for no time: closing sends a reset and drops what is unsent.
_NO_LINGER: Final = struct.pack("ii", 1, 0)
_SHORTAGE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

assert AHEAD_BYTES >= HEAD_BYTES + MAX_META_BYTES


class StreamWire(Wire):
    """Over a socket that is connected and doesn't block."""

    capabilities = Capabilities()

    def __init__(self, sock: socket.socket, peer_address: str) -> None:
        self.peer_address = peer_address
        self._sock = sock
        self._fd = sock.fileno()
        self._loop = asyncio.get_running_loop()
        self._error: TransportError | None = None
        self._ended = False

        self._ahead = memoryview(bytearray(AHEAD_BYTES))
        self._start = self._stop = 0
        self._body: Cursor | None = None
        self._readable: asyncio.Future[None] | None = None
        self._watched_in = False
        #: The last read found less than it asked for: don't try before the selector says so.
        self._drained = True
        self._turn_in = TURN_BYTES

        self._out: Cursor | None = None
        self._writable: asyncio.Future[None] | None = None
        self._watched_out = False
        self._turn_out = TURN_BYTES

    # -- what kinds of stream differ in ----------------------------------------------------------

    def _read(self, buffers: Sequence[memoryview], size: int) -> int:
        """Read into the buffers, which have `size` bytes; 0 at the end. Raises: OSError."""
        num_bytes = (
            self._sock.recv_into(buffers[0])
            if len(buffers) == 1
            else self._sock.recvmsg_into(buffers)[0]
        )
        self._drained = num_bytes < size
        return num_bytes

    def _write(self, buffers: Sequence[bytes | memoryview]) -> int:
        """Write what fits. Raises: OSError."""
        if len(buffers) == 1:
            return self._sock.send(buffers[0])
        return self._sock.sendmsg(buffers)

    def _has_more(self) -> bool:
        """Bytes have been read that the selector knows nothing of."""
        return False

    def _blocks(self, error: OSError) -> bool:
        """It only means: not now."""
        return isinstance(error, (BlockingIOError, InterruptedError))

    def _failure(self, error: OSError) -> TransportError:
        """What a failed system call means."""
        reason = os.strerror(error.errno) if error.errno else str(error)
        return PeerLost(f"{self.peer_address}: {reason}")

    def _shut(self) -> None:
        """End the sending direction, behind all that was sent. Raises: OSError."""
        self._sock.shutdown(socket.SHUT_WR)

    # -- receiving -------------------------------------------------------------------------------

    async def recv_head(self) -> bytes:
        """See `Wire.recv_head`."""
        self._turn_in -= FRAME_COST
        if self._turn_in <= 0:
            await self._next_turn()
        while (size := self._head_bytes()) > self._stop - self._start:
            await self._receive()
        head = bytes(self._ahead[self._start : self._start + size])
        self._start += size
        return head

    def _head_bytes(self) -> int:
        """How long the next head is, as far as that is known by now. Raises: RemoteProtocol."""
        head = self._ahead[self._start : min(self._stop, self._start + HEAD_BYTES)]
        if len(head) == HEAD_BYTES:
            return HEAD_BYTES + meta_bytes(head)
        if not MAGIC.startswith(bytes(head[: len(MAGIC)])):
            tls = ": the peer speaks TLS" if head[0] in _TLS_RECORDS else ""
            raise RemoteProtocol(f"no frame of this protocol{tls}")
        return HEAD_BYTES

    async def recv_body(self, into: Sequence[memoryview]) -> None:
        """See `Wire.recv_body`."""
        body = Cursor(into)
        while body.left and self._start < self._stop:
            (view,) = body.peek(self._stop - self._start, 1)
            view[:] = self._ahead[self._start : self._start + len(view)]
            self._start += len(view)
            body.advance(len(view))
        if body.left:
            await self._receive(body)

    async def _receive(self, body: Cursor | None = None) -> None:
        """Return when the body is complete; without one, when more has been read ahead."""
        self._check()
        if self._start == self._stop:
            self._start = self._stop = 0
        elif len(self._ahead) - self._start < HEAD_BYTES + MAX_META_BYTES:
            rest = bytes(self._ahead[self._start : self._stop])
            self._ahead[: len(rest)] = rest
            self._start, self._stop = 0, len(rest)
        if self._turn_in <= 0:
            await self._next_turn()
        self._body = body
        try:
            if not self._drained and self._pump_in():
                return
            self._turn_in = TURN_BYTES
            self._readable = self._loop.create_future()
            if not self._watched_in:
                self._loop.add_reader(self._fd, self._on_readable)
                self._watched_in = True
            if self._has_more():
                self._loop.call_soon(self._on_readable)
            await self._readable
        finally:
            self._body = self._readable = None

    async def _next_turn(self) -> None:
        await asyncio.sleep(0)
        self._turn_in = TURN_BYTES
        self._check()

    def _on_readable(self) -> None:
        if self._readable is None or self._readable.done():
            self._unwatch_in()  # nobody wants it now: it waits in the kernel
            return
        self._turn_in = TURN_BYTES
        try:
            if self._pump_in():
                self._readable.set_result(None)
            elif self._has_more():
                self._loop.call_soon(self._on_readable)
        except (TransportError, ValueError) as error:
            self._error = as_misuse(error) if isinstance(error, ValueError) else error
            _fail(self._readable, self._error)

    def _pump_in(self) -> bool:
        """Read what is there, within this turn's share; True if that is what was waited for."""
        body = self._body
        while True:
            if body is None:
                buffers = [self._ahead[self._stop :]]
                size = len(self._ahead) - self._stop
            else:
                buffers = body.peek(CALL_BYTES, MAX_BUFFERS - 1)
                size = total(buffers)
                if size == body.left:  # the next head comes along with the end of a body
                    buffers.append(self._ahead[:HEAD_BYTES])
                    size += HEAD_BYTES
            num_bytes = self._read_some(buffers, size)
            if body is None:
                self._stop += num_bytes
            else:
                landed = min(num_bytes, body.left)
                body.advance(landed)
                self._stop = num_bytes - landed
            if num_bytes and (body is None or not body.left):
                return True
            if self._drained or self._turn_in <= 0:
                return False

    def _read_some(self, buffers: Sequence[memoryview], size: int) -> int:
        """What one read brings; 0 if nothing is there yet."""
        try:
            num_bytes = self._read(buffers, size)
        except OSError as error:
            if self._blocks(error):
                self._drained = True
                return 0
            raise self._failure(error) from None
        if not num_bytes:
            raise PeerLost(f"{self.peer_address}: the peer has gone")
        self.received_bytes += num_bytes
        self._turn_in -= num_bytes
        return num_bytes

    # -- sending ---------------------------------------------------------------------------------

    async def send(self, head: bytes, body: Sequence[memoryview] = ()) -> None:
        """See `Wire.send`."""
        self._check()
        self._turn_out -= FRAME_COST
        if self._turn_out <= 0:
            await asyncio.sleep(0)
            self._turn_out = TURN_BYTES
            self._check()
        out = Cursor([memoryview(head), *body])
        if self._pump_out(out):
            return
        self._turn_out = TURN_BYTES
        self._out = out
        self._writable = self._loop.create_future()
        try:
            if not self._watched_out:
                self._loop.add_writer(self._fd, self._on_writable)
                self._watched_out = True
            await self._writable
        finally:
            self._out = self._writable = None

    async def send_part(self, head: bytes, body: Sequence[memoryview], num_bytes: int) -> None:
        """See `Wire.send_part`: exactly so many bytes."""
        await self.send(b"", Cursor([memoryview(head), *body]).peek(num_bytes))
        with contextlib.suppress(OSError):
            self._shut()

    def _on_writable(self) -> None:
        if self._writable is None or self._writable.done() or self._out is None:
            self._unwatch_out()
            return
        self._turn_out = TURN_BYTES
        try:
            if self._pump_out(self._out):
                self._writable.set_result(None)
        except (TransportError, ValueError) as error:
            self._error = as_misuse(error) if isinstance(error, ValueError) else error
            _fail(self._writable, self._error)

    def _pump_out(self, out: Cursor) -> bool:
        """Write what fits, within this turn's share; True if that was all."""
        while out.left:
            if self._turn_out <= 0:
                return False
            try:
                num_bytes = self._write(out.peek(CALL_BYTES, MAX_BUFFERS))
            except OSError as error:
                if self._blocks(error):
                    return False
                raise self._failure(error) from None
            out.advance(num_bytes)
            self._turn_out -= num_bytes
        return True

    # -- ending ----------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._error is not None:
            raise type(self._error)(*self._error.args)

    def _unwatch_in(self) -> None:
        if self._watched_in:
            self._watched_in = False
            self._loop.remove_reader(self._fd)

    def _unwatch_out(self) -> None:
        if self._watched_out:
            self._watched_out = False
            self._loop.remove_writer(self._fd)

    def abort(self) -> None:
        """See `Wire.abort`. Once `close` is through this takes nothing from the peer."""
        if self._fd < 0:
            return
        if not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
        self._watched_in = self._watched_out = False
        self._fd = -1
        if not self._ended and self._sock.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        with contextlib.suppress(OSError):
            self._sock.close()
        self._error = self._error or PeerLost("aborted on this side")
        for waiter in (self._readable, self._writable):
            if waiter is not None and not waiter.done():
                _fail(waiter, type(self._error)(*self._error.args))

    async def close(self) -> None:
        """See `Wire.close`. It returns when the peer has ended its direction too, so that what was
        sent has arrived and closing the socket can't take it back.
        """
        with contextlib.suppress(TransportError):
            self._check()
            try:
                self._shut()
            except OSError:
                return
            while True:
                self._start = self._stop = 0
                try:
                    await self._receive()
                except PeerLost:
                    self._ended = True
                    return

    async def quiet(self) -> None:
        """Only calls of ours write into buffers, and `abort` has ended them."""


def _fail(waiter: asyncio.Future[None], error: TransportError) -> None:
    waiter.set_exception(error)
    waiter.exception()  # whoever waits gets it; if nobody does any more, nothing is logged


class Door:
    """A listening socket: each connection becomes a wire."""

    def __init__(
        self,
        sock: socket.socket,
        make_wire: Callable[[socket.socket], Wire],
        on_wire: Callable[[Wire], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._make_wire = make_wire
        self._on_wire = on_wire
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._loop.add_reader(sock.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        for _ in range(32):  # then the loop has a turn
            try:
                sock, _ = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _SHORTAGE:
                    self._loop.remove_reader(self._sock.fileno())
                    self._pause = self._loop.call_later(SHORTAGE_S, self._resume)
                    return
                continue  # that one has gone already
            sock.setblocking(False)
            try:
                wire = self._make_wire(sock)
            except OSError:
                sock.close()
                continue
            self._on_wire(wire)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._sock.fileno(), self._on_readable)

    def close(self) -> None:
        """Accept no more. Idempotent."""
        if self._sock.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        elif not self._loop.is_closed():
            self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
