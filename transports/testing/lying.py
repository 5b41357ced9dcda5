"""Checks with completions that lie: what is said to be done isn't, or what isn't is said to be.

`quiet` and the end of a link never lie.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from transports.api import Link, Region, Span
from transports.errors import PeerLost, ReadCancelled, RemoteProtocol, TransportError
from transports.faults import ALWAYS, LIES, Direction, Fault, Kind, Plan, random_plan
from transports.frame import Type
from transports.testing.breaking import QUICK, lost, sided, whatever_happens
from transports.testing.setup import Setup, begun, both, expect, into, noise, receive, until

#: A message of each of these sizes travels in one frame of such a type.
_FRAMES = ((Type.MESSAGE, 3000), (Type.BODY, 50_000))
_DIRECTIONS: tuple[Direction, ...] = ("out", "in")


async def check_sends_that_return_early(setup: Setup) -> None:
    """What is overwritten in time to be sent wrongly: its checksum tells."""
    for type_, size in _FRAMES:
        fault = Fault(kind=Kind.EARLY, of=type_)
        async with sided(setup, fault, dialler=True).pair(**QUICK) as pair:
            receiving = asyncio.create_task(receive(pair.b))
            body = bytearray(noise(size))
            await pair.a.send(1, b"", [body])
            body[:] = bytes(size)
            with contextlib.suppress(PeerLost):
                await pair.a.send(2)
            with expect(RemoteProtocol):
                await receiving


async def check_bodies_that_are_not_there_yet(setup: Setup) -> None:
    """What is said to have landed before it has: its checksum tells, and nothing lands later."""
    for type_, size in _FRAMES:
        fault = Fault(kind=Kind.EARLY, direction="in", of=type_)
        async with sided(setup, fault, dialler=False).pair(**QUICK) as pair:
            sending = asyncio.create_task(pair.a.send(1, b"", [noise(size)]))
            target = bytearray(size)
            with expect(RemoteProtocol):
                await pair.b.recv(into(target))
            with contextlib.suppress(PeerLost):
                await sending
            await _nothing_lands(pair.b, target)


async def check_what_never_completes_is_a_loss(setup: Setup) -> None:
    """Sent or received, in bounded time, on both sides."""
    for direction in _DIRECTIONS:
        for type_ in (Type.MESSAGE, Type.BODY, Type.ACCEPT):
            fault = Fault(kind=Kind.NEVER, direction=direction, of=type_)
            async with asyncio.timeout(5):
                errors = await whatever_happens(sided(setup, fault, dialler=True))
            assert lost(errors), (str(fault), errors)


async def check_a_cancelled_send_that_completes(setup: Setup) -> None:
    """It is cancelled all the same, and its link has ended."""
    fault = Fault(kind=Kind.AFTER_CANCEL, of=Type.BODY, times=ALWAYS)
    size = 8_000_000
    async with sided(setup, fault, dialler=True).pair(**QUICK) as pair:
        target = bytearray(size)
        sending = asyncio.create_task(pair.a.send(1, b"", [noise(size)]))
        receiving = asyncio.create_task(pair.b.recv(into(target)))
        await until(begun(target))
        sending.cancel()
        await asyncio.wait([sending])
        assert sending.cancelled()
        with expect(PeerLost):
            await receiving
        with expect(PeerLost):
            await pair.a.send(1)
        await _nothing_lands(pair.b, target)


async def check_a_cancelled_receive_that_completes(setup: Setup) -> None:
    """Its buffers are the caller's again when the link is quiet, and no earlier."""
    type_, size = _FRAMES[1]
    fault = Fault(kind=Kind.AFTER_CANCEL, direction="in", of=type_)
    async with sided(setup, fault, dialler=False).pair(eager_bytes=4096) as pair:
        target = bytearray(size)
        receiving = asyncio.create_task(pair.b.recv(into(target)))
        await pair.a.send(1, b"", [noise(size)])
        await asyncio.sleep(0.05)  # mostly it is all there by then
        assert not any(target)
        receiving.cancel()
        await asyncio.wait([receiving])
        assert receiving.cancelled()
        await pair.b.quiet()
        assert target in (noise(size), bytes(size))
        await _nothing_lands(pair.b, target)
        with expect(PeerLost):
            await pair.a.recv()


async def _nothing_lands(link: Link, target: bytearray) -> None:
    await link.quiet()
    before = bytes(target)
    await asyncio.sleep(0.05)
    assert target == before, "bytes landed in buffers that were quiet"


async def check_reads_whose_completion_lies(setup: Setup) -> None:
    """Completion can lie or stay away; `quiet` and the end of the link never do."""
    if not await _has_reads(setup):
        return
    size = 3_000_000
    for kind in sorted(LIES):
        fault = Fault(kind=kind, direction="read")
        async with sided(setup, fault, dialler=True).pair() as pair:
            region = pair.right.allocate(size)
            try:
                await _faulty_read(region, pair.a, pair.b, kind)
            finally:
                region.close()


async def _has_reads(setup: Setup) -> bool:
    async with setup.pair() as plain:
        return plain.left.capabilities.one_sided_reads


async def _faulty_read(region: Region, a: Link, b: Link, kind: Kind) -> None:
    data, target = noise(region.size), bytearray(region.size)
    read = a.read(await _shared(region, data, a, b), [Span(0, len(data))], [target])
    if kind is Kind.AFTER_CANCEL:
        read.cancel()
        await read.quiet()
        assert target == data
        with expect(ReadCancelled):
            await read.wait()
    elif kind is Kind.EARLY:
        await read.wait()
        await read.quiet()
        assert target == data
    else:
        for waits in (read.wait(), read.quiet()):
            task = asyncio.create_task(waits)
            await asyncio.sleep(0.01)
            assert not task.done()
            task.cancel()
            await asyncio.wait([task])
        a.abort()
        await read.quiet()
        with expect(PeerLost):
            await read.wait()


async def _shared(region: Region, data: bytes, a: Link, b: Link) -> int:
    """B shares the region, full of data; its number, once a has it."""
    region.view[:] = data
    number = await b.share(region)
    await both(b.send(1), a.recv())
    return number


async def check_reads_with_faults_by_seed(setup: Setup) -> None:
    """Whatever they say: those that become quiet leave their buffers alone, and by the end of the
    link all have.
    """
    if not await _has_reads(setup):
        return
    data = noise(100_000)
    drawn = random_plan(1, dict.fromkeys(LIES, 0.2)).faults
    plan = Plan(tuple(fault for fault in drawn if fault.direction == "read"))
    async with setup.faulty(dialler=plan).pair() as pair:
        region = pair.right.allocate(len(data))
        try:
            number = await _shared(region, data, pair.a, pair.b)
            reads = []
            for count in range(30):
                target = bytearray(len(data))
                read = pair.a.read(number, [Span(0, len(data))], [target])
                if count % 3 == 0:
                    read.cancel()
                with contextlib.suppress(TransportError, TimeoutError):
                    async with asyncio.timeout(0.05):
                        await read.wait()
                reads.append((read, target))
            pair.a.abort()
            for read, _ in reads:
                await read.quiet()
            region.view[:] = bytes(len(data))
            found = [bytes(target) for _, target in reads]
            await asyncio.sleep(0.05)
            assert found == [bytes(target) for _, target in reads]
            assert data in found
        finally:
            region.close()


CHECKS: list[Callable[[Setup], Awaitable[None]]] = [
    check_sends_that_return_early,
    check_bodies_that_are_not_there_yet,
    check_what_never_completes_is_a_loss,
    check_a_cancelled_send_that_completes,
    check_a_cancelled_receive_that_completes,
    check_reads_whose_completion_lies,
    check_reads_with_faults_by_seed,
]
