"""Descriptors over shm that nobody should send: each is found, and none stays open."""

import asyncio
import contextlib
import fcntl
import os
import resource
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.transports.linked import config, linked
from transports.address import parse
from transports.api import Span
from transports.errors import PeerLost, RemoteProtocol
from transports.frame import Type
from transports.greet import initiate
from transports.link import WireLink
from transports.session import Session
from transports.shm import ShmTransport, ShmWire

MIB = 1 << 20
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"shm://{tmp_path}/s"


class Peer:
    """A peer that passed the handshake, and now does what it likes."""

    def __init__(self, wire: ShmWire, session: Session, link: WireLink) -> None:
        self.wire = wire
        self.session = session
        self.link = link
        self.region = 0

    def send(self, data: bytes, *fds: int) -> None:
        """Bytes, with descriptors; these are closed here."""
        sock = self.wire._sock
        try:
            if fds:
                socket.send_fds(sock, [data], list(fds))
            else:
                sock.sendall(data)
        finally:
            for fd in fds:
                os.close(fd)

    def announce(self, size: int) -> bytes:
        """The frame that announces the next region."""
        self.region += 1
        return self.session.frame(Type.REGION, argument=self.region, body_bytes=size)

    async def caught(self) -> None:
        """The other side finds the fault, and ends the link."""
        async with asyncio.timeout(5):
            with pytest.raises(RemoteProtocol):
                await self.link.recv()
            await self.link.quiet()


@contextlib.asynccontextmanager
async def _peer(address: str) -> AsyncIterator[Peer]:
    async with (
        ShmTransport(config("far")).open() as far,
        ShmTransport(config("near")).open() as near,
    ):
        listener = await far.listen(address)
        wire = await near.dial(parse(address))
        session, _ = await initiate(wire, near.config)
        link = await listener.accept()
        assert isinstance(wire, ShmWire) and isinstance(link, WireLink)
        try:
            yield Peer(wire, session, link)
        finally:
            wire.abort()


def _memfd(size: int, seals: int = SEALS) -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def test_a_region_as_it_should_be(address: str) -> None:
    async def main() -> None:
        async with _peer(address) as peer:
            peer.send(peer.announce(10), _memfd(10))
            peer.send(peer.session.frame(Type.MESSAGE))
            await peer.link.recv()
            target = bytearray(b"x" * 10)
            await peer.link.read(1, [Span(0, 10)], [target]).wait()
            assert target == bytes(10)

    asyncio.run(main())


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_SHRINK, SEALS & ~fcntl.F_SEAL_SHRINK])
def test_a_region_without_its_seals(address: str, seals: int) -> None:
    async def main() -> None:
        async with _peer(address) as peer:
            peer.send(peer.announce(10), _memfd(10, seals))
            await peer.caught()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("announced", "real"),
    [(10, 9), (10, 11), (10, 0), (0, 10), (10, 1 << 41), (1 << 63, 5)],
)
def test_a_region_of_another_size(address: str, announced: int, real: int) -> None:
    async def main() -> None:
        async with _peer(address) as peer:
            peer.send(peer.announce(announced), _memfd(real))
            await peer.caught()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["file", "pipe", "socket", "folder"])
def test_a_region_that_is_no_memory(address: str, kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with _peer(address) as peer:
            if kind == "file":
                fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
                os.ftruncate(fd, 10)
            elif kind == "pipe":
                fd, other = os.pipe()
                os.close(other)
            elif kind == "socket":
                fd = socket.socket().detach()
            else:
                fd = os.open(tmp_path, os.O_RDONLY)
            peer.send(peer.announce(10), fd)
            await peer.caught()

    asyncio.run(main())


def test_a_region_without_a_descriptor(address: str) -> None:
    async def main() -> None:
        async with _peer(address) as peer:
            peer.send(peer.announce(10))
            await peer.caught()

    asyncio.run(main())


def test_a_description_that_is_none(address: str) -> None:
    async def main() -> None:
        async with _peer(address) as peer:
            frame = peer.session.frame(Type.REGION, argument=1, meta=b"more", body_bytes=10)
            peer.send(frame, _memfd(10))
            await peer.caught()

    asyncio.run(main())


@pytest.mark.parametrize("count", [2, 3, 7, 60, 253])
def test_a_region_with_surplus_descriptors(address: str, count: int) -> None:
    async def main() -> None:
        async with _peer(address) as peer:
            fds = [_memfd(10) for _ in range(count)]
            peer.send(peer.announce(10), *fds)
            await peer.caught()

    asyncio.run(main())


def test_a_descriptor_with_another_frame(address: str) -> None:
    async def main() -> None:
        async with _peer(address) as peer:
            peer.send(peer.session.frame(Type.MESSAGE), _memfd(10))
            peer.send(peer.session.frame(Type.MESSAGE))
            with contextlib.suppress(RemoteProtocol):
                await peer.link.recv()
            await peer.caught()

    asyncio.run(main())


def test_descriptors_in_a_body_without_end(address: str) -> None:
    async def main() -> None:
        async with _peer(address) as peer:
            peer.send(peer.session.frame(Type.MESSAGE, body_bytes=50_000))
            with contextlib.suppress(OSError):
                for _ in range(50):
                    peer.send(b"x", _memfd(10))
                    await asyncio.sleep(0)
            await peer.caught()

    asyncio.run(main())


def test_descriptors_in_the_handshake(address: str) -> None:
    async def main() -> None:
        async with (
            ShmTransport(config("far")).open() as far,
            ShmTransport(config("near")).open() as near,
        ):
            await far.listen(address)
            wire = await near.dial(parse(address))
            assert isinstance(wire, ShmWire)
            fd = _memfd(10)
            with contextlib.suppress(OSError):
                for _ in range(5):
                    socket.send_fds(wire._sock, [b"kx"], [fd])
            os.close(fd)
            with pytest.raises((PeerLost, RemoteProtocol)):
                await wire.recv_head()
            wire.abort()

    asyncio.run(main())


def test_descriptors_that_nobody_came_to_read(address: str) -> None:
    async def main() -> None:
        async with _peer(address) as peer:
            for number in range(5):
                peer.send(peer.announce(number + 1), _memfd(number + 1))
            peer.link.abort()
            await peer.link.quiet()

    asyncio.run(main())


def test_half_an_announcement(address: str) -> None:
    async def main() -> None:
        async with _peer(address) as peer:
            peer.send(peer.announce(10)[:20], _memfd(10))
            await asyncio.sleep(0.05)
            peer.wire.abort()
            with pytest.raises(PeerLost):
                await peer.link.recv()

    asyncio.run(main())


def test_announcements_in_pieces(address: str) -> None:
    """The descriptor comes with the first byte; the next region's with the last of this one."""

    async def main() -> None:
        async with _peer(address) as peer:
            for size in (10, 20, 30):
                frame = peer.announce(size)
                peer.send(frame[:1], _memfd(size))
                for byte in frame[1:]:
                    peer.send(bytes([byte]))
                    await asyncio.sleep(0)
            peer.send(peer.session.frame(Type.MESSAGE))
            await peer.link.recv()
            await peer.link.read(3, [Span(0, 30)], [bytearray(30)]).wait()

    asyncio.run(main())


def test_regions_right_behind_a_body(address: str) -> None:
    """The read-ahead at a body's end takes part of an announcement, and its descriptor."""

    async def main() -> None:
        async with _peer(address) as peer:
            body = bytes(60_000)
            peer.send(peer.session.frame(Type.MESSAGE, body_bytes=len(body)))
            await asyncio.sleep(0.02)
            peer.send(body)
            for size in (10, 20):
                peer.send(peer.announce(size), _memfd(size))
            peer.send(peer.session.frame(Type.MESSAGE))
            await peer.link.recv(lambda head: [bytearray(head.body_bytes)])
            await peer.link.recv()
            await peer.link.read(2, [Span(0, 20)], [bytearray(20)]).wait()

    asyncio.run(main())


def test_no_descriptors_are_left_here(address: str) -> None:
    async def main() -> None:
        async with _peer(address) as peer:
            fd = _memfd(10)
            frame = peer.announce(10)
            before = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
            try:
                peer.send(frame, fd)
                await peer.caught()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)

    asyncio.run(main())


def test_a_share_that_is_cut_off_leaks_nothing(address: str) -> None:
    async def main() -> None:
        async with linked(address) as pair, asyncio.TaskGroup() as group:
            region = pair.near_transport.allocate(10)
            sending = group.create_task(pair.near.send(1, b"", [bytes(32 * MIB)]))
            sharing = group.create_task(pair.near.share(region))
            await asyncio.sleep(0.05)  # nobody takes the body yet, but the region goes ahead
            await sharing
            await pair.far.recv(lambda _: [bytearray(32 * MIB)])
            await sending
            wire = pair.near._wire  # type: ignore[attr-defined]
            wire.share(region)
            pair.near.abort()
            assert not wire._fds_out
            region.close()

    asyncio.run(main())
