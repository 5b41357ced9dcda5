"""A link over any wire: messages, offers, credit, keep-alive, and how it all ends.

Owns:    the tasks of one link and everything that waits on it.
Knows nothing of: any one transport.
Tasks:   one reads, one writes control frames, one watches for silence, one waits for reads of
         regions that the peer has closed; `run` holds them together.
         Reading never waits for writing: it leaves control frames to their writer, and those are
         answers, one for each frame of the peer's, or merged.
Ending:  the first reason counts. After it, everything that waits or comes later raises it; only
         after the peer's BYE can messages that came before still be received. A side that has
         called `close` gets LocalMisuse for whatever else it asks of the link.
Bugs:    an error of ours that no one foresaw ends this link, and `run` raises it.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from transports.api import Buffer, Head, Link, Peer, Placer, Read, Region, Span
from transports.buffers import as_misuse, copy, crc, cut, total
from transports.control import Control
from transports.device import body_views, on_device
from transports.errors import (
    BodyRefused,
    LocalMisuse,
    PeerClosed,
    PeerLost,
    RemoteProtocol,
    TransportError,
)
from transports.frame import Flag, Frame, Type, decode
from transports.pending import Landing, Offered
from transports.pieces import matched
from transports.session import Session, cost
from transports.sharing import Sharing
from transports.wire import Wire

#: Frames that a user waits for; all others are the link's own.
_OF_USERS = frozenset({Type.MESSAGE, Type.OFFER, Type.BODY})


class _Over(Exception):
    """The link has ended."""


class WireLink(Link):
    """See `Link`. `run` must run, in a task of the transport's, until the link has ended."""

    def __init__(self, wire: Wire, session: Session, peer: Peer) -> None:
        self.peer = peer
        self.capabilities = wire.capabilities
        self._wire = wire
        self._session = session
        self._config = session.config
        self._reason: TransportError | None = None
        self._over = asyncio.Event()
        self._receiving = self._closing = self._said_bye = False
        #: Not set while a send is under way.
        self._sent = asyncio.Event()
        self._sent.set()
        #: Whoever holds it writes whole frames.
        self._writing = asyncio.Lock()
        self._inbox: deque[tuple[Frame, bytearray]] = deque()
        self._arrived = asyncio.Event()
        self._credit_came = asyncio.Event()
        self._offered: Offered | None = None
        self._landing: Landing | None = None
        self._control = Control(session)
        self._sharing = Sharing(wire, session, self._control)

    # -- sending -------------------------------------------------------------------------------

    async def send(self, kind: int, meta: bytes = b"", body: Sequence[Buffer] = ()) -> None:
        """See `Link.send`."""
        views = body_views(body, self.capabilities, self._config)
        self._check_message(kind, meta, size := total(views))
        if not self._sent.is_set():
            raise LocalMisuse("another task is sending on this link")
        self._sent.clear()
        try:
            small = size <= self._session.eager_bytes and not on_device(views)
            await self._pay(len(meta), size if small else 0)
            if small:
                crc_ = self._crc(views)
                await self._write(
                    Type.MESSAGE, kind=kind, meta=meta, views=views, body_crc=crc_, paid=True
                )
            else:
                await self._send_large(kind, meta, size, views)
        finally:
            self._sent.set()

    def _check_message(self, kind: int, meta: bytes, size: int) -> None:
        if not isinstance(kind, int) or isinstance(kind, bool) or not 0 <= kind <= 255:
            raise LocalMisuse(f"kind {kind!r} is not within 0 .. 255")
        if not isinstance(meta, bytes) or len(meta) > self._session.max_meta_bytes:
            raise LocalMisuse(f"meta is bytes, at most {self._session.max_meta_bytes}")
        if size > self._session.max_body_bytes:
            raise LocalMisuse(f"a body of {size} bytes, at most {self._session.max_body_bytes}")
        self._check_open()

    async def _send_large(self, kind: int, meta: bytes, size: int, views: list[memoryview]) -> None:
        """Offer the body, wait until it is asked for, send it part by part."""
        offered = self._offered = Offered(self._session.offer())
        offer = offered.offer
        try:
            await self._write(
                Type.OFFER, kind=kind, argument=offer, meta=meta, announced=size, paid=True
            )
            try:
                accepted = await offered.result
            except asyncio.CancelledError:
                self._control.say(Type.WITHDRAW, offer)
                raise
        finally:
            self._offered = None
        if not accepted:
            self._check_alive()
            self._check_peer()
            raise BodyRefused(f"{self.peer.node_id} refused a body of {size} bytes")
        try:
            for part in cut(views, max(self._config.part_bytes, self._wire.least_part_bytes)):
                await self._write(Type.BODY, argument=offer, views=part, body_crc=self._crc(part))
        except asyncio.CancelledError:
            self._end(PeerLost("a send was cancelled in mid-body"))
            raise
        except ValueError as error:  # the peer waits for what can't be sent
            misuse = as_misuse(error)
            self._end(misuse)
            raise misuse from None

    def _crc(self, views: Sequence[memoryview]) -> int | None:
        return crc(views) if self._config.checksum_bodies and views else None

    async def _pay(self, meta_bytes: int, small_body_bytes: int) -> None:
        """Wait until the peer has room for a message."""
        while not self._session.pay(meta_bytes, small_body_bytes):
            self._credit_came.clear()
            await self._credit_came.wait()
            self._check_alive()
            self._check_peer()

    async def _write(
        self,
        type_: Type,
        *,
        kind: int = 0,
        argument: int = 0,
        meta: bytes = b"",
        views: Sequence[memoryview] = (),
        announced: int | None = None,
        body_crc: int | None = None,
        paid: bool = False,
    ) -> None:
        """Write one whole frame; cancelled in the middle of it, the link ends."""
        size = total(views)
        try:
            await self._writing.acquire()
        except asyncio.CancelledError:
            if paid:
                self._session.credit += cost(len(meta), size)
            raise
        try:
            self._check_alive()
            if self._said_bye:  # nothing may follow it
                if type_ in _OF_USERS:
                    raise self._closed_by_peer()
                return  # and nobody waits for what would
            self._said_bye = type_ is Type.BYE
            head = self._session.frame(
                type_,
                kind=kind,
                argument=argument,
                meta=meta,
                body_bytes=size if announced is None else announced,
                body_crc=body_crc,
            )
            await self._put(head, views)
        finally:
            self._writing.release()

    async def _put(self, head: bytes, views: Sequence[memoryview] = ()) -> None:
        try:
            await self._wire.send(head, views)
        except asyncio.CancelledError:
            self._break(PeerLost("a send was cancelled in mid-frame"))
            raise
        except TransportError as error:
            self._break(error)
            self._check_alive()
        except BaseException as bug:
            self._end(PeerLost(f"a bug on this side: {bug!r}"))
            raise

    # -- receiving -----------------------------------------------------------------------------

    async def recv(self, place: Placer | None = None) -> Head:
        """See `Link.recv`."""
        if self._receiving:
            raise LocalMisuse("another task is receiving on this link")
        self._receiving = True
        try:
            while True:
                frame, small = await self._next_message()
                head = Head(frame.kind, frame.meta, frame.body_bytes)
                if frame.type is Type.MESSAGE:
                    self._control.took(cost(len(frame.meta), frame.body_bytes))
                    if small:
                        copy([memoryview(small)], self._targets(place, head))
                    return head
                self._control.took(cost(len(frame.meta), 0))
                if await self._land(frame.argument, head, place):
                    return head
        finally:
            self._receiving = False

    async def _next_message(self) -> tuple[Frame, bytearray]:
        while True:
            self._check_mine()
            self._check_lost()
            if self._inbox:
                return self._inbox.popleft()
            self._check_peer()
            self._arrived.clear()
            await self._arrived.wait()

    def _targets(self, place: Placer | None, head: Head) -> list[memoryview]:
        """Where a body should land. Raises: BodyRefused, LocalMisuse."""
        if place is None:
            raise BodyRefused("nobody said where the body should land")
        views = body_views(place(head), self.capabilities, self._config, writable=True)
        if total(views) != head.body_bytes:
            raise LocalMisuse(f"{total(views)} bytes of buffers for {head.body_bytes} of body")
        return views

    async def _land(self, offer: int, head: Head, place: Placer | None) -> bool:
        """Ask for a body and wait for it. False if the peer has withdrawn it."""
        if offer not in self._session.undecided:
            return False
        try:
            views = self._targets(place, head)
            self._check_alive()  # `place` may have aborted the link
        except BaseException:
            self._session.refuse(offer)
            self._control.say(Type.REFUSE, offer)
            raise
        landing = self._landing = Landing(offer, views)
        self._session.accept(offer)
        self._control.say(Type.ACCEPT, offer)
        try:
            if await landing.result:
                return True
            self._check_lost()
            return False
        except asyncio.CancelledError:
            self._end(PeerLost("a receive was cancelled while a body was landing"))
            raise
        finally:
            self._landing = None

    # -- regions -------------------------------------------------------------------------------

    async def share(self, region: Region) -> int:
        """See `Link.share`."""
        self._check_open()
        async with self._writing:
            self._check_open()
            number, head = self._sharing.share(region)
            if head:
                await self._put(head)
        return number

    def read(self, region: int, spans: Sequence[Span], into: Sequence[Buffer]) -> Read:
        """See `Link.read`."""
        self._check_open()
        if not self.capabilities.one_sided_reads:
            raise self._wire.no_reads()
        remote = self._sharing.find(region)
        views = body_views(into, self.capabilities, self._config, writable=True)
        return remote.read(matched(spans, views, remote.size))

    # -- ending --------------------------------------------------------------------------------

    def abort(self) -> None:
        """See `Link.abort`."""
        self._end(PeerLost("aborted on this side"))

    async def close(self) -> None:
        """See `Link.close`."""
        first, self._closing = not self._closing, True
        if not first or self._reason is not None:
            await self._over.wait()
            return
        self._arrived.set()  # a receive that only waits has an end
        if self._landing is not None:
            self.abort()  # a body can't be given back
        try:
            async with asyncio.timeout(self._config.close_s):
                await self._sent.wait()
                await self._sharing.stop()
                await self._write(Type.BYE)
                await self._over.wait()
        except TimeoutError:
            self.abort()
        except TransportError:
            pass  # it has ended meanwhile
        except asyncio.CancelledError:
            self.abort()
            raise
        await self._over.wait()

    async def quiet(self) -> None:
        """See `Link.quiet`."""
        await self._over.wait()
        await self._wire.quiet()

    def _end(self, reason: TransportError) -> None:
        """End the link now; only the first reason counts."""
        if self._reason is not None:
            return
        # A copy without the frames, and so the buffers, that the error was raised in.
        self._reason = type(reason)(*reason.args)
        self._wire.abort()
        self._arrived.set()
        self._credit_came.set()
        self._control.due.set()
        for pending in (self._offered, self._landing):
            if pending is not None:
                pending.settle(False)

    def _break(self, error: TransportError) -> None:
        """End the link because of `error`; after the peer's BYE a lost wire is no loss."""
        said = self._session.peer_said_bye and isinstance(error, PeerLost)
        self._end(self._closed_by_peer() if said else error)

    def _closed_by_peer(self) -> PeerClosed:
        return PeerClosed(f"{self.peer.node_id} closed the link")

    def _check_alive(self) -> None:
        if self._reason is not None:
            # A new one each time: errors collect the places where they are raised.
            raise type(self._reason)(*self._reason.args) from None

    def _check_lost(self) -> None:
        """Like `_check_alive`, but after the peer's BYE messages may wait to be received."""
        if not isinstance(self._reason, PeerClosed):
            self._check_alive()

    def _check_mine(self) -> None:
        if self._closing:
            raise LocalMisuse("this side has closed the link")

    def _check_peer(self) -> None:
        if self._session.peer_said_bye:
            raise self._closed_by_peer()

    def _check_open(self) -> None:
        self._check_mine()
        self._check_alive()
        self._check_peer()

    # -- tasks ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Carry the link until it ends; `finish` must follow. Raises: what is a bug of ours."""
        try:
            async with asyncio.TaskGroup() as group:
                for work in (self._read, self._write_control, self._watch, self._sharing.let_go):
                    group.create_task(self._until_over(work))
        except* _Over:
            pass

    def finish(self) -> None:
        """`run` is over, or was cancelled before it began: whoever waits for the end may go on."""
        self._end(PeerLost("the transport was closed"))
        self._sharing.end()
        self._over.set()

    async def _until_over(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run one task; when it ends, in whatever way, the link does and so do the others."""
        try:
            await work()
        except TransportError as error:
            self._break(error)
        except Exception as bug:
            self._end(PeerLost(f"a bug on this side: {bug!r}"))
            raise
        raise _Over

    async def _read(self) -> None:
        while not self._session.peer_said_bye:
            frame = self._session.receive(decode(await self._wire.recv_head()))
            await self._take(frame)
        await self._leave()

    async def _take(self, frame: Frame) -> None:
        self._check_alive()  # it may have ended while this frame was on its way to us
        match frame.type:
            case Type.MESSAGE | Type.OFFER:
                size = frame.body_bytes if frame.type is Type.MESSAGE else 0
                small = bytearray(size)
                if size:
                    view = [memoryview(small)]
                    await self._wire.recv_body(view)
                    self._check_crc(frame, view)
                if not self._closing:
                    self._inbox.append((frame, small))
                    self._arrived.set()
            case Type.BODY:
                await self._take_body(frame)
            case Type.ACCEPT | Type.REFUSE:
                offered = self._offered
                if offered is not None and offered.offer == frame.argument:
                    offered.settle(frame.type is Type.ACCEPT)
            case Type.WITHDRAW:
                landing = self._landing
                if landing is not None and landing.offer == frame.argument:
                    landing.settle(False)
            case Type.CREDIT:
                self._credit_came.set()
            case Type.PING:
                self._control.pong()
            case Type.REGION:
                self._sharing.attach(frame)
            case Type.UNSHARE:
                self._sharing.unshare(frame.argument)
            case Type.UNSHARED:
                self._sharing.unshared(frame.argument)
            case Type.BYE:
                self._arrived.set()
                self._credit_came.set()
            case _:
                pass  # PONG: that it came is enough; others don't get through the session

    async def _take_body(self, frame: Frame) -> None:
        landing = self._landing
        assert landing is not None, "the session lets no other body through"
        try:
            part = landing.left.take(frame.body_bytes)
            await self._wire.recv_body(part)
            self._check_crc(frame, part)
        except ValueError as error:
            raise as_misuse(error) from None
        if self._session.landed(frame.body_bytes):
            landing.settle(True)

    def _check_crc(self, frame: Frame, views: Sequence[memoryview]) -> None:
        if Flag.BODY_CRC in frame.flags and crc(views) != frame.body_crc:
            raise RemoteProtocol("a body is corrupt")

    async def _leave(self) -> None:
        """The peer said bye: so do we, unless we began it, and the link is over."""
        if self._offered is not None:
            self._offered.settle(False)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.close_s):
                await self._sharing.stop()  # the peer lets go of its memory when it hears our bye
                await self._write(Type.BYE)
                await self._wire.close()
        raise self._closed_by_peer()

    async def _write_control(self) -> None:
        while True:
            await self._control.due.wait()
            self._control.due.clear()
            while (due := self._control.next()) is not None:
                await self._write(due[0], argument=due[1])

    async def _watch(self) -> None:
        """End the link after too long a silence.

        Each look counts once however late it comes: a loop that stood still must have had a turn
        for reading before it calls the peer silent. Who says nothing else pings, silence or not: on
        a slow network the pings of a peer that sends much wait behind its own bytes.
        """
        limit = self._config.lost_after_s / self._config.keepalive_s
        silent, seen, said = 0, self._wire.received_bytes, self._session.next_number_out
        while silent < limit:
            await asyncio.sleep(self._config.keepalive_s)
            silent = silent + 1 if self._wire.received_bytes == seen else 0
            seen = self._wire.received_bytes
            if (silent or self._session.next_number_out == said) and not self._closing:
                self._control.ping()
            said = self._session.next_number_out
        raise PeerLost(f"{self.peer.node_id} has been silent for {self._config.lost_after_s} s")
