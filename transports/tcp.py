"""Links over TCP, with TLS if the session has contexts for it.

Knows nothing of: frames, sessions.
Sockets: no delay (small frames go out at once); buffer sizes are the kernel's, which grows them as
         a path needs, while a size that is set stays and is capped. Keep-alive is the session's,
         which also notices a peer that is stopped.
"""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from typing import TypeAlias

from transports.address import Address
from transports.api import Capabilities
from transports.base import MAX_WAITING, Bound, OnWire, WireTransport
from transports.errors import LocalMisuse, TransportError, Unreachable
from transports.stream import Door, StreamWire
from transports.tls import TlsWire
from transports.wire import Wire

#: Family, and what `connect` and `bind` take.
_Place: TypeAlias = tuple[int, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]


class TcpTransport(WireTransport):
    """`tcp://host:port`: IPv4, IPv6 in brackets, or a name; port 0 in `listen` picks one.

    A name that stands for several addresses is listened at on the first, and all are dialled.
    """

    scheme = "tcp"
    capabilities = Capabilities()

    async def dial(self, address: Address) -> Wire:
        """See `WireTransport.dial`."""
        places = await _resolve(address)
        share_s = self.config.handshake_s / len(places)
        failure: OSError | None = None
        for place in places:
            try:
                sock = await _connect(place, share_s)
            except OSError as error:
                failure = error
                continue
            return await self._dressed(sock, address)
        raise Unreachable(f"{address}: {_reason(failure)}")

    async def _dressed(self, sock: socket.socket, address: Address) -> Wire:
        """A wire over the connected socket, through with TLS."""
        context = self.config.tls_client
        if context is None:
            return StreamWire(sock, str(address))
        try:
            wire = TlsWire(sock, str(address), context, server=False, host=address.host)
        except (OSError, ValueError) as error:
            sock.close()
            if isinstance(error, ssl.SSLError) or not isinstance(error, OSError):
                raise LocalMisuse(f"{address}: TLS: {error}") from None
            raise Unreachable(f"{address}: {_reason(error)}") from None
        try:
            await wire.shake_hands()
        except BaseException:
            wire.abort()
            raise
        return wire

    async def bind(self, address: Address, on_wire: OnWire) -> Bound:
        """See `WireTransport.bind`."""
        family, place = (await _resolve(address))[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(place)
            sock.listen(MAX_WAITING)
        except OSError as error:
            sock.close()
            nobody_s = error.errno in (errno.EADDRNOTAVAIL, errno.EACCES)
            kind: type[TransportError] = LocalMisuse if nobody_s else Unreachable
            raise kind(f"{address}: {_reason(error)}") from None
        bound = Address("tcp", address.host, sock.getsockname()[1])
        return Bound(bound, Door(sock, self._came_in, on_wire).close)

    def _came_in(self, sock: socket.socket) -> StreamWire:
        _tune(sock)
        host, port = sock.getpeername()[:2]
        address = str(Address("tcp", host, port))
        context = self.config.tls_server
        if context is None:
            return StreamWire(sock, address)
        return TlsWire(sock, address, context, server=True)


async def _resolve(address: Address) -> list[_Place]:
    """Where an address leads. Raises: Unreachable, LocalMisuse."""
    if not address.host:
        raise LocalMisuse(f"{address} lacks a host")
    loop = asyncio.get_running_loop()
    kind, numeric = socket.SOCK_STREAM, socket.AI_NUMERICHOST
    with contextlib.suppress(OSError, UnicodeError):  # a number needs no resolver, and no thread
        infos = socket.getaddrinfo(address.host, address.port, type=kind, flags=numeric)
        return [(info[0], info[4]) for info in infos]
    try:
        infos = await loop.getaddrinfo(address.host, address.port, type=kind)
    except UnicodeError as error:
        raise LocalMisuse(f"{address}: {error}") from None
    except OSError as error:
        raise Unreachable(f"{address}: {_reason(error)}") from None
    return [(info[0], info[4]) for info in infos]


async def _connect(place: _Place, limit_s: float) -> socket.socket:
    """A connected socket. Raises: OSError."""
    family, where = place
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        async with asyncio.timeout(limit_s):
            await asyncio.get_running_loop().sock_connect(sock, where)
        if sock.getsockname() == sock.getpeername():
            # Where nobody listens on a port of the ephemeral range, a socket can meet itself.
            raise OSError("connected to itself")
        _tune(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _reason(error: OSError | None) -> str:
    if error is None:
        return "no address"
    return os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
