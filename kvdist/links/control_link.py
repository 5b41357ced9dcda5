"""One control link between two node processes, from either end.

Owns:   the link, its sending and its receiving task, and what waits to be sent.
Knows nothing of: what messages mean, who dialled.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from kvdist.connector import codec
from kvdist.connector.messages import Greeting, NodeMessage
from kvdist.errors import RemoteProtocol
from kvdist.links import control_wire
from kvdist.links.marks import Marks
from kvdist.links.who import run_of
from transports.api import Buffer, Head, Link
from transports.errors import BodyRefused, TransportError

_log = structlog.get_logger(__name__)

#: A peer that doesn't say welcome by then is none.
_WELCOME_S: Final = 5.0
#: More messages than that wait only for a peer that doesn't read: the oldest go.
_MOST: Final = 10_000


class ControlLink:
    """See the module."""

    def __init__(self, link: Link, marks: Marks) -> None:
        """Raises: RemoteProtocol."""
        self.peer, self.run = link.peer.node_id, run_of(link)
        #: Where the peer's workers are, by rank.
        self.workers: tuple[str, ...] = ()
        self._link, self._marks = link, marks
        self._messages: deque[tuple[NodeMessage | Greeting, bytes]] = deque(maxlen=_MOST)
        self._woken = asyncio.Event()

    def say(self, message: NodeMessage | Greeting, version: int) -> None:
        """Send it, after all before it."""
        self._messages.append((message, codec.encode(message, version)))
        self._woken.set()

    def cut(self) -> None:
        """End the link now."""
        self._link.abort()

    async def introduce(self, ours: bytes) -> None:
        """Each side says where its workers are. Raises: TransportError, RemoteProtocol."""
        async with asyncio.timeout(_WELCOME_S):
            await self._link.send(control_wire.WELCOME, ours)
            self.workers = control_wire.read_welcome(await self._link.recv())

    async def live(self, heard: Callable[[NodeMessage | Greeting], None]) -> None:
        """Send and receive, until the link has ended. `heard` may raise RemoteProtocol."""
        try:
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(self._send_all())
                try:
                    while True:
                        heard(await self._receive())
                except (TransportError, RemoteProtocol) as error:
                    _log.info("control link ended", peer=self.peer, reason=str(error))
                self._link.abort()
                sending.cancel()
        finally:
            self._link.abort()

    async def _send_all(self) -> None:
        try:
            while True:
                await self._woken.wait()
                self._woken.clear()
                while self._messages:
                    message, body = self._messages.popleft()
                    await self._link.send(control_wire.MESSAGE, b"", [body])
                    self._marks.said(message)
        except TransportError:
            pass  # who receives sees it, too

    async def _receive(self) -> NodeMessage | Greeting:
        body = bytearray()

        def place(head: Head) -> Sequence[Buffer]:
            nonlocal body
            if head.body_bytes > codec.MAX_MESSAGE_BYTES:
                raise BodyRefused("too long for a message")
            body = bytearray(head.body_bytes)
            return [body]

        head = await self._link.recv(place)
        if head.kind != control_wire.MESSAGE:
            raise RemoteProtocol(f"something of kind {head.kind}, where messages come")
        return control_wire.read_message(bytes(body))
