"""A stream wire inside TLS, by the socket's own TLS object: no copy but the cipher's.

Owns:   the TLS handshake of one connection.
Knows nothing of: certificates; the contexts in `SessionConfig` say who is believed.
Source: RFC 8446; Python's `ssl` on sockets that don't block.
"""

import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final

from transports.errors import PeerLost, Refused, RemoteProtocol, TransportError
from transports.stream import StreamWire

#: Pieces up to here are joined, so that not each becomes a record of its own.
_JOIN_BYTES: Final = 16 << 10
#: Fatal: no version of the protocol in common.
_ALERT: Final = b"\x15\x03\x03\x00\x02\x02\x46"


class TlsWire(StreamWire):
    """The accepting side shakes hands when it first reads: that is within its greeting's time."""

    _sock: ssl.SSLSocket

    def __init__(
        self,
        sock: socket.socket,
        peer_address: str,
        context: ssl.SSLContext,
        *,
        server: bool,
        host: str | None = None,
    ) -> None:
        tls = context.wrap_socket(
            sock, server_side=server, server_hostname=host, do_handshake_on_connect=False
        )
        super().__init__(tls, peer_address)
        self._shaken = False

    async def shake_hands(self) -> None:
        """The peer is who the context wants it to be.

        Raises: Refused, RemoteProtocol, PeerLost.
        """
        while not self._shaken:
            self._check()
            try:
                self._sock.do_handshake()
                self._shaken = True
            except ssl.SSLWantReadError:
                await self._until(self._loop.add_reader, self._loop.remove_reader)
            except ssl.SSLWantWriteError:
                await self._until(self._loop.add_writer, self._loop.remove_writer)
            except OSError as error:
                self._error = self._failure(error)
                if self._sock.server_side and isinstance(self._error, RemoteProtocol):
                    with contextlib.suppress(OSError):  # OpenSSL says nothing to who speaks no TLS
                        socket.socket.send(self._sock, _ALERT)
                raise self._error from None
        self._drained = False

    async def _until(self, add: Callable[..., Any], remove: Callable[[int], Any]) -> None:
        """Wait for the selector."""
        ready = self._readable = self._loop.create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        add(self._fd, wake)
        try:
            await ready
        finally:
            self._readable = None
            if self._fd >= 0:
                remove(self._fd)

    async def recv_head(self) -> bytes:
        """See `Wire.recv_head`."""
        if not self._shaken:
            await self.shake_hands()
        return await super().recv_head()

    def _read(self, buffers: Sequence[memoryview], size: int) -> int:
        num_bytes = self._sock.recv_into(buffers[0])  # one record at most; more may wait inside
        self._drained = False
        return num_bytes

    def _has_more(self) -> bool:
        return self._fd >= 0 and self._sock.pending() > 0

    def _write(self, buffers: Sequence[bytes | memoryview]) -> int:
        joined: list[bytes | memoryview] = []
        size = 0
        for buffer in buffers:
            if joined and size + len(buffer) > _JOIN_BYTES:
                break
            joined.append(buffer)
            size += len(buffer)
        # After "would block" the same bytes come again, cut in the same way: TLS insists on that.
        return self._sock.send(joined[0] if len(joined) == 1 else b"".join(joined))

    def _blocks(self, error: OSError) -> bool:
        return isinstance(error, (ssl.SSLWantReadError, ssl.SSLWantWriteError))

    def _failure(self, error: OSError) -> TransportError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return Refused(f"{self.peer_address}: certificate: {error.verify_message}")
        if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return PeerLost(f"{self.peer_address}: the peer has gone")
        if isinstance(error, ssl.SSLError):
            return RemoteProtocol(f"{self.peer_address}: TLS: {error.reason or error}")
        if not self._shaken:
            return PeerLost(f"{self.peer_address}: TLS handshake: {error.strerror or error}")
        return super()._failure(error)

    def _shut(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._sock.unwrap()  # our farewell goes out; the peer's we don't wait for
        super()._shut()
