"""A connection until the head of its first request is there, which has to be soon.

Owns:   the clock of such a connection; how long its client may leave unread what is sent.
Knows nothing of: HTTP, but for how a head ends.

aiohttp closes connections that are idle between requests, but waits for the first one forever.
"""

import asyncio
import socket
from typing import Final

#: How a head ends, also where lines end as they shouldn't: what is wrong is aiohttp's to say.
_ENDS: Final = (b"\r\n\r\n", b"\n\n")


class Arrival(asyncio.Protocol):
    """Stands before `handler`, and leaves when a head is there; closes when `patience_s` are over.

    Whether a head comes slowly or not at all is the same.
    """

    def __init__(
        self, handler: asyncio.Protocol, patience_s: float, unread_s: float = 60.0
    ) -> None:
        self._handler = handler
        self._patience_s, self._unread_s = patience_s, unread_s
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The clock runs."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        _drop_unread(transport.get_extra_info("socket"), self._unread_s)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._patience_s, transport.abort)
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """The handler has it; with the end of a head it is alone."""
        self._handler.data_received(data)
        seen = self._tail + data
        if any(end in seen for end in _ENDS):
            self._timer.cancel()
            self._transport.set_protocol(self._handler)
        self._tail = seen[-3:]

    def eof_received(self) -> bool | None:
        """As the handler wants it."""
        return self._handler.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The handler hears it."""
        self._timer.cancel()
        self._handler.connection_lost(exc)

    def pause_writing(self) -> None:
        """The handler hears it."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """The handler hears it."""
        self._handler.resume_writing()


def _drop_unread(link: socket.socket | None, seconds: float) -> None:
    """Who reads nothing for so long, though there is something, loses the connection.

    Linux knows how; elsewhere the system's own patience counts, which is longer.
    """
    if link is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))
