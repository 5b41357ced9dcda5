"""Links over TCP, with TLS if the session has contexts for it.

Knows nothing of: frames, sessions.
"""

import socket
import ssl

from transports.address import Address
from transports.api import Capabilities
from transports.base import MAX_WAITING, Bound, OnWire, WireTransport
from transports.errors import LocalMisuse, Unreachable
from transports.sockets import dialled, listening, reason_of, tune
from transports.stream import Door, StreamWire
from transports.tls import TlsWire
from transports.wire import Wire


class TcpTransport(WireTransport):
    """`tcp://host:port`: IPv4, IPv6 in brackets, or a name; port 0 in `listen` picks one.

    A name that stands for several addresses is listened at on the first, and all are dialled.
    """

    scheme = "tcp"
    capabilities = Capabilities()

    async def dial(self, address: Address) -> Wire:
        """See `WireTransport.dial`."""
        return await self._dressed(await dialled(address, self.config.handshake_s), address)

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
            raise Unreachable(f"{address}: {reason_of(error)}") from None
        try:
            await wire.shake_hands()
        except BaseException:
            wire.abort()
            raise
        return wire

    async def bind(self, address: Address, on_wire: OnWire) -> Bound:
        """See `WireTransport.bind`."""
        sock = await listening(address, MAX_WAITING)
        bound = Address("tcp", address.host, sock.getsockname()[1])
        return Bound(bound, Door(sock, self._came_in, on_wire).close)

    def _came_in(self, sock: socket.socket) -> StreamWire:
        tune(sock)
        host, port = sock.getpeername()[:2]
        address = str(Address("tcp", host, port))
        context = self.config.tls_server
        if context is None:
            return StreamWire(sock, address)
        return TlsWire(sock, address, context, server=True)
