"""Faults between a link and its wire, by a plan that is data: by script, or by seed.

Owns:   what goes wrong, when, and a list of what did.
Knows nothing of: any one transport; transports know nothing of it.
Units:  seconds, bytes. Frames are counted from 0 in each direction of a wire; the handshake's are
        the first two.

Legal faults (`LEGAL`) are what networks do: a link must keep all its promises under them. The
others break a wire's contract, which must end in an error at the side that sees it, and a closed
link.
"""

import asyncio
import contextlib
import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final, Literal, NoReturn, TypeAlias

from transports.api import Read, Span
from transports.base import WireTransport
from transports.buffers import copy, total
from transports.errors import PeerLost, RemoteProtocol, TransportError
from transports.frame import HEAD_BYTES, Type, decode
from transports.wire import RemoteRegion, Wire
from transports.wrapped import WrappedTransport, WrappedWire


class Kind(StrEnum):
    """What goes wrong."""

    DELAY = "delay"  #: a frame comes `seconds` later, and so does all behind it
    STALL = "stall"  #: the same, meant for long times; `math.inf` is for ever
    CUT_BEFORE = "cut before"  #: the wire breaks before the frame
    CUT_INSIDE = "cut inside"  #: while it is sent; received, after `offset` bytes of its body
    CUT_AFTER = "cut after"  #: after the frame
    FAIL_AFTER = "fail after"  #: after `offset` bytes in this direction
    DROP = "drop"
    DUPLICATE = "duplicate"
    REORDER = "reorder"  #: the frame changes places with the next
    CORRUPT = "corrupt"  #: byte `offset` of `part` is changed by `mask`, or of what is there
    READ_EARLY = "read completes before its data"
    READ_NEVER = "read never completes"  #: nor is it quiet, until the link has ended
    READ_AFTER_CANCEL = "read completes after it was cancelled"


LEGAL: Final = frozenset(
    {
        Kind.DELAY,
        Kind.STALL,
        Kind.CUT_BEFORE,
        Kind.CUT_INSIDE,
        Kind.CUT_AFTER,
        Kind.FAIL_AFTER,
        Kind.READ_NEVER,
        Kind.READ_AFTER_CANCEL,
    }
)
_OF_READS: Final = frozenset({Kind.READ_EARLY, Kind.READ_NEVER, Kind.READ_AFTER_CANCEL})
#: For `Fault.times`: from `at` to the end.
ALWAYS: Final = 1 << 62

Direction: TypeAlias = Literal["out", "in"]
Part: TypeAlias = Literal["head", "meta", "body"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong.

    >>> print(Fault(kind=Kind.DELAY, at=3, seconds=0.5))
    delay: at=3, seconds=0.5
    """

    kind: Kind
    direction: Direction = "out"
    #: The how manieth frame of type `of`, or of all; for faults of reads, the how manieth read.
    at: int = 0
    of: Type | None = None
    #: So many of them, one after the other.
    times: int = 1
    #: The how manieth wire of the transport; None: each.
    wire: int | None = None
    seconds: float = 0.0
    offset: int = 0
    part: Part = "head"
    mask: int = 0xFF

    def __str__(self) -> str:
        said = (
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if field.name != "kind" and getattr(self, field.name) != field.default
        )
        return f"{self.kind}: {', '.join(said)}".removesuffix(": ")


@dataclass(frozen=True, slots=True)
class Plan:
    """All that goes wrong on the wires of one transport."""

    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.faults)) or "no faults"


def random_plan(
    seed: int, rates: Mapping[Kind, float], *, frames: int = 200, first: int = 2, wires: int = 1
) -> Plan:
    """Each frame of each wire meets each kind at its rate; the same seed gives the same plan.

    >>> print(random_plan(1, {Kind.DROP: 0.01}, frames=100))
    drop: at=15, wire=0
    drop: at=93, wire=0
    drop: direction=in, at=83, wire=0
    """
    chance = random.Random(seed)
    directions: tuple[Direction, ...] = ("out", "in")
    found = [
        Fault(
            kind=kind,
            direction=direction,
            at=at,
            wire=wire,
            seconds=_seconds(kind, chance),
            offset=chance.randrange(1 << 16) if kind in _WITH_OFFSET else 0,
            part=chance.choice(_PARTS) if kind is Kind.CORRUPT else "head",
            mask=chance.randrange(1, 256) if kind is Kind.CORRUPT else 0xFF,
        )
        for wire in range(wires)
        for direction in directions
        for at in range(first, frames)
        for kind, rate in sorted(rates.items(), key=lambda item: item[0].name)
        if chance.random() < rate
    ]
    return Plan(tuple(found))


_PARTS: Final[tuple[Part, ...]] = ("head", "meta", "body")
_WITH_OFFSET: Final = frozenset({Kind.CORRUPT, Kind.CUT_INSIDE, Kind.FAIL_AFTER})


def _seconds(kind: Kind, chance: random.Random) -> float:
    if kind not in (Kind.DELAY, Kind.STALL):
        return 0.0
    return round(chance.expovariate(1000.0 if kind is Kind.DELAY else 10.0), 6)


class FaultyTransport(WrappedTransport):
    """A transport whose wires have the plan's faults."""

    def __init__(self, inner: WireTransport, plan: Plan) -> None:
        super().__init__(inner)
        self.plan = plan
        #: What has gone wrong so far, with the number of the wire.
        self.happened: list[tuple[int, Fault]] = []
        self._num_wires = 0

    def wrap(self, wire: Wire) -> Wire:
        """See `WrappedTransport.wrap`."""
        number, self._num_wires = self._num_wires, self._num_wires + 1
        faults = [fault for fault in self.plan.faults if fault.wire in (None, number)]
        return FaultyWire(wire, faults, lambda fault: self.happened.append((number, fault)))


class _Counts:
    """Frames and bytes of one direction, and the faults that meet them."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._faults = faults
        self._frames = 0
        self._of: dict[int, int] = {}
        self._bytes = 0

    def meet(self, head: bytes) -> list[Fault]:
        """Count a frame; the faults that it meets."""
        type_ = head[3] if len(head) > 3 else 0
        number, of = self._frames, self._of.get(type_, 0)
        before = self._bytes
        self._frames += 1
        self._of[type_] = of + 1
        self._bytes += len(head) + body_bytes(head)
        return [fault for fault in self._faults if self._meets(fault, type_, number, of, before)]

    def _meets(self, fault: Fault, type_: int, number: int, of: int, before: int) -> bool:
        if fault.kind is Kind.FAIL_AFTER:
            return before <= fault.offset < self._bytes
        if fault.of is not None and fault.of != type_:
            return False
        count = number if fault.of is None else of
        return fault.at <= count < fault.at + fault.times

    def rest(self, fault: Fault, head: bytes) -> int:
        """Bytes of the frame's body that come before a cut inside it."""
        if fault.kind is Kind.FAIL_AFTER:
            return max(0, fault.offset - (self._bytes - body_bytes(head)))
        return fault.offset


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
        self._out = _Counts([f for f in faults if f.direction == "out" and f.kind not in _OF_READS])
        self._in = _Counts([f for f in faults if f.direction == "in" and f.kind not in _OF_READS])
        self._reads = [fault for fault in faults if fault.kind in _OF_READS]
        self._num_reads = 0
        self._tell = tell
        self._aborted = asyncio.Event()
        self._held: list[tuple[bytes, bytes]] = []
        #: Frames that come next, whole; then the body of the one that came last, if it is here.
        self._ready: deque[tuple[bytes, bytes]] = deque()
        self._body: bytes | None = None
        #: What happens to the body that comes next: broken off after so many bytes, damaged.
        self._break_at: int | None = None
        self._damage: list[Fault] = []
        self._cut_next = False

    async def send(self, head: bytes, body: Sequence[memoryview] = ()) -> None:
        """See `Wire.send`."""
        times, met, after = 1, self._out.meet(head), False
        whole = head, body
        for fault in met:
            self._tell(fault)
            match fault.kind:
                case Kind.DELAY | Kind.STALL:
                    await self._pause(fault.seconds)
                case Kind.CUT_BEFORE:
                    self._cut()
                case Kind.CUT_INSIDE | Kind.FAIL_AFTER:
                    await self._send_half(*whole)
                case Kind.CORRUPT:
                    whole = _corrupt_frame(fault, *whole)
                case Kind.DROP:
                    times = 0
                case Kind.DUPLICATE:
                    times = 2
                case Kind.REORDER:
                    self._held.append((head, b"".join(body)))
                    return
                case _:
                    after = True
        for _ in range(times):
            await self.inner.send(*whole)
        while self._held:
            head, held = self._held.pop()
            await self.inner.send(head, [memoryview(held)] if held else [])
        if after:
            self._cut()

    async def _send_half(self, head: bytes, body: Sequence[memoryview]) -> NoReturn:
        """Begin to send, and break the wire."""
        sending = asyncio.ensure_future(self.inner.send(head, body))
        try:
            await asyncio.sleep(0)
        finally:
            self.abort()
            await asyncio.wait([sending])
            if not sending.cancelled():
                sending.exception()
        self._cut()

    async def recv_head(self) -> bytes:
        """See `Wire.recv_head`."""
        while True:
            if self._cut_next:
                self._cut()
            self._damage.clear()
            self._break_at = self._body = None
            if self._ready:
                head, self._body = self._ready.popleft()
                return head
            head = await self.inner.recv_head()
            if (met := await self._meet_in(head)) is not None:
                return met

    async def _meet_in(self, head: bytes) -> bytes | None:
        """The head as it now is; None if it isn't next any more."""
        for fault in self._in.meet(head):
            self._tell(fault)
            match fault.kind:
                case Kind.DELAY | Kind.STALL:
                    self.frozen_bytes = self.inner.received_bytes
                    await self._pause(fault.seconds)
                    self.frozen_bytes = None
                case Kind.CUT_BEFORE:
                    self._cut()
                case Kind.CUT_INSIDE | Kind.FAIL_AFTER:
                    if not body_bytes(head):
                        self._cut()
                    self._break_at = self._in.rest(fault, head)
                case Kind.CORRUPT if fault.part == "body" and body_bytes(head):
                    self._damage.append(fault)
                case Kind.CORRUPT:
                    head, _ = _corrupt_frame(fault, head, ())
                case Kind.DROP:
                    await self._rest(head)
                    return None
                case Kind.DUPLICATE:
                    self._ready.extend([(head, await self._rest(head))] * 2)
                    return None
                case Kind.REORDER:
                    first = head, await self._rest(head)
                    second = await self.inner.recv_head()
                    self._ready += [(second, await self._rest(second)), first]
                    return None
                case _:
                    self._cut_next = True
        return head

    async def _rest(self, head: bytes) -> bytes:
        body = bytearray(body_bytes(head))
        if body:
            await self.inner.recv_body([memoryview(body)])
        return bytes(body)

    async def recv_body(self, into: Sequence[memoryview]) -> None:
        """See `Wire.recv_body`."""
        if self._body is not None:
            if len(self._body) != total(into):
                raise RemoteProtocol("a body of another size than its head said")
            copy([memoryview(self._body)], into)
            return
        if self._break_at is not None:
            scratch = memoryview(bytearray(total(into)))
            await self.inner.recv_body([scratch])
            _copy_some(scratch[: self._break_at % len(scratch)], into)
            self._cut()
        await self.inner.recv_body(into)
        for fault in self._damage:
            _corrupt_views(fault, into)

    def abort(self) -> None:
        """See `Wire.abort`."""
        self._aborted.set()
        self.inner.abort()

    async def _pause(self, seconds: float) -> None:
        """Wait, or until the wire breaks."""
        try:
            async with asyncio.timeout(None if math.isinf(seconds) else seconds):
                await self._aborted.wait()
        except TimeoutError:
            return
        raise PeerLost("the wire broke")

    def _cut(self) -> NoReturn:
        self.abort()
        raise PeerLost("the wire was cut")

    def attach(self, description: bytes) -> RemoteRegion:
        """See `Wire.attach`."""
        return _FaultyRegion(self, self.inner.attach(description))

    def fault_of_read(self) -> Fault | None:
        """Count a read; the fault that it meets."""
        number, self._num_reads = self._num_reads, self._num_reads + 1
        for fault in self._reads:
            if fault.at <= number < fault.at + fault.times:
                self._tell(fault)
                return fault
        return None

    async def until_aborted(self) -> NoReturn:
        """Raises: PeerLost, when the wire has broken."""
        await self._aborted.wait()
        raise PeerLost("the wire broke")


class _FaultyRegion(RemoteRegion):
    def __init__(self, wire: FaultyWire, inner: RemoteRegion) -> None:
        self.size = inner.size
        self._wire = wire
        self._inner = inner

    def read(self, spans: Sequence[Span], into: Sequence[memoryview]) -> Read:
        read = self._inner.read(spans, into)
        fault = self._wire.fault_of_read()
        return read if fault is None else _FaultyRead(self._wire, read, fault.kind)

    def close(self) -> None:
        self._inner.close()


class _FaultyRead:
    """A read whose completion can't be believed; `quiet` can."""

    def __init__(self, wire: FaultyWire, inner: Read, kind: Kind) -> None:
        self._wire = wire
        self._inner = inner
        self._kind = kind
        self._cancelled = False

    async def wait(self) -> None:
        if self._kind is Kind.READ_EARLY:
            return
        if self._kind is Kind.READ_NEVER:
            await self._wire.until_aborted()
        await self._inner.wait()
        if self._cancelled:
            raise PeerLost("the read was cancelled")

    def cancel(self) -> None:
        self._cancelled = True
        if self._kind is not Kind.READ_AFTER_CANCEL:
            self._inner.cancel()

    async def quiet(self) -> None:
        if self._kind is Kind.READ_NEVER:
            with contextlib.suppress(TransportError):
                await self._wire.until_aborted()
        await self._inner.quiet()


def _corrupt_frame(
    fault: Fault, head: bytes, body: Sequence[memoryview]
) -> tuple[bytes, Sequence[memoryview]]:
    """A copy with one byte changed: where there is no such part, in the head."""
    if fault.part == "body" and total(body):
        copied = memoryview(bytearray().join(body))
        _corrupt_views(fault, [copied])
        return head, [copied]
    damaged = bytearray(head)
    meta = len(head) - HEAD_BYTES
    start, size = (HEAD_BYTES, meta) if fault.part == "meta" and meta else (0, HEAD_BYTES)
    damaged[start + fault.offset % size] ^= fault.mask
    return bytes(damaged), body


def _corrupt_views(fault: Fault, views: Sequence[memoryview]) -> None:
    offset = fault.offset % total(views)
    for view in views:
        if offset < len(view):
            view[offset] ^= fault.mask
            return
        offset -= len(view)


def _copy_some(source: memoryview, into: Sequence[memoryview]) -> None:
    """As much as there is."""
    for view in into:
        size = min(len(view), len(source))
        view[:size] = source[:size]
        source = source[size:]
