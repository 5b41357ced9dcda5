"""Faults happen where the plan says, and only there; plans are data."""

import asyncio
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.transports import certificates
from tests.transports.linked import an_address, config
from transports.address import parse
from transports.base import WireTransport
from transports.errors import LocalMisuse, PeerLost
from transports.faults import (
    LEGAL,
    LIES,
    Direction,
    Fault,
    Kind,
    Part,
    Plan,
    random_plan,
)
from transports.faulty import FaultyTransport, FaultyWire
from transports.frame import HEAD_BYTES, Frame, Type
from transports.memory import MemoryTransport, MemoryWire, _Pipe
from transports.registry import TRANSPORTS, make_transport
from transports.wire import Wire

#: What moves whole over ucx.
PIECE_BYTES = 2 << 20

HEADS = [
    Frame(Type.MESSAGE, number, meta=b"meta %d" % number, body_bytes=number * 10).encode()
    for number in range(6)
]
BODIES = [bytes([number]) * number * 10 for number in range(6)]
PLAIN = list(zip(HEADS, BODIES, strict=True))
DIRECTIONS: tuple[Direction, ...] = ("out", "in")


async def _pass(faults: Sequence[Fault]) -> tuple[list[tuple[bytes, bytes]], list[Fault]]:
    """What arrives when all of PLAIN is sent from one wire to another; where it broke, an end."""
    there, back = _Pipe(), _Pipe()
    happened: list[Fault] = []
    outward, inward = ([f for f in faults if f.direction == way] for way in DIRECTIONS)
    a = FaultyWire(MemoryWire(there, back, "a", {}), outward, happened.append)
    b = FaultyWire(MemoryWire(back, there, "b", {}), inward, happened.append)
    arrived: list[tuple[bytes, bytes]] = []

    async def send() -> None:
        for head, body in PLAIN:
            await a.send(head, [memoryview(body)] if body else [])
        await a.close()

    async def recv() -> None:
        while True:
            head = await b.recv_head()
            size = head[24]  # by hand: a damaged head can't be decoded
            body = bytearray(size)
            if size:
                await b.recv_body([memoryview(body)[:3], memoryview(body)[3:]])
            arrived.append((head, bytes(body)))

    async with asyncio.timeout(5):
        receiving = asyncio.ensure_future(recv())
        receiving.add_done_callback(lambda _: a.abort())  # as the link that reads from it would
        results = await asyncio.gather(send(), receiving, return_exceptions=True)
    assert all(result is None or isinstance(result, PeerLost) for result in results), results
    await a.quiet()
    return arrived, happened


def _passed(*faults: Fault) -> list[tuple[bytes, bytes]]:
    arrived, happened = asyncio.run(_pass(faults))
    assert set(happened) == set(faults)
    return arrived


def test_without_faults() -> None:
    assert _passed() == PLAIN


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_frames_lost_doubled_and_out_of_order(direction: Direction) -> None:
    for of, at in ((None, 3), (Type.MESSAGE, 3)):
        where: dict[str, Any] = {"direction": direction, "at": at, "of": of}
        assert _passed(Fault(kind=Kind.DROP, **where)) == PLAIN[:3] + PLAIN[4:]
        assert _passed(Fault(kind=Kind.DUPLICATE, **where)) == PLAIN[:4] + PLAIN[3:]
        swapped = [*PLAIN[:3], PLAIN[4], PLAIN[3], PLAIN[5]]
        assert _passed(Fault(kind=Kind.REORDER, **where)) == swapped
    assert _passed(Fault(kind=Kind.DROP, direction=direction, at=1, times=3)) == [
        PLAIN[0],
        *PLAIN[4:],
    ]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_cuts(direction: Direction) -> None:
    where: dict[str, Any] = {"direction": direction, "at": 3}
    assert _passed(Fault(kind=Kind.CUT_BEFORE, **where)) == PLAIN[:3]
    for offset in range(0, len(HEADS[3]) + 30, 7):
        assert _passed(Fault(kind=Kind.CUT_INSIDE, offset=offset, **where)) == PLAIN[:3]
    arrived = _passed(Fault(kind=Kind.CUT_AFTER, **where))
    assert arrived == PLAIN[: len(arrived)]
    assert len(arrived) == 4 or direction == "out"
    sizes = [len(head) + len(body) for head, body in PLAIN]
    offset = sum(sizes[:4]) + len(HEADS[4]) + 3
    assert _passed(Fault(kind=Kind.FAIL_AFTER, direction=direction, offset=offset)) == PLAIN[:4]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("part", ["head", "meta", "body"])
def test_one_byte_is_changed(direction: Direction, part: Part) -> None:
    fault = Fault(kind=Kind.CORRUPT, direction=direction, at=3, part=part, offset=2, mask=0x41)
    arrived = _passed(fault)
    assert arrived[:3] + arrived[4:] == PLAIN[:3] + PLAIN[4:]
    flat, want = (bytearray(b"".join(frame)) for frame in (arrived[3], PLAIN[3]))
    want[{"head": 0, "meta": HEAD_BYTES, "body": len(HEADS[3])}[part] + 2] ^= 0x41
    assert flat == want


def _wires(fault: Fault) -> tuple[FaultyWire, FaultyWire]:
    """The first sends with the fault, or the second receives with it."""
    there, back = _Pipe(), _Pipe()
    out, into = ([fault], []) if fault.direction == "out" else ([], [fault])
    a = FaultyWire(MemoryWire(there, back, "a", {}), out, lambda _: None)
    return a, FaultyWire(MemoryWire(back, there, "b", {}), into, lambda _: None)


async def _take(wire: Wire, size: int) -> bytearray:
    """A frame's body."""
    await wire.recv_head()
    body = bytearray(size)
    await wire.recv_body([memoryview(body)])
    return body


def test_a_send_that_returns_early() -> None:
    async def test() -> None:
        for ends in (False, True):
            a, b = _wires(Fault(kind=Kind.EARLY))
            body = bytearray(b"early")
            await a.send(HEADS[1], [memoryview(body)])
            body[:] = b"later"
            receiving = asyncio.create_task(_take(b, 5))
            await (a.close() if ends else a.send(HEADS[0]))
            assert await receiving == b"later"

    asyncio.run(test())


def test_what_is_overtaken_is_what_was_sent() -> None:
    async def test() -> None:
        a, b = _wires(Fault(kind=Kind.REORDER))
        body = bytearray(BODIES[1])
        await a.send(HEADS[1], [memoryview(body)])
        body[:] = bytes(10)
        sending = asyncio.create_task(a.send(HEADS[0]))
        assert await b.recv_head() == HEADS[0]
        assert await _take(b, 10) == BODIES[1]
        await sending

    asyncio.run(test())


def test_a_body_that_lands_late() -> None:
    async def test() -> None:
        a, b = _wires(Fault(kind=Kind.EARLY, direction="in"))
        sending = asyncio.create_task(a.send(HEADS[1], [memoryview(BODIES[1])]))
        body = await _take(b, 10)
        await sending
        assert body == bytes(10)
        await a.send(HEADS[0])
        assert await b.recv_head() == HEADS[0]
        assert body == BODIES[1]

    asyncio.run(test())


def test_completions_that_never_come() -> None:
    async def test() -> None:
        for direction in DIRECTIONS:
            a, b = _wires(Fault(kind=Kind.NEVER, direction=direction))
            body = bytearray(10)
            sending = asyncio.create_task(a.send(HEADS[1], [memoryview(BODIES[1])]))
            await b.recv_head()
            receiving = asyncio.create_task(b.recv_body([memoryview(body)]))
            await asyncio.sleep(0.01)
            assert body == BODIES[1]
            assert (sending.done(), receiving.done()) == (direction == "in", direction == "out")
            a.abort()
            b.abort()
            results = await asyncio.gather(sending, receiving, return_exceptions=True)
            assert [type(result) for result in results].count(PeerLost) == 1

    asyncio.run(test())


def test_a_cancelled_send_whose_bytes_arrive() -> None:
    async def test() -> None:
        a, b = _wires(Fault(kind=Kind.AFTER_CANCEL))
        sending = asyncio.create_task(a.send(HEADS[1], [memoryview(BODIES[1])]))
        for _ in range(2):
            await asyncio.sleep(0)
            sending.cancel()
        assert await _take(b, 10) == BODIES[1]
        with pytest.raises(asyncio.CancelledError):
            await sending

    asyncio.run(test())


def test_a_cancelled_body_that_lands_until_it_is_quiet() -> None:
    async def test() -> None:
        a, b = _wires(Fault(kind=Kind.AFTER_CANCEL, direction="in"))
        sending = asyncio.create_task(a.send(HEADS[1], [memoryview(BODIES[1])]))
        body = bytearray(10)
        await b.recv_head()
        receiving = asyncio.create_task(b.recv_body([memoryview(body)]))
        await sending
        await asyncio.sleep(0)
        receiving.cancel()
        await asyncio.wait([receiving])
        b.abort()
        assert body == bytes(10)
        await b.quiet()
        assert body == BODIES[1]

    asyncio.run(test())


async def _cut_off(scheme: str, folder: Path, fault: Fault, body: bytes) -> tuple[int, bytearray]:
    """Two frames over a real wire, the second with `body`, sent with a fault: how many bytes came
    in, as the receiving wire counts them, and what the buffer for `body` holds.
    """
    address = parse(an_address(scheme.removesuffix(" tls"), folder))
    tls: tuple[dict[str, Any], ...] = ({}, {})
    if scheme.endswith("tls"):
        own = certificates.make(folder, "own")
        tls = {"tls_client": certificates.client(own)}, {"tls_server": certificates.server(own)}
    near = make_transport(str(address), config("a", **tls[0]))
    far = make_transport(str(address), config("b", **tls[1]))
    assert isinstance(near, WireTransport)
    assert isinstance(far, WireTransport)
    left = FaultyTransport(near, Plan((fault,)))
    arrivals: asyncio.Queue[Wire] = asyncio.Queue()
    async with left.open(), far.open(), asyncio.timeout(10):
        bound = await far.bind(address, arrivals.put_nowait)
        dialling = asyncio.create_task(left.dial(bound.address))

        async def send() -> None:
            a = await dialling
            await a.trusted()
            for number, sent in enumerate((b"first", body)):
                head = Frame(Type.MESSAGE, number, meta=b"meta", body_bytes=len(sent)).encode()
                await a.send(head, [memoryview(sent)])

        sending = asyncio.create_task(send())
        b = await arrivals.get()
        bound.close()
        await b.trusted()
        before = b.received_bytes
        target = bytearray(len(body))

        async def receive() -> None:
            for into in (bytearray(5), target):
                await b.recv_head()
                await b.recv_body([memoryview(into)[:3], memoryview(into)[3:]])

        with pytest.raises(PeerLost):
            await receive()
        for wire in (dialling.result(), b):
            wire.abort()
            await wire.quiet()
        with pytest.raises(PeerLost):
            await sending
        return b.received_bytes - before, target


FIRST_BYTES = HEAD_BYTES + len(b"meta") + len(b"first")
SECOND_HEAD_BYTES = HEAD_BYTES + len(b"meta")


def _holds(target: bytearray, body: bytes, landed: int) -> bool:
    return target == body[:landed] + bytes(len(body) - landed)


@pytest.mark.parametrize("scheme", ["tcp", "tcp tls", "shm", "memory"])
def test_what_is_sent_is_cut_at_the_byte(scheme: str, tmp_path: Path) -> None:
    body = random.Random(1).randbytes(3000)
    for cut in (0, 1, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 2, 48, 49, 51, 52, 1000, 3047):
        inside = Fault(kind=Kind.CUT_INSIDE, at=1, offset=cut)
        after = Fault(kind=Kind.FAIL_AFTER, offset=FIRST_BYTES + cut)
        for fault in (inside, after):
            came, target = asyncio.run(_cut_off(scheme, tmp_path, fault, body))
            if scheme == "memory" and cut < SECOND_HEAD_BYTES:
                assert came == FIRST_BYTES
            else:
                assert came == FIRST_BYTES + cut
            assert _holds(target, body, max(0, cut - SECOND_HEAD_BYTES))


def test_a_large_body_is_cut_at_the_byte_or_the_piece(tmp_path: Path) -> None:
    pytest.importorskip("ucxx", reason="ucxx isn't installed (the extra is `ucx`)")
    body = random.Random(1).randbytes(5_000_000)
    for scheme in TRANSPORTS:
        for landed in (0, 7, PIECE_BYTES + 7, len(body) - 1):
            fault = Fault(kind=Kind.CUT_INSIDE, at=1, offset=SECOND_HEAD_BYTES + landed)
            came, target = asyncio.run(_cut_off(scheme, tmp_path, fault, body))
            if scheme == "ucx":
                landed -= landed % PIECE_BYTES
            assert came == FIRST_BYTES + SECOND_HEAD_BYTES + landed, scheme
            assert _holds(target, body, landed), scheme


def test_late_is_late() -> None:
    async def test() -> None:
        for kind in (Kind.DELAY, Kind.STALL):
            for direction in DIRECTIONS:
                began = asyncio.get_running_loop().time()
                arrived, _ = await _pass([Fault(kind=kind, direction=direction, seconds=0.05)])
                assert arrived == PLAIN
                assert asyncio.get_running_loop().time() - began > 0.04

    asyncio.run(test())


def test_a_stall_for_ever_ends_with_the_wire() -> None:
    async def test() -> None:
        wire = FaultyWire(
            MemoryWire(_Pipe(), _Pipe(), "a", {}),
            [Fault(kind=Kind.STALL, seconds=math.inf)],
            lambda fault: None,
        )
        sending = asyncio.create_task(wire.send(HEADS[0]))
        await asyncio.sleep(0.01)
        assert not sending.done()
        wire.abort()
        with pytest.raises(PeerLost):
            await sending

    asyncio.run(test())


def test_a_wire_of_its_own() -> None:
    async def test() -> None:
        plan = Plan((Fault(kind=Kind.CUT_BEFORE, of=Type.MESSAGE, wire=1),))
        left = FaultyTransport(MemoryTransport(config("a")), plan)
        async with left.open(), MemoryTransport(config("b")).open() as right:
            listener = await right.listen("memory://b")
            first, second = [await left.connect("memory://b") for _ in range(2)]
            await first.send(1)
            with pytest.raises(PeerLost):
                await second.send(1)
            assert (await (await listener.accept()).recv()).kind == 1
            assert left.happened == [(1, plan.faults[0])]

    asyncio.run(test())


RATES = st.dictionaries(st.sampled_from(Kind), st.floats(0, 0.1), max_size=5)


@given(st.integers(), RATES)
def test_a_seed_is_a_plan(seed: int, rates: dict[Kind, float]) -> None:
    plan = random_plan(seed, rates, frames=40)
    assert plan == random_plan(seed, rates, frames=40)
    assert str(plan) == str(random_plan(seed, rates, frames=40))
    assert all(fault.kind in rates for fault in plan.faults)
    assert all(fault.at >= 2 or fault.direction == "read" for fault in plan.faults)
    assert all(fault.kind in LIES for fault in plan.faults if fault.direction == "read")
    assert all(0 < fault.mask < 256 for fault in plan.faults)


def test_a_plan_for_people() -> None:
    plan = Plan(
        (
            Fault(kind=Kind.CORRUPT, of=Type.BODY, part="body", offset=7, mask=1),
            Fault(kind=Kind.DROP),
        )
    )
    assert str(plan) == "corrupt: of=10, offset=7, part=body, mask=1\ndrop"
    assert str(Plan()) == "no faults"
    assert Kind.DROP not in LEGAL
    assert Kind.STALL in LEGAL
    with pytest.raises(LocalMisuse):
        Fault(kind=Kind.DROP, direction="read")
