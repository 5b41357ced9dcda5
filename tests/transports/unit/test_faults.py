"""Faults happen where the plan says, and only there; plans are data."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.transports.linked import config
from transports.errors import PeerLost
from transports.faults import (
    LEGAL,
    Direction,
    Fault,
    FaultyTransport,
    FaultyWire,
    Kind,
    Part,
    Plan,
    random_plan,
)
from transports.frame import HEAD_BYTES, Frame, Type
from transports.memory import MemoryTransport, MemoryWire, _Pipe

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
        results = await asyncio.gather(send(), recv(), return_exceptions=True)
    assert all(result is None or isinstance(result, PeerLost) for result in results), results
    a.abort()
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
    assert _passed(Fault(kind=Kind.CUT_INSIDE, offset=5, **where)) == PLAIN[:3]
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
    assert all(fault.at >= 2 and fault.kind in rates for fault in plan.faults)
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
