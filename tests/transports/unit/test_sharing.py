"""Regions that end, with peers that keep the rules and others that don't."""

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from tests.transports.linked import an_address, config, linked
from tests.transports.raw import Raw, raw_peer
from transports.api import Span
from transports.errors import LocalMisuse, PeerClosed, PeerLost, RegionClosed, RemoteProtocol
from transports.frame import Type
from transports.ledger import MAX_REGIONS
from transports.link import WireLink
from transports.mapped import MappedRegion
from transports.memory import MemoryRegion
from transports.shm import ShmRegion


def _run(test: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await test()

    asyncio.run(limited())


async def _turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def _ends(raw: Raw, match: str) -> None:
    """The link ends, since the peer has broken the protocol."""
    with pytest.raises(RemoteProtocol, match=match):
        await raw.link.recv()


# -- we share ----------------------------------------------------------------------------------


def test_the_memory_stays_until_the_peer_has_answered() -> None:
    async def test() -> None:
        async with raw_peer() as raw:
            region = raw.transport.allocate(100)
            assert isinstance(region, MemoryRegion)
            region.view[:] = b"x" * 100
            number = await raw.link.share(region)
            region.close()
            await raw.peer.hear(Type.UNSHARE)
            gone = asyncio.create_task(region.quiet())
            await raw.link.send(1)
            await _turns()
            assert not gone.done()
            assert region.memory == b"x" * 100
            await raw.peer.say(Type.UNSHARED, argument=number)
            await gone
            assert not region.memory
            assert await raw.link.share(raw.transport.allocate(1)) == number + 1

    _run(test)


def test_a_peer_that_never_answers_costs_its_regions_alone() -> None:
    """Others are shared and let go as ever; the end of the link ends it."""

    async def test() -> None:
        async with raw_peer() as raw:
            held, other = raw.transport.allocate(100), raw.transport.allocate(100)
            await raw.link.share(held)
            number = await raw.link.share(other)
            held.close()
            other.close()
            await raw.peer.hear(Type.UNSHARE)
            await raw.peer.say(Type.UNSHARED, argument=number)
            await other.quiet()
            waiting = asyncio.create_task(held.quiet())
            raw.link.abort()
            assert not waiting.done()
            await waiting

    _run(test)


def test_regions_of_a_peer_that_never_answers_are_counted() -> None:
    async def test() -> None:
        async with raw_peer() as raw:
            hearing = asyncio.create_task(raw.peer.until_cut_off())
            for _ in range(MAX_REGIONS):
                region = raw.transport.allocate(1)
                await raw.link.share(region)
                region.close()
            with pytest.raises(LocalMisuse, match="at a time"):
                await raw.link.share(raw.transport.allocate(1))
            raw.link.abort()
            await hearing

    _run(test)


@pytest.mark.parametrize("number", [0, 1, 2, 1 << 63])
def test_let_go_of_what_is_not_closed(number: int) -> None:
    async def test() -> None:
        async with raw_peer() as raw:
            region = raw.transport.allocate(100)
            await raw.link.share(region)
            await raw.peer.say(Type.UNSHARED, argument=number)
            await _ends(raw, "isn't closed")
            region.close()
            await region.quiet()

    _run(test)


def test_a_peer_that_takes_smaller_regions_only() -> None:
    async def test() -> None:
        async with linked(
            "memory://small", near=config("near", max_region_bytes=10, max_shared_bytes=15)
        ) as pair:
            large, *small = [pair.far_transport.allocate(size) for size in (11, 10, 6)]
            with pytest.raises(LocalMisuse, match="at most 10"):
                await pair.far.share(large)
            assert await pair.far.share(small[0]) == 1
            with pytest.raises(LocalMisuse, match="at most 15"):
                await pair.far.share(small[1])
            large.close()
            await large.quiet()  # it is held by nobody
            assert await pair.near.share(pair.near_transport.allocate(1000)) == 1

    _run(test)


@pytest.mark.parametrize("kind", [MemoryRegion, ShmRegion])
def test_a_region_that_its_owner_forgot(kind: type[Any]) -> None:
    region = kind(100)
    forgotten = weakref.ref(region)
    del region
    gc.collect()
    assert forgotten() is None


@pytest.mark.parametrize("scheme", ["memory", "shm", "ucx"])
def test_nothing_keeps_a_region_that_has_gone(scheme: str, tmp_path: Path) -> None:
    """Neither the link, which goes on, nor the transport."""
    if scheme == "ucx":
        pytest.importorskip("ucxx", reason="ucxx isn't installed (the extra is `ucx`)")

    async def test() -> None:
        async with linked(an_address(scheme, tmp_path)) as pair:
            region = pair.near_transport.allocate(100)
            kept = weakref.ref(region)
            await pair.near.share(region)
            region.close()
            await region.quiet()
            del region
            await pair.near.send(1)
            await pair.far.recv()
            gc.collect()
            assert kept() is None

    _run(test)


# -- the peer shares ---------------------------------------------------------------------------


def test_a_read_when_its_region_is_closed() -> None:
    """It ends with what is wrong, writes no more, and only then the peer is told."""

    async def test() -> None:
        async with raw_peer() as raw:
            region = await raw.peer.share(32 << 20)
            await raw.peer.say(Type.MESSAGE)
            await raw.link.recv()
            target = bytearray(32 << 20)
            region.view[:] = b"x" * len(target)
            read = raw.link.read(1, [Span(0, len(target))], [target])
            waiting = asyncio.create_task(read.wait())
            await _turns(2)
            assert target[0] and not target[-1]
            await raw.peer.say(Type.UNSHARE, argument=1)
            frame, _ = await raw.peer.hear(Type.UNSHARED)
            assert frame.argument == 1
            region.view[:] = b"y" * len(target)
            with pytest.raises(RegionClosed):
                await waiting
            with pytest.raises(RegionClosed):
                raw.link.read(1, [Span(0, 5)], [bytearray(5)])
            assert b"y" not in target

    _run(test)


@pytest.mark.parametrize("number", [0, 1, 2, 1 << 63])
def test_the_end_of_a_region_that_is_not_there(number: int) -> None:
    async def test() -> None:
        async with raw_peer() as raw:
            await raw.peer.share(100)
            await raw.peer.say(Type.UNSHARE, argument=1)
            await raw.peer.say(Type.UNSHARE, argument=number)
            await _ends(raw, "isn't shared")

    _run(test)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"argument": 1}, "region 1 after 1"),
        ({"argument": 3}, "region 3 after 1"),
        ({"body_bytes": 0}, "a region of 0"),
        ({"body_bytes": 101}, "at most 100"),
        ({"body_bytes": 99}, "nobody shared"),
        ({"meta": b""}, "nobody shared"),
    ],
    ids=str,
)
def test_a_region_that_can_not_be(fields: dict[str, Any], match: str) -> None:
    async def test() -> None:
        async with raw_peer(max_region_bytes=100) as raw:
            await raw.peer.share(100)
            await raw.peer.share(100, **fields)
            await _ends(raw, match)

    _run(test)


def test_who_shares_and_closes_without_reading_runs_dry() -> None:
    """A region counts until its end could be said; what we owe such a peer is bounded."""

    async def test() -> None:
        async with raw_peer() as raw:
            link = raw.link
            assert isinstance(link, WireLink)
            async with link._writing:  # nothing we say goes out

                async def share_without_end() -> None:
                    for number in range(1, 3 * MAX_REGIONS):
                        await raw.peer.share(1)
                        await raw.peer.say(Type.UNSHARE, argument=number)
                        await asyncio.sleep(0)

                with pytest.raises(PeerLost):
                    await share_without_end()
                await _ends(raw, "at a time")
            assert len(link._control._answers) <= MAX_REGIONS

    _run(test)


@pytest.mark.parametrize("who", ["we", "they"])
def test_reads_are_quiet_before_goodbye(who: str) -> None:
    """An owner lets go of its memory once both have said it."""

    async def test() -> None:
        async with raw_peer() as raw:
            region = await raw.peer.share(64 << 20)
            await raw.peer.say(Type.MESSAGE)
            await raw.link.recv()
            target = bytearray(64 << 20)
            region.view[:] = b"x" * len(target)
            read = raw.link.read(1, [Span(0, len(target))], [target])
            waiting = asyncio.create_task(read.wait())
            await _turns(2)
            closing = None
            if who == "we":
                closing = asyncio.create_task(raw.link.close())
            else:
                await raw.peer.say(Type.BYE)
            await raw.peer.hear(Type.BYE)
            region.view[:] = b"y" * len(target)
            if closing is not None:
                await raw.peer.say(Type.BYE)
                await closing
            with pytest.raises(PeerLost):
                await waiting
            assert target[0] and b"y" not in target
            with pytest.raises((PeerClosed, LocalMisuse)):
                raw.link.read(1, [Span(0, 5)], [bytearray(5)])

    _run(test)


def test_a_region_that_is_not_quiet_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read no more, the peer isn't told, and the link goes on; other regions wait."""
    still: dict[int, asyncio.Event] = {}

    async def quiet(self: MappedRegion) -> None:
        await still.setdefault(self.size, asyncio.Event()).wait()

    monkeypatch.setattr(MappedRegion, "quiet", quiet)

    async def test() -> None:
        async with raw_peer() as raw:
            for size in (1, 2):
                await raw.peer.share(size)
                await raw.peer.say(Type.UNSHARE, argument=size)
            await raw.peer.say(Type.MESSAGE)
            await raw.link.recv()
            with pytest.raises(RegionClosed):
                raw.link.read(1, [Span(0, 1)], [bytearray(1)])
            await raw.link.send(7)
            assert (await raw.peer.hear())[0].type is Type.MESSAGE
            for size in (1, 2):
                await _turns()
                still[size].set()
                frame, _ = await raw.peer.hear(Type.UNSHARED)
                assert frame.argument == size

    _run(test)
