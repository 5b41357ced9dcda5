"""Links over shared memory: the socket's file, and regions."""

import asyncio
import contextlib
import fcntl
import gc
import mmap
import os
import socket
import stat
from pathlib import Path

import pytest

from tests.transports.linked import Linked, config, linked
from transports.address import parse
from transports.api import Span
from transports.errors import LocalMisuse, PeerLost, RegionClosed, Unreachable, Unsupported
from transports.shm import ShmRegion, ShmTransport

MIB = 1 << 20


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"shm://{tmp_path}/s"


def _path(address: str) -> Path:
    return Path(parse(address).path)


# -- the socket's file -----------------------------------------------------------------------------


def test_the_file_is_for_its_owner_and_goes_with_the_listener(address: str) -> None:
    async def main() -> None:
        async with ShmTransport(config()).open() as transport:
            listener = await transport.listen(address)
            assert listener.address == address
            mode = _path(address).stat().st_mode
            assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
            await listener.close()
            assert not _path(address).exists()
            await transport.listen(address)
        assert list(_path(address).parent.iterdir()) == []

    asyncio.run(main())


def test_the_file_of_a_dead_listener_is_replaced(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(_path(address)))

    async def main() -> None:
        async with linked(address) as pair:
            await pair.near.send(1)
            await pair.far.recv()

    asyncio.run(main())


def test_of_two_that_replace_it_one_wins(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(_path(address)))

    async def main() -> None:
        async with (
            ShmTransport(config()).open() as one,
            ShmTransport(config()).open() as other,
        ):
            tasks = [asyncio.create_task(each.listen(address)) for each in (one, other)]
            await asyncio.wait(tasks)
            failures = [task.exception() for task in tasks if task.exception()]
            assert len(failures) == 1 and isinstance(failures[0], Unreachable)
            await other.connect(address)

    asyncio.run(main())


def test_a_lock_on_the_folder_that_nobody_gives_back(address: str) -> None:
    folder = os.open(_path(address).parent, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)

    async def main() -> None:
        async with ShmTransport(config(handshake_s=0.2)).open() as transport:
            with pytest.raises(Unreachable):
                await transport.listen(address)

    try:
        asyncio.run(main())
    finally:
        os.close(folder)


def test_a_file_of_someone_else_s_is_left_alone(address: str) -> None:
    _path(address).write_text("precious")

    async def main() -> None:
        async with ShmTransport(config()).open() as transport:
            with pytest.raises(LocalMisuse):
                await transport.listen(address)
            with pytest.raises(Unreachable):
                await transport.connect(address)

    asyncio.run(main())
    assert _path(address).read_text() == "precious"


def test_a_file_that_was_replaced_meanwhile_is_left_alone(address: str) -> None:
    async def main() -> None:
        async with ShmTransport(config()).open() as transport:
            listener = await transport.listen(address)
            _path(address).unlink()
            _path(address).write_text("precious")
            await listener.close()

    asyncio.run(main())
    assert _path(address).read_text() == "precious"


@pytest.mark.parametrize("address", ["shm://host/path", "shm://", "shm:///" + "x" * 200])
def test_addresses_that_are_none(address: str) -> None:
    async def main() -> None:
        async with ShmTransport(config()).open() as transport:
            with pytest.raises(LocalMisuse):
                await transport.connect(address)
            with pytest.raises(LocalMisuse):
                await transport.listen(address)

    asyncio.run(main())


def test_folders_that_are_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with ShmTransport(config()).open() as transport:
            with pytest.raises(LocalMisuse):
                await transport.listen(f"shm://{tmp_path}/none/s")
            with pytest.raises(Unreachable):
                await transport.connect(f"shm://{tmp_path}/none/s")

    asyncio.run(main())


def test_a_full_backlog_is_waited_for(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as busy, contextlib.ExitStack() as others:
        busy.bind(str(_path(address)))
        busy.listen(1)
        busy.setblocking(False)
        for _ in range(5):
            sock = others.enter_context(socket.socket(socket.AF_UNIX))
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(str(_path(address)))

        async def main() -> None:
            async with ShmTransport(config(handshake_s=0.3)).open() as transport:
                with pytest.raises(Unreachable):
                    await transport.connect(address)

        asyncio.run(main())


# -- regions ---------------------------------------------------------------------------------------


async def _shared(pair: Linked, content: bytes) -> tuple[ShmRegion, int]:
    """A region of the far side's with this content, and its number at the near side."""
    region = pair.far_transport.allocate(len(content))
    assert isinstance(region, ShmRegion)
    region.view[:] = content
    number = await pair.far.share(region)
    await pair.far.send(0)
    await pair.near.recv()
    return region, number


@pytest.mark.parametrize("size", [1, 100, 4_096, 5 * MIB + 3])
def test_one_sided_reads(address: str, size: int) -> None:
    content = os.urandom(size)

    async def main() -> None:
        async with linked(address) as pair:
            region, number = await _shared(pair, content)
            target = bytearray(size)
            await pair.near.read(number, [Span(0, size)], [target]).wait()
            assert target == content
            region.view[:1] = b"!" if content[:1] != b"!" else b"?"
            await pair.near.read(number, [Span(0, 1)], [memoryview(target)[:1]]).wait()
            assert target[0] == region.view[0]
            region.close()

    asyncio.run(main())


def test_many_spans_into_other_pieces(address: str) -> None:
    content = os.urandom(3 * MIB)
    spans = [Span(offset, 777) for offset in range(0, 2 * MIB, 1_000)]
    wanted = b"".join(content[span.offset : span.offset + span.length] for span in spans)

    async def main() -> None:
        async with linked(address) as pair:
            region, number = await _shared(pair, content)
            target = bytearray(len(wanted))
            pieces = [memoryview(target)[at : at + 1_013] for at in range(0, len(target), 1_013)]
            read = pair.near.read(number, spans, pieces)
            await read.wait()
            await read.quiet()
            assert target == wanted
            region.close()

    asyncio.run(main())


def test_many_regions_keep_their_numbers(address: str) -> None:
    async def main() -> None:
        async with linked(address) as pair:
            regions = [pair.far_transport.allocate(10) for _ in range(30)]
            async with asyncio.TaskGroup() as group:

                async def share() -> None:
                    for fill, region in enumerate(regions, 1):
                        region.view[:] = bytes([fill]) * 10
                        assert await pair.far.share(region) == fill
                        await pair.far.send(1, b"between", [bytes(fill * 5_000)])

                group.create_task(share())
                for _ in regions:
                    await pair.near.recv(lambda head: [bytearray(head.body_bytes)])
            assert await pair.far.share(regions[4]) == 5
            for fill, region in enumerate(regions, 1):
                target = bytearray(10)
                await pair.near.read(fill, [Span(0, 10)], [target]).wait()
                assert target == bytes([fill]) * 10
                region.close()

    asyncio.run(main())


def test_a_closed_region_is_read_no_more(address: str) -> None:
    async def main() -> None:
        async with linked(address) as pair:
            region, number = await _shared(pair, b"content")
            view = region.view
            region.close()
            region.close()
            with pytest.raises(LocalMisuse):
                region.view  # noqa: B018 (it raises)
            await region.quiet()
            assert bytes(view) == b"content"  # who still holds it has it
            with pytest.raises(RegionClosed):
                pair.near.read(number, [Span(0, 7)], [bytearray(7)])

    asyncio.run(main())


def test_a_read_when_the_link_ends(address: str) -> None:
    size = 128 * MIB

    async def main() -> None:
        async with linked(address) as pair:
            region, number = await _shared(pair, bytes(size))
            target = bytearray(size)
            read = pair.near.read(number, [Span(0, size)], [target])
            waiting = asyncio.create_task(read.wait())
            await asyncio.sleep(0)
            pair.near.abort()
            with pytest.raises(PeerLost):
                await waiting
            await pair.near.quiet()
            await read.quiet()
            region.close()

    asyncio.run(main())


def test_views_outlive_their_mapping(address: str) -> None:
    async def main() -> memoryview:
        async with linked(address) as pair:
            region, _ = await _shared(pair, b"content")
            view = region.view
            region.close()
            return view

    view = asyncio.run(main())
    gc.collect()
    assert bytes(view) == b"content"
    view.release()


def test_peers_can_not_write() -> None:
    region = ShmRegion(100)
    fd = region.duplicate()
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(fd, 100)
        with pytest.raises(PermissionError):
            os.write(fd, b"x")
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
        assert mmap.mmap(fd, 100, prot=mmap.PROT_READ)[0] == 0
    finally:
        os.close(fd)
        region.close()


@pytest.mark.parametrize("size", [0, -1, 1 << 62])
def test_sizes_that_can_not_be(size: int) -> None:
    with pytest.raises((LocalMisuse, Unsupported)):
        ShmTransport(config()).allocate(size)
    gc.collect()


def test_a_region_that_nobody_closed_leaves_nothing() -> None:
    ShmRegion(100)
    gc.collect()


def test_a_region_of_another_kind(address: str) -> None:
    async def main() -> None:
        async with linked(address) as pair, linked("memory://other") as other:
            with pytest.raises(LocalMisuse):
                await pair.near.share(other.near_transport.allocate(5))
            await pair.near.send(1)
            assert (await pair.far.recv()).kind == 1

    asyncio.run(main())
