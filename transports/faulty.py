"""Wires on which a plan's faults happen.

Owns:   making them happen, and a list of what did.
Knows nothing of: any one transport; transports know nothing of it.
Units:  seconds, bytes.
Exact:  a frame is cut after so and so many bytes of its head, meta and body: received, to the byte;
        sent, to the byte over `tcp` and `shm`, while over `memory` a head comes whole or not at
        all, and over `ucx` so does each piece of a body (`ucx_memory.PIECE_BYTES`). The peer gets
        them, and then the end.
"""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from transports.api import Read
from transports.base import WireTransport
from transports.buffers import Cursor, copy, total
from transports.errors import PeerLost, ReadCancelled, RemoteProtocol, TransportError
from transports.faults import AROUND, Direction, Fault, Kind, Plan, RandomPlan
from transports.frame import HEAD_BYTES, Type, decode
from transports.pieces import Pieces
from transports.wire import RemoteRegion, Wire
from transports.wrapped import WrappedTransport, WrappedWire

#: After the first part of a frame: how long the peer has to come to its end and hang up.
_PATIENCE_S: Final = 1.0
#: How long after it was cancelled a body lands.
_LATE_S: Final = 0.01


class FaultyTransport(WrappedTransport):
    """A transport whose wires have the plan's faults."""

    def __init__(self, inner: WireTransport, plan: Plan | RandomPlan) -> None:
        super().__init__(inner)
        self.plan = plan
        #: What has gone wrong so far, with the number of the wire.
        self.happened: list[tuple[int, Fault]] = []
        self._num_wires = 0

    def wrap(self, wire: Wire) -> Wire:
        """See `WrappedTransport.wrap`."""
        number, self._num_wires = self._num_wires, self._num_wires + 1
        faults = self.plan.of_wire(number)
        return FaultyWire(wire, faults, lambda fault: self.happened.append((number, fault)))


@dataclass(frozen=True, slots=True)
class _Frame:
    head: bytes
    #: None: it is still in the wire.
    body: Sequence[memoryview] | None = None
    #: Where it breaks off.
    cut_at: int | None = None
    #: How its completion lies.
    lie: Kind | None = None


class _Lane:
    """One direction: counts, the faults that meet frames, and what is held back."""

    def __init__(self, faults: Sequence[Fault], direction: Direction) -> None:
        self._faults = [fault for fault in faults if fault.direction == direction]
        self._num = 0
        self._num_of: dict[int, int] = {}
        self._num_bytes = 0
        #: Frames that let the next go first.
        self.held: list[_Frame] = []
        self.cut_after = False

    def meet(self, head: bytes = b"") -> list[Fault]:
        """Count a frame, or a read; the faults that it meets."""
        type_ = head[3] if len(head) > 3 else 0
        number, number_of, before = self._num, self._num_of.get(type_, 0), self._num_bytes
        self._num += 1
        self._num_of[type_] = number_of + 1
        self._num_bytes += len(head) + body_bytes(head)

        def meets(fault: Fault) -> bool:
            if fault.kind is Kind.FAIL_AFTER:
                return before <= fault.offset < self._num_bytes
            if fault.of not in (None, type_):
                return False
            count = number if fault.of is None else number_of
            return fault.at <= count < fault.at + fault.times

        return [fault for fault in self._faults if meets(fault)]

    def cut_at(self, fault: Fault, head: bytes) -> int:
        """Bytes of the frame that was met last that come before the cut."""
        size = len(head) + body_bytes(head)
        if fault.kind is Kind.FAIL_AFTER:
            return fault.offset - (self._num_bytes - size)
        return fault.offset % size


def body_bytes(head: bytes) -> int:
    """Bytes that follow this head; 0 if it is damaged."""
    try:
        frame = decode(head)
    except RemoteProtocol:
        return 0
    return frame.body_bytes if frame.type in (Type.MESSAGE, Type.BODY) else 0


class FaultyWire(WrappedWire):
    """A wire with faults; `tell` hears of each as it happens."""

    def __init__(self, inner: Wire, faults: Sequence[Fault], tell: Callable[[Fault], None]) -> None:
        super().__init__(inner)
        self._out, self._in = _Lane(faults, "out"), _Lane(faults, "in")
        self._reads = _Lane(faults, "read")
        self._tell = tell
        self._aborted = asyncio.Event()
        #: Frames whose sending has returned already.
        self._early: list[_Frame] = []
        #: Frames that come next; then the one that came last.
        self._ready: deque[_Frame] = deque()
        self._frame = _Frame(b"")
        #: Bodies that are still to land.
        self._late: list[tuple[Sequence[memoryview], Sequence[memoryview]]] = []

    async def _pass(self, lane: _Lane, frame: _Frame, met: Sequence[Fault]) -> list[_Frame]:
        """What comes of a frame, when it is its time. Raises: PeerLost if it is cut off."""
        frames = [frame]
        for fault in met:
            self._tell(fault)
            match fault.kind:
                case Kind.DELAY | Kind.STALL:
                    await self._pause(fault.seconds, unheard=lane is self._in)
                case Kind.CUT_BEFORE:
                    self._cut()
                case Kind.CUT_AFTER:
                    lane.cut_after = True
                case Kind.CUT_INSIDE | Kind.FAIL_AFTER:
                    at = lane.cut_at(fault, frame.head)
                    frames = [replace(each, cut_at=at) for each in frames]
                case Kind.DROP:
                    frames = []
                case Kind.DUPLICATE:
                    frames *= 2
                case Kind.CORRUPT:
                    frames = [_corrupt(fault, each) for each in frames]
                case Kind.REORDER:
                    lane.held += [replace(each, body=_copied(each.body)) for each in frames]
                    return []
                case lie:
                    frames = [replace(each, lie=lie) for each in frames]
        frames, lane.held = frames + lane.held, []
        return frames

    # -- sending -------------------------------------------------------------------------------

    async def send(self, head: bytes, body: Sequence[memoryview] = ()) -> None:
        """See `Wire.send`."""
        frames = await self._pass(self._out, _Frame(head, body), self._out.meet(head))
        await self._send_early()
        for frame in frames:
            await self._send(frame)
        if self._out.cut_after:
            self._cut()

    async def _send(self, frame: _Frame) -> None:
        head, body = frame.head, frame.body or ()
        if frame.cut_at is not None:
            await self.inner.send_part(head, body, frame.cut_at)
            await self._pause(_PATIENCE_S)
            self._cut()
        if frame.lie is Kind.EARLY:
            self._early.append(frame)
            return
        sending = self.inner.send(head, body)
        await (_to_the_end(sending) if frame.lie is Kind.AFTER_CANCEL else sending)
        if frame.lie is Kind.NEVER:
            await self._pause(math.inf)

    async def _send_early(self) -> None:
        early, self._early = self._early, []
        for frame in early:
            await self.inner.send(frame.head, frame.body or ())

    async def close(self) -> None:
        """See `Wire.close`."""
        with contextlib.suppress(TransportError):
            await self._send_early()
        await super().close()

    # -- receiving -----------------------------------------------------------------------------

    async def recv_head(self) -> bytes:
        """See `Wire.recv_head`."""
        self._land_late()
        while not self._ready:
            if self._in.cut_after:
                self._cut()
            head = await self.inner.recv_head()
            met = self._in.meet(head)
            taken_out = self._in.held or any(fault.kind not in AROUND for fault in met)
            body = await self._take_out(head) if taken_out else None
            self._ready += await self._pass(self._in, _Frame(head, body), met)
        frame = self._frame = self._ready.popleft()
        if frame.cut_at is not None and frame.cut_at < len(frame.head):
            self._cut()
        if frame.lie is Kind.NEVER and not total(frame.body or ()):
            await self._pause(math.inf, unheard=True)
        return frame.head

    async def _take_out(self, head: bytes) -> Sequence[memoryview]:
        body = memoryview(bytearray(body_bytes(head)))
        if not body:
            return ()
        await self.inner.recv_body([body])
        return [body]

    async def recv_body(self, into: Sequence[memoryview]) -> None:
        """See `Wire.recv_body`."""
        frame = self._frame
        if frame.body is None:
            await self.inner.recv_body(into)
            return
        if total(frame.body) != total(into):
            raise RemoteProtocol("a body of another size than its head said")
        if frame.cut_at is not None:
            landed = frame.cut_at - len(frame.head)
            copy(Cursor(frame.body).peek(landed), Cursor(into).peek(landed))
            self._cut()
        self._late.append((frame.body, into))
        if frame.lie is Kind.EARLY:
            return
        if frame.lie is Kind.AFTER_CANCEL:
            try:
                await self._pause(math.inf)
            finally:
                asyncio.get_running_loop().call_later(_LATE_S, self._land_late)
        self._land_late()
        if frame.lie is Kind.NEVER:
            await self._pause(math.inf, unheard=True)

    def _land_late(self) -> None:
        late, self._late = self._late, []
        for body, into in late:
            copy(body, into)

    # -- the end -------------------------------------------------------------------------------

    def abort(self) -> None:
        """See `Wire.abort`."""
        self._aborted.set()
        self.inner.abort()

    async def quiet(self) -> None:
        """See `Wire.quiet`."""
        if self._late:
            await asyncio.sleep(_LATE_S)
            self._land_late()
        await super().quiet()

    async def _pause(self, seconds: float, *, unheard: bool = False) -> None:
        """Wait; the peer seems silent if it is `unheard`. Raises: PeerLost, if the wire breaks."""
        if unheard:
            self.frozen_bytes = self.inner.received_bytes
        try:
            async with asyncio.timeout(None if math.isinf(seconds) else seconds):
                await self.until_aborted()
        except TimeoutError:
            self.frozen_bytes = None

    async def until_aborted(self) -> NoReturn:
        """Raises: PeerLost, when the wire has broken."""
        await self._aborted.wait()
        raise PeerLost("the wire broke")

    def _cut(self) -> NoReturn:
        self.abort()
        raise PeerLost("the wire was cut")

    # -- regions -------------------------------------------------------------------------------

    def attach(self, description: bytes, size: int) -> RemoteRegion:
        """See `Wire.attach`."""
        return _FaultyRegion(self, self.inner.attach(description, size))

    def lie_of_read(self) -> Kind | None:
        """Count a read; how its completion lies."""
        met = self._reads.meet()
        for fault in met:
            self._tell(fault)
        return met[0].kind if met else None


class _FaultyRegion(RemoteRegion):
    def __init__(self, wire: FaultyWire, inner: RemoteRegion) -> None:
        self.size = inner.size
        self._wire = wire
        self._inner = inner

    def read(self, pieces: Pieces) -> Read:
        read = self._inner.read(pieces)
        lie = self._wire.lie_of_read()
        return read if lie is None else _FaultyRead(self._wire, read, lie)

    def close(self, reason: TransportError) -> None:
        self._inner.close(reason)

    async def quiet(self) -> None:
        await self._inner.quiet()


class _FaultyRead:
    """A read whose completion can't be believed; `quiet` can."""

    def __init__(self, wire: FaultyWire, inner: Read, lie: Kind) -> None:
        self._wire = wire
        self._inner = inner
        self._lie = lie
        self._cancelled = False

    async def wait(self) -> None:
        if self._lie is Kind.EARLY:
            return
        if self._lie is Kind.NEVER:
            await self._wire.until_aborted()
        await self._inner.wait()
        if self._cancelled:
            raise ReadCancelled("the read was cancelled")

    def cancel(self) -> None:
        self._cancelled = True
        if self._lie is not Kind.AFTER_CANCEL:
            self._inner.cancel()

    async def quiet(self) -> None:
        if self._lie is Kind.NEVER:
            with contextlib.suppress(TransportError):
                await self._wire.until_aborted()
        await self._inner.quiet()


def _copied(body: Sequence[memoryview] | None) -> Sequence[memoryview]:
    return [memoryview(b"".join(body or ()))]


def _corrupt(fault: Fault, frame: _Frame) -> _Frame:
    """A copy with one byte changed: where there is no such part, in the head."""
    body, meta = b"".join(frame.body or ()), len(frame.head) - HEAD_BYTES
    if fault.part == "body" and body:
        return replace(frame, body=[memoryview(_changed(body, fault, 0, len(body)))])
    start, size = (HEAD_BYTES, meta) if fault.part == "meta" and meta else (0, HEAD_BYTES)
    return replace(frame, head=bytes(_changed(frame.head, fault, start, size)))


def _changed(data: bytes, fault: Fault, start: int, size: int) -> bytearray:
    changed = bytearray(data)
    changed[start + fault.offset % size] ^= fault.mask
    return changed


async def _to_the_end(work: Awaitable[None]) -> None:
    """Await it; who is cancelled meanwhile still waits for its end, and only then hears of it."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    task.exception()
    raise cancelled
