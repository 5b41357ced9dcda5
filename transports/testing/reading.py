"""Checks of one-sided reads under way: who drives them, who waits for them, and how they end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from transports.api import Read, Span
from transports.errors import PeerLost, ReadCancelled
from transports.testing.setup import Pair, Setup, alive, begun, carry, expect, noise, turns, until

#: So large that it isn't over when it has begun.
_SIZE = 32 << 20
#: Spans of it: what begins early, and what ends late, can be seen.
_SPANS = [Span(offset, 1 << 20) for offset in range(0, _SIZE, 1 << 20)]


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a check of a read needs."""

    pair: Pair
    number: int
    target: bytearray

    def read(self) -> Read:
        """The whole region."""
        return self.pair.a.read(self.number, _SPANS, [self.target])

    @property
    def landed(self) -> bool:
        return self.target == noise(_SIZE)

    async def stays(self) -> None:
        """Nothing more lands."""
        before = bytes(self.target)
        await asyncio.sleep(0.01)
        assert self.target == before


@contextlib.asynccontextmanager
async def _reading(setup: Setup) -> AsyncIterator[_Reading | None]:
    """A region of b's that a can read; None where there are no reads."""
    async with setup.pair() as pair:
        if not pair.left.capabilities.one_sided_reads:
            yield None
            return
        region = pair.right.allocate(_SIZE)
        region.view[:] = noise(_SIZE)
        try:
            number = await pair.b.share(region)
            await carry(pair.b, pair.a)
            yield _Reading(pair, number, bytearray(_SIZE))
        finally:
            region.close()


async def check_a_read_goes_on_by_itself(setup: Setup) -> None:
    """Nobody waits for it, and it lands."""
    async with _reading(setup) as its:
        if its is None:
            return
        read = its.read()
        await until(lambda: any(its.target[-16:]))
        await read.quiet()
        assert its.landed
        await read.wait()
        await alive(its.pair.a, its.pair.b)


async def check_a_cancelled_waiter_only_stops_waiting(setup: Setup) -> None:
    """The read goes on, for others and for nobody."""
    async with _reading(setup) as its:
        if its is None:
            return
        for others in (1, 0):
            its.target[:] = bytes(_SIZE)
            read = its.read()
            waiting = [asyncio.create_task(wait()) for wait in (read.wait, read.quiet)]
            staying = [asyncio.create_task(wait()) for wait in (read.wait, read.quiet) * others]
            await turns(1)
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
            assert all(task.cancelled() for task in waiting)
            assert not its.landed
            await asyncio.gather(*staying)
            await read.wait()
            assert its.landed


async def check_a_cancelled_read_says_so(setup: Setup) -> None:
    """The same to everybody who waits or comes later; one that has ended isn't changed by it."""
    async with _reading(setup) as its:
        if its is None:
            return
        for after in (0, 1, 2):
            read = its.read()
            waiting = [asyncio.create_task(read.wait()) for _ in range(2)]
            await turns(after)
            read.cancel()
            for ended in (*waiting, read.wait()):
                with expect(ReadCancelled):
                    await ended
            await read.quiet()
            await its.stays()
            with expect(ReadCancelled):
                await read.wait()
        read = its.read()
        await read.wait()
        read.cancel()
        await read.wait()
        assert its.landed
        await alive(its.pair.a, its.pair.b)


async def check_reads_without_waiters_end_with_the_link(setup: Setup) -> None:
    """However it ends: the read is quiet, and whoever asks hears of a loss or has the bytes."""
    for end in (_abort_here, _abort_there, _close_there):
        async with _reading(setup) as its:
            if its is None:
                return
            read = its.read()
            await until(begun(its.target))
            await end(its.pair)
            await its.pair.a.quiet()
            await read.quiet()
            await _lost_or_landed(its, read)


async def _abort_here(pair: Pair) -> None:
    pair.a.abort()


async def _abort_there(pair: Pair) -> None:
    pair.b.abort()


async def _close_there(pair: Pair) -> None:
    await pair.b.close()


async def _lost_or_landed(its: _Reading, read: Read) -> None:
    for _ in range(2):
        try:
            await read.wait()
        except PeerLost:
            await its.stays()
        else:
            assert its.landed


async def check_a_transport_left_in_mid_read(setup: Setup) -> None:
    """The context takes its reads with it; nobody has to wait for them."""
    async with setup.transports() as (_, right, listening):
        if not right.capabilities.one_sided_reads:
            return
        region = right.allocate(_SIZE)
        region.view[:] = noise(_SIZE)
        left = setup.dialler()
        try:
            async with left.open():
                link = await left.connect(listening.address)
                far = await listening.accept()
                number = await far.share(region)
                await carry(far, link)
                pair = Pair(left, right, listening, link, far)
                its = _Reading(pair, number, bytearray(_SIZE))
                read = its.read()
                await until(begun(its.target))
            await _lost_or_landed(its, read)
            await read.quiet()
        finally:
            region.close()


CHECKS: list[Callable[[Setup], Awaitable[None]]] = [
    check_a_read_goes_on_by_itself,
    check_a_cancelled_waiter_only_stops_waiting,
    check_a_cancelled_read_says_so,
    check_reads_without_waiters_end_with_the_link,
    check_a_transport_left_in_mid_read,
]
