"""The socket beside a UCX link: what a peer can make it keep."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from transports.errors import PeerLost, RemoteProtocol
from transports.ucx_bootstrap import MAX_FRAME_BYTES, MAX_WAITING, Bootstrap


def _frame(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


@contextlib.asynccontextmanager
async def _peer() -> AsyncIterator[tuple[Bootstrap, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    bootstrap = Bootstrap(ours)
    with theirs:
        try:
            yield bootstrap, theirs
        finally:
            bootstrap.close(PeerLost("the test is over"))


async def _some_turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_frames_that_nobody_waits_for_are_few() -> None:
    async def main() -> None:
        async with _peer() as (bootstrap, peer):
            peer.sendall(_frame(b"hello") * MAX_WAITING)
            await _some_turns()
            assert bootstrap.error is None
            peer.sendall(_frame(b"hello"))
            await _some_turns()
            assert isinstance(bootstrap.error, RemoteProtocol)

    asyncio.run(main())


def test_who_reads_in_time_gets_any_number() -> None:
    async def main() -> None:
        async with _peer() as (bootstrap, peer):
            for number in range(5 * MAX_WAITING):
                peer.sendall(_frame(b"%d" % number))
                assert await bootstrap.receive() == b"%d" % number

    asyncio.run(main())


def test_a_frame_that_is_too_large() -> None:
    async def main() -> None:
        async with _peer() as (bootstrap, peer):
            peer.sendall(struct.pack("<I", MAX_FRAME_BYTES + 1))
            with pytest.raises(RemoteProtocol):
                await bootstrap.receive()

    asyncio.run(main())
