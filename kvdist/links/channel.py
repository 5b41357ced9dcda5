"""One data link between two workers, from either end.

Owns:   the link, its sending and its receiving task, and what waits to be sent.
Knows nothing of: the halves, what messages mean.

Messages go before bodies, and bodies of several pulls take turns: what is short never waits for
more than one body.
"""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from kvdist.connector import codec
from kvdist.connector.effects import SendBytes, ServeKey
from kvdist.connector.messages import Greeting, PartId, TokenSpans, WorkerMessage
from kvdist.errors import ConfigError, RemoteProtocol
from kvdist.ids import NodeId
from kvdist.links import data_wire
from kvdist.links.data_wire import BodyHead, Check, Checked, Introduction
from kvdist.links.layout import Bytes, Layout
from kvdist.links.marks import Marks
from kvdist.links.memory import Memory
from kvdist.links.who import run_of
from transports.api import Buffer, Head, Link
from transports.errors import BodyRefused, PeerLost, TransportError, Unsupported

_log = structlog.get_logger(__name__)

#: Kinds with a body that is read as a whole.
_SHORT: Final = (data_wire.MESSAGE, data_wire.CHECK, data_wire.CHECKED)
#: A peer that doesn't introduce itself by then is none.
_INTRODUCTION_S: Final = 5.0


class Host(Protocol):
    """Who has the channel; none of these may raise."""

    def heard(self, channel: "Channel", message: WorkerMessage | Greeting) -> None:
        """The peer said something."""

    def place(self, channel: "Channel", part: PartId, spans: TokenSpans) -> Sequence[Buffer] | None:
        """Where a body should land; None: refuse it."""

    def landed(self, channel: "Channel", part: PartId, spans: TokenSpans) -> None:
        """It has, where `place` said."""

    def sent(self, key: ServeKey) -> None:
        """A body's sending has ended, however it went."""

    def lost(self, channel: "Channel") -> None:
        """The link has ended: nothing more comes, though bytes may still land (`landing`)."""


@dataclass(frozen=True, slots=True)
class Landing:
    """A body that is being received."""

    part: PartId
    spans: TokenSpans
    #: Set when no byte of it can land any more.
    quiet: asyncio.Event


class Channel:
    """See the module. `address`: the name by which the half knows it; `patience_s`: a send that
    takes longer ends the link.
    """

    def __init__(
        self,
        address: str,
        link: Link,
        memory: Memory,
        host: Host,
        patience_s: float,
        marks: Marks,
    ) -> None:
        self.address = address
        self.link = link
        self._memory, self._host, self._patience_s = memory, host, patience_s
        self._marks = marks
        self.peer: NodeId = link.peer.node_id
        self.run = run_of(link)
        #: Of the peer's memory, and the number of its region; None: it sends.
        self.layout: Layout
        self.region: int | None = None
        #: The body that lands now.
        self.landing: Landing | None = None
        #: Kinds and bodies; and messages of the protocol's, as such.
        self._messages: deque[tuple[int, bytes, WorkerMessage | Greeting | None]] = deque()
        self._bodies: deque[SendBytes] = deque()
        self._woken = asyncio.Event()
        self._is_over = False
        #: Questions that the peer hasn't answered.
        self._asked: dict[int, asyncio.Future[int]] = {}
        self._numbers = itertools.count()
        self._tasks: asyncio.TaskGroup
        #: The peer reads by itself; else we send.
        self.lends = False

    # -- for its host --------------------------------------------------------------------------

    def say(self, message: WorkerMessage | Greeting, version: int) -> None:
        """Send it, after all messages before it."""
        if not self._is_over:
            self._queue(data_wire.MESSAGE, codec.encode(message, version), message)

    def send(self, body: SendBytes) -> None:
        """Send bytes; `Host.sent` follows."""
        if self._is_over:
            self._host.sent(body.key)
        else:
            self._bodies.append(body)
            self._woken.set()

    def stop_sending(self, key: ServeKey) -> None:
        """What hasn't begun isn't sent; what has is short."""
        for body in [body for body in self._bodies if body.key == key]:
            self._bodies.remove(body)
            self._host.sent(key)

    async def checksum(self, spans: Sequence[Bytes]) -> int:
        """Of these bytes of the peer's memory. Raises: PeerLost."""
        if self._is_over:
            raise PeerLost("the link has ended")
        number = next(self._numbers)
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._asked[number] = asked
        self._queue(data_wire.CHECK, data_wire.write(Check(number, tuple(spans))))
        return await asked

    def cut(self) -> None:
        """End the link now."""
        self.link.abort()

    # -- its life ------------------------------------------------------------------------------

    async def introduce(self, *, lends: bool) -> None:
        """Each side says what its memory is like. Raises: TransportError, RemoteProtocol."""
        async with asyncio.timeout(_INTRODUCTION_S):
            layout, region = self._memory.layout, None
            if lends and self._memory.region is not None:
                with contextlib.suppress(Unsupported):  # not over these lanes
                    region = await self.link.share(self._memory.region)
            self.lends = region is not None
            ours = Introduction(
                layout.block_sizes, layout.heads, layout.page_bytes, layout.block_bytes, region
            )
            await self.link.send(data_wire.INTRODUCTION, data_wire.write(ours))
            head = await self.link.recv()
        if head.kind != data_wire.INTRODUCTION:
            raise RemoteProtocol("the first message of a data link is no introduction")
        theirs = data_wire.read_introduction(head.meta)
        self.layout, self.region = _layout_of(layout, theirs), theirs.region

    async def live(self) -> None:
        """Send and receive, until the link has ended and no byte can land any more."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._send_all())
                await self._receive_all()
                self._end()
                if self.landing is not None:
                    await self.link.quiet()
        finally:
            self._end()
            if self.landing is not None:
                self.landing.quiet.set()

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self.link.abort()
        self._woken.set()
        for body in self._bodies:
            self._host.sent(body.key)
        self._bodies.clear()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(PeerLost("the link has ended"))
        self._asked.clear()
        self._host.lost(self)

    def _queue(
        self, kind: int, body: bytes, message: WorkerMessage | Greeting | None = None
    ) -> None:
        self._messages.append((kind, body, message))
        self._woken.set()

    async def _answer(self, check: Check) -> None:
        try:
            value = await asyncio.to_thread(self._memory.pool.checksum, check.spans)
        except RemoteProtocol as error:
            _log.warning("data link ended", peer=self.peer, reason=str(error))
            self.link.abort()
            return
        self._queue(data_wire.CHECKED, data_wire.write(Checked(check.number, value)))

    async def _receive_all(self) -> None:
        try:
            while True:
                await self._receive()
        except (TransportError, RemoteProtocol) as error:
            _log.info("data link ended", peer=self.peer, reason=str(error))

    async def _receive(self) -> None:
        body = bytearray()

        def place(head: Head) -> Sequence[Buffer]:
            nonlocal body
            if head.kind == data_wire.BODY:
                return self._place(head)
            if head.kind not in _SHORT or head.body_bytes > codec.MAX_MESSAGE_BYTES:
                raise BodyRefused("neither a message nor a body of a part")
            body = bytearray(head.body_bytes)
            return [body]

        try:
            head = await self.link.recv(place)
        except BodyRefused:
            return
        if head.kind == data_wire.MESSAGE:
            message = _worker_message(bytes(body))
            self._marks.heard(message)
            self._host.heard(self, message)
        elif head.kind == data_wire.BODY and self.landing is not None:
            self._marks.passed("landed")
            landing, self.landing = self.landing, None
            landing.quiet.set()
            self._host.landed(self, landing.part, landing.spans)
        elif head.kind == data_wire.CHECK:
            self._tasks.create_task(self._answer(data_wire.read_check(bytes(body))))
        elif head.kind == data_wire.CHECKED:
            told = data_wire.read_checked(bytes(body))
            asked = self._asked.pop(told.number, None)
            if asked is not None and not asked.done():
                asked.set_result(told.checksum)
        else:
            raise RemoteProtocol(f"a message of kind {head.kind}, or a part without bytes")

    def _place(self, head: Head) -> Sequence[Buffer]:
        told = data_wire.read_body_head(head.meta)
        found = self._host.place(self, told.part, told.spans)
        if found is None:
            raise BodyRefused("nobody waits for it")
        self.landing = Landing(told.part, told.spans, asyncio.Event())
        self._marks.passed("landing")
        return found

    async def _send_all(self) -> None:
        while not self._is_over:
            await self._woken.wait()
            self._woken.clear()
            try:
                while self._messages or self._bodies:
                    async with asyncio.timeout(self._patience_s):
                        await self._send_next()
            except TransportError:
                return  # who receives sees it, too
            except TimeoutError:
                self.link.abort()  # T16: others wait behind it
                return

    async def _send_next(self) -> None:
        if self._messages:
            kind, body, message = self._messages.popleft()
            await self.link.send(kind, b"", [body])
            if message is not None:
                self._marks.said(message)
        else:
            await self._send_body(self._bodies.popleft())

    async def _send_body(self, body: SendBytes) -> None:
        spans = self._memory.layout.spans(
            body.spans, body.pieces, body.heads, self.layout.block_sizes
        )
        meta = data_wire.write(BodyHead.of(body.key[2], body.spans))
        self._marks.passed("sending")
        try:
            await self.link.send(data_wire.BODY, meta, self._memory.pool.buffers(spans))
            self._marks.passed("sent")
        except BodyRefused:
            pass  # the reader has given it up, and says so itself
        finally:
            self._host.sent(body.key)


def _layout_of(ours: Layout, theirs: Introduction) -> Layout:
    """Raises: RemoteProtocol, for what the fingerprints haven't said (`compat`)."""
    try:
        return ours.of_peer(theirs.heads, theirs.block_sizes, theirs.page_bytes, theirs.block_bytes)
    except ConfigError as error:
        raise RemoteProtocol(str(error)) from None


def _worker_message(body: bytes) -> WorkerMessage | Greeting:
    """Raises: RemoteProtocol."""
    message = codec.decode(body)
    if not isinstance(message, WorkerMessage | Greeting):
        raise RemoteProtocol(f"{type(message).__name__} isn't said between workers")
    return message
