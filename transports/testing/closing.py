"""Checks of regions that come and go: what their peers see then, and what stays of them."""

import asyncio
import contextlib
import gc
import math
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from transports.api import Span
from transports.errors import LocalMisuse, RegionClosed
from transports.faults import Fault, Kind, Plan
from transports.frame import Type
from transports.testing.regions import filled, shared
from transports.testing.setup import Pair, Setup, alive, begun, carry, expect, noise, turns, until


async def check_a_region_that_was_closed(setup: Setup) -> None:
    """It can't be used, shared or read any more, and the link goes on."""
    async with setup.pair() as pair:
        if not pair.left.capabilities.one_sided_reads:
            return
        region, other = filled(pair.right, 1000), filled(pair.right, 1000)
        number, its_number = await shared(pair, region), await shared(pair, other)
        region.close()
        region.close()
        with expect(LocalMisuse):
            _ = region.view
        with expect(LocalMisuse):
            await pair.b.share(region)
        await region.quiet()
        for _ in range(2):
            with expect(RegionClosed):
                pair.a.read(number, [Span(0, 10)], [bytearray(10)])
        with expect(LocalMisuse):
            pair.a.read(its_number + 1, [Span(0, 10)], [bytearray(10)])
        await pair.a.read(its_number, [Span(0, 1000)], [target := bytearray(1000)]).wait()
        assert target == noise(1000)
        other.close()
        await other.quiet()
        await alive(pair.a, pair.b)


async def check_a_region_that_nobody_shared(setup: Setup) -> None:
    """With `close` it has gone."""
    async with setup.transports() as (left, _, _):
        if not left.capabilities.one_sided_reads:
            return
        region = left.allocate(1000)
        region.close()
        await region.quiet()


async def _read(pair: Pair, number: int, target: bytearray) -> bool:
    """Read a whole region; False if its owner has closed it."""
    try:
        await pair.a.read(number, [Span(0, len(target))], [target]).wait()
    except RegionClosed:
        return False
    return True


async def check_what_comes_later_does_not_show(setup: Setup) -> None:
    """A new region may lie where a closed one lay; its bytes don't come under the old number."""
    async with setup.pair() as pair:
        if not pair.left.capabilities.one_sided_reads:
            return
        for waited in range(4):
            region = filled(pair.right, 1 << 20)
            number = await shared(pair, region)
            region.close()
            later = [pair.right.allocate(1 << 20) for _ in range(3)]
            for each in later:
                each.view[:] = bytes([0xEE]) * (1 << 20)
            await turns(waited)
            target = bytearray(1 << 20)
            if await _read(pair, number, target):
                assert target == noise(1 << 20)
            assert b"\xee" * 16 not in target
            for each in later:
                each.close()
            await region.quiet()


async def check_a_region_closed_in_a_read(setup: Setup) -> None:
    """The read has all its bytes, or RegionClosed; never other bytes. Only then the memory goes."""
    size = 32 << 20
    async with setup.pair() as pair:
        if not pair.left.capabilities.one_sided_reads:
            return
        for _ in range(2):
            region = filled(pair.right, size)
            number = await shared(pair, region)
            target = bytearray(size)
            reads = [pair.a.read(number, [Span(0, size)], [target])]
            reads.append(pair.a.read(number, [Span(0, 1000)], [bytearray(1000)]))
            waiting = asyncio.create_task(reads[0].wait())
            await until(begun(target))
            region.close()
            later = pair.right.allocate(size)
            later.view[:] = bytes([0xEE]) * size
            await region.quiet()
            before = bytes(target)
            for read in reads:
                await read.quiet()
            assert target == before, "the region was quiet before its reads were"
            try:
                await waiting
            except RegionClosed:
                assert b"\xee" * 16 not in target
            else:
                assert target == noise(size)
            later.close()
        await alive(pair.a, pair.b)


async def check_one_region_for_two_peers(setup: Setup) -> None:
    """It goes when both have let go; a link that ends has."""
    async with setup.pair() as pair:
        if not pair.left.capabilities.one_sided_reads:
            return
        other = await pair.another()
        region = filled(pair.right, 1000)
        numbers = [await shared(each, region) for each in (pair, other)]
        other.a.abort()
        await other.b.quiet()
        assert await _read(pair, numbers[0], target := bytearray(1000))
        assert target == noise(1000)
        region.close()
        await region.quiet()
        assert not await _read(pair, numbers[0], bytearray(1000))


async def check_a_region_closed_while_it_is_shared(setup: Setup) -> None:
    """The share returns or says so; the peer hears of it in the end, and the memory goes."""
    async with setup.pair() as pair:
        if not pair.left.capabilities.one_sided_reads:
            return
        for after in range(4):
            region = filled(pair.right, 1000)
            sharing = asyncio.create_task(pair.b.share(region))
            await turns(after)
            region.close()
            with contextlib.suppress(LocalMisuse):
                await sharing
            await region.quiet()
        await alive(pair.a, pair.b)


async def check_a_share_that_is_cancelled(setup: Setup) -> None:
    """It may end the link, if it was in mid-frame; the memory goes with `close` all the same."""
    for after in range(4):
        async with setup.pair() as pair:
            if not pair.left.capabilities.one_sided_reads:
                return
            region = filled(pair.right, 1000)
            sharing = asyncio.create_task(pair.b.share(region))
            await turns(after)
            sharing.cancel()
            await asyncio.wait([sharing])
            region.close()
            await region.quiet()


async def check_regions_one_after_another(setup: Setup) -> None:
    """More in a link than there may be at a time; nothing of them stays on either side."""
    async with setup.pair() as pair:
        if not pair.left.capabilities.one_sided_reads:
            return
        seen: list[tuple[int, int]] = []
        for turn in range(50):
            regions = [pair.right.allocate(5000) for _ in range(100)]
            for region in regions:
                region.view[:] = bytes([turn]) * 5000
                number = await pair.b.share(region)
            await carry(pair.b, pair.a)
            assert await _read(pair, number, target := bytearray(5000))
            assert target == bytes([turn]) * 5000
            for region in regions:
                region.close()
            for region in regions:
                await region.quiet()
            del region, regions
            if turn in (3, 6, 9, 40, 43, 46, 49):  # a look takes long in a large process
                seen.append(_held())
        assert number == 5000
        assert max(seen[3:])[0] <= max(seen[:3])[0], seen
        assert max(held[1] for held in seen[3:]) <= max(held[1] for held in seen[:3]) + 10, seen
        await alive(pair.a, pair.b)


def _held() -> tuple[int, int]:
    """Descriptors and mappings of this process."""
    gc.collect()
    maps = Path("/proc/self/maps").read_bytes().count(b"\n")
    return len(os.listdir("/proc/self/fd")), maps


async def check_a_region_goes_with_its_link(setup: Setup) -> None:
    """However that ends, and though the peer never lets go of it: no word of it gets through."""
    silent = Plan((Fault(kind=Kind.STALL, of=Type.UNSHARED, seconds=math.inf),))
    for end in ("abort", "close", "theirs"):
        async with setup.faulty(dialler=silent).pair(close_s=0.2) as pair:
            if not pair.left.capabilities.one_sided_reads:
                return
            region = filled(pair.right, 1000)
            number = await shared(pair, region)
            waiting = asyncio.create_task(region.quiet())
            region.close()
            while await _read(pair, number, bytearray(1000)):
                await turns(1)
            await pair.b.send(1)
            assert not waiting.done()
            match end:
                case "abort":
                    pair.b.abort()
                case "close":
                    await pair.b.close()
                case "theirs":
                    pair.a.abort()
            await waiting


async def check_limits_of_regions(setup: Setup) -> None:
    """The reader's, for one and for all at a time; the owner is told, and nothing is sent."""
    limits = {"max_region_bytes": 5000, "max_shared_bytes": 12_000}
    async with setup.pair(dialler=limits) as pair:
        if not pair.left.capabilities.one_sided_reads:
            return
        large, *regions = [pair.right.allocate(size) for size in (5001, 5000, 4000, 3001, 3000)]
        with expect(LocalMisuse):
            await pair.b.share(large)
        for region in regions[:2]:
            await pair.b.share(region)
        with expect(LocalMisuse):
            await pair.b.share(regions[2])
        await pair.b.share(regions[3])
        regions[1].close()
        await regions[1].quiet()
        await pair.b.share(regions[2])
        await alive(pair.a, pair.b)
        for region in (large, *regions):
            region.close()


CHECKS: list[Callable[[Setup], Awaitable[None]]] = [
    check_a_region_that_was_closed,
    check_a_region_that_nobody_shared,
    check_what_comes_later_does_not_show,
    check_a_region_closed_in_a_read,
    check_one_region_for_two_peers,
    check_a_region_closed_while_it_is_shared,
    check_a_share_that_is_cancelled,
    check_regions_one_after_another,
    check_a_region_goes_with_its_link,
    check_limits_of_regions,
]
