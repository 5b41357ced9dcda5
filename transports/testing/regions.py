"""Checks of one-sided reads, where a transport has them; where not, that it says so."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from transports.api import Region, Span, Transport
from transports.errors import (
    LocalMisuse,
    PeerClosed,
    PeerLost,
    ReadCancelled,
    RemoteProtocol,
    Unsupported,
)
from transports.testing.setup import (
    Pair,
    Setup,
    alive,
    begun,
    both,
    carry,
    expect,
    noise,
    turns,
    until,
)
from transports.testing.tensors import Tensor

_SIZE = 5_000_000


def filled(transport: Transport, size: int = _SIZE, seed: int = 0) -> Region:
    """A region full of noise."""
    region = transport.allocate(size)
    region.view[:] = noise(size, seed)
    return region


async def shared(pair: Pair, region: Region) -> int:
    """Share it from b to a; the number that a reads by."""
    number = await pair.b.share(region)
    await carry(pair.b, pair.a)  # in order with messages: it is known by now
    return number


async def check_no_reads_where_there_are_none(setup: Setup) -> None:
    """Unsupported, and the link goes on."""
    async with setup.pair() as pair:
        if pair.left.capabilities.one_sided_reads:
            return
        with expect(Unsupported):
            pair.left.allocate(10)
        with expect(Unsupported):
            pair.a.read(1, [Span(0, 1)], [bytearray(1)])
        await alive(pair.a, pair.b)


async def check_reads_land_where_they_should(setup: Setup) -> None:
    """Any spans into any buffers, cut differently; nothing else is touched."""
    async with setup.pair() as pair:
        if not pair.left.capabilities.one_sided_reads:
            return
        region = filled(pair.right)
        try:
            number = await shared(pair, region)
            assert await pair.b.share(region) == number
            data = noise(_SIZE)
            spans = [Span(0, 1), Span(_SIZE - 7, 7), Span(10, 0), Span(4096, 3_000_000)]
            sizes = [1_000_000, 0, 5, 2_000_003]
            into = [bytearray(size) for size in sizes]
            targets = [memoryview(view) for view in into]
            read = pair.a.read(number, spans, targets)
            await read.wait()
            await read.wait()
            await read.quiet()
            want = b"".join(data[span.offset : span.offset + span.length] for span in spans)
            assert b"".join(into) == want
            guarded = bytearray(b"\xee" * 300)
            await pair.a.read(number, [Span(50, 100)], [memoryview(guarded)[100:200]]).wait()
            assert guarded == b"\xee" * 100 + data[50:150] + b"\xee" * 100
            await pair.a.read(number, [], []).wait()
            region.view[50:60] = b"0123456789"
            await pair.a.read(number, [Span(50, 10)], [memoryview(guarded)[:10]]).wait()
            assert guarded[:10] == b"0123456789"
            tensor = Tensor(bytearray(1000))
            await pair.a.read(number, [Span(0, 1000)], [tensor]).wait()
            assert tensor.memory == region.view[:1000]
            await until(lambda: not tensor.num_lent)
        finally:
            region.close()


async def check_reads_out_of_bounds(setup: Setup) -> None:
    """Refused here; nothing is asked of the peer."""
    async with setup.pair() as pair:
        if not pair.left.capabilities.one_sided_reads:
            return
        region = filled(pair.right, 1000)
        try:
            number = await shared(pair, region)
            ten = bytearray(10)
            for bad in (Span(991, 10), Span(-1, 10), Span(0, -10), Span(1 << 63, 10)):
                with expect(LocalMisuse):
                    pair.a.read(number, [bad], [ten])
            for unknown in (number + 1, 0, -1):
                with expect(LocalMisuse):
                    pair.a.read(unknown, [Span(0, 10)], [ten])
            with expect(LocalMisuse):
                pair.a.read(number, [Span(0, 10)], [bytearray(9)])
            with expect(LocalMisuse):
                pair.a.read(number, [Span(0, 10)], [bytes(10)])
            with expect(LocalMisuse):
                pair.b.read(number, [Span(0, 10)], [ten])  # shared the other way only
            with expect(LocalMisuse):
                pair.right.allocate(0)
            await pair.a.read(number, [Span(0, 10)], [ten]).wait()
            assert ten == noise(1000)[:10]
        finally:
            region.close()


async def check_nonsense_of_reads(setup: Setup) -> None:
    """Whatever isn't what it should be is the caller's mistake, and the link goes on."""
    span, ten = Span(0, 10), bytearray(10)
    async with setup.pair() as pair:
        if not pair.left.capabilities.one_sided_reads:
            return
        region = filled(pair.right, 1000)
        try:
            number = await shared(pair, region)
            halves: Any = (Span(0.5, 10), Span(0, 10.0), Span(float("nan"), 10), Span("0", 10))  # type: ignore[arg-type]
            spans: list[Any] = [[each] for each in (*halves, None, (0, 10), 7, "0", Span)]
            for bad in (*spans, None, 7, span, "spans", iter([span]), {span}):
                with expect(LocalMisuse):
                    pair.a.read(number, bad, [ten])
            unknown: list[Any] = ["1", b"1", None, float(number), [number], 1 << 70]
            for each in unknown:
                with expect(LocalMisuse):
                    pair.a.read(each, [span], [ten])
            sizes: list[Any] = ["10", None, 10.0, -1, 1 << 62, 1 << 70, [10]]
            for each in sizes:
                with expect(LocalMisuse):
                    pair.right.allocate(each)
            with expect(Unsupported):
                pair.right.allocate(1 << 55)
            others: list[Any] = [None, 7, bytearray(10), region.view]
            for each in others:
                with expect(LocalMisuse):
                    await pair.b.share(each)
            assert ten == bytes(10)
            await pair.a.read(number, [span], [ten]).wait()
            assert ten == noise(1000)[:10]
            await alive(pair.a, pair.b)
        finally:
            region.close()


async def check_many_regions_and_reads_at_once(setup: Setup) -> None:
    """In both directions, while messages flow."""
    async with setup.pair() as pair:
        if not pair.left.capabilities.one_sided_reads:
            return
        regions = [filled(pair.right, 1_000_000, seed) for seed in range(4)]
        mine = filled(pair.left, 1_000_000, 4)
        try:
            numbers = await asyncio.gather(*(pair.b.share(region) for region in regions))
            assert len(set(numbers)) == 4
            back, _ = await both(pair.a.share(mine), carry(pair.b, pair.a))
            await carry(pair.a, pair.b)
            into = [bytearray(1_000_000) for _ in range(5)]
            reads = [
                pair.a.read(number, [Span(0, 1_000_000)], [target])
                for number, target in zip(numbers, into, strict=False)
            ]
            reads.append(pair.b.read(back, [Span(0, 1_000_000)], [into[4]]))
            async with asyncio.TaskGroup() as group:
                for read in reads:
                    group.create_task(read.wait())
                group.create_task(carry(pair.a, pair.b, noise(3_000_000)))
                group.create_task(carry(pair.b, pair.a, noise(3_000_000)))
            assert into == [noise(1_000_000, seed) for seed in range(5)]
            for target in into:
                target.append(0)  # nobody holds a view of it any more
        finally:
            for region in (*regions, mine):
                region.close()


async def check_a_cancelled_read_is_quiet_in_the_end(setup: Setup) -> None:
    """After `quiet` nothing lands; the link goes on."""
    async with setup.pair() as pair:
        if not pair.left.capabilities.one_sided_reads:
            return
        region = filled(pair.right, 32 << 20)
        try:
            number = await shared(pair, region)
            for after in (0, 1, 3):
                target = bytearray(32 << 20)
                read = pair.a.read(number, [Span(0, 32 << 20)], [target])
                waiting = asyncio.create_task(read.wait())
                await turns(after)
                read.cancel()
                read.cancel()
                await read.quiet()
                before = bytes(target)
                try:
                    await waiting
                except ReadCancelled:
                    pass
                else:
                    assert before == noise(32 << 20)
                await asyncio.sleep(0.01)
                assert target == before
            await alive(pair.a, pair.b)
        finally:
            region.close()


async def check_quiet_without_wait(setup: Setup) -> None:
    """A read that nobody cancels lands, whether one waits for it or only for quiet."""
    async with setup.pair() as pair:
        if not pair.left.capabilities.one_sided_reads:
            return
        region = filled(pair.right)
        try:
            number = await shared(pair, region)
            target = bytearray(_SIZE)
            read = pair.a.read(number, [Span(0, _SIZE)], [target])
            await read.quiet()
            assert target == noise(_SIZE)
            await read.wait()
        finally:
            region.close()


async def check_a_wait_cancelled_in_a_read(setup: Setup) -> None:
    """The task that waits is cancelled; quiet still tells the truth."""
    async with setup.pair() as pair:
        if not pair.left.capabilities.one_sided_reads:
            return
        region = filled(pair.right, 32 << 20)
        try:
            number = await shared(pair, region)
            target = bytearray(32 << 20)
            read = pair.a.read(number, [Span(0, 32 << 20)], [target])
            waiting = asyncio.create_task(read.wait())
            await turns(2)
            waiting.cancel()
            await asyncio.wait([waiting])
            read.cancel()
            await read.quiet()
            before = bytes(target)
            await asyncio.sleep(0.01)
            assert target == before
        finally:
            region.close()


async def check_reads_end_with_the_link(setup: Setup) -> None:
    """Those under way fail or finish, new ones are refused, and after `quiet` nothing lands."""
    for abort in (True, False):
        async with setup.pair() as pair:
            if not pair.left.capabilities.one_sided_reads:
                return
            region = filled(pair.right, 32 << 20)
            try:
                number = await shared(pair, region)
                target = bytearray(32 << 20)
                read = pair.a.read(number, [Span(0, 32 << 20)], [target])
                waiting = asyncio.create_task(read.wait())
                await until(begun(target))
                if abort:
                    pair.a.abort()
                else:
                    await pair.b.close()
                try:
                    await waiting
                except (PeerLost, RemoteProtocol):
                    pass
                else:
                    assert target == noise(32 << 20)
                await read.quiet()
                await pair.a.quiet()
                before = bytes(target)
                with expect(PeerLost, PeerClosed):
                    pair.a.read(number, [Span(0, 1)], [bytearray(1)])
                with expect(PeerLost, PeerClosed, LocalMisuse):
                    await pair.b.share(region)
                await asyncio.sleep(0.01)
                assert target == before
            finally:
                region.close()


CHECKS: list[Callable[[Setup], Awaitable[None]]] = [
    check_no_reads_where_there_are_none,
    check_reads_land_where_they_should,
    check_reads_out_of_bounds,
    check_nonsense_of_reads,
    check_many_regions_and_reads_at_once,
    check_a_cancelled_read_is_quiet_in_the_end,
    check_quiet_without_wait,
    check_a_wait_cancelled_in_a_read,
    check_reads_end_with_the_link,
]
