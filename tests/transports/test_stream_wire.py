"""The wire over a stream socket, byte by byte."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable

import pytest

from transports.errors import (
    PeerLost,
    RemoteProtocol,
)
from transports.frame import HEAD_BYTES, MAX_META_BYTES, Frame, Type
from transports.stream import AHEAD_BYTES, StreamWire

MIB = 1 << 20


@contextlib.asynccontextmanager
async def _wire() -> AsyncIterator[tuple[StreamWire, socket.socket]]:
    """A wire, and the bare other end of it."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    wire = StreamWire(ours, "test")
    try:
        yield wire, theirs
    finally:
        wire.abort()
        theirs.close()


def _head(size: int = 0, meta: bytes = b"", number: int = 0) -> bytes:
    return Frame(Type.MESSAGE, number, body_bytes=size, meta=meta).encode()


def test_heads_come_in_any_pieces() -> None:
    async def main() -> None:
        async with _wire() as (wire, peer):
            head = _head(3, b"meta")
            receiving = asyncio.create_task(wire.recv_head())
            for byte in head + b"abc":
                peer.send(bytes([byte]))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert await receiving == head
            into = bytearray(3)
            await wire.recv_body([memoryview(into)[:1], memoryview(into)[1:]])
            assert into == b"abc"
            assert wire.received_bytes == len(head) + 3

    asyncio.run(main())


def test_the_read_ahead_holds_any_heads() -> None:
    heads = [_head(meta=os.urandom(size)) for size in (0, MAX_META_BYTES, 1, 60_000, 9_000, 17)] * 6

    async def main() -> None:
        async with _wire() as (wire, peer):
            loop = asyncio.get_running_loop()
            sending = asyncio.create_task(loop.sock_sendall(peer, b"".join(heads)))
            for head in heads:
                assert await wire.recv_head() == head
            await sending

    asyncio.run(main())


def test_a_head_that_comes_along_with_a_body() -> None:
    body, second = os.urandom(5 * MIB), _head(2, b"later")

    async def main() -> None:
        async with _wire() as (wire, peer):
            loop = asyncio.get_running_loop()
            data = _head(len(body)) + body + second + b"xy"
            sending = asyncio.create_task(loop.sock_sendall(peer, data))
            await wire.recv_head()
            into = bytearray(len(body))
            await wire.recv_body([memoryview(into)])
            assert into == body
            assert await wire.recv_head() == second
            rest = bytearray(2)
            await wire.recv_body([memoryview(rest)])
            assert rest == b"xy"
            await sending

    asyncio.run(main())


@pytest.mark.parametrize(
    "garbage",
    [b"G", b"kX", b"\x16\x03\x01\x02", b"GET / HTTP/1.1\r\n", bytes(200), b"kx\x02" + bytes(60)],
)
def test_garbage_is_no_frame(garbage: bytes) -> None:
    async def main() -> None:
        async with _wire() as (wire, peer):
            peer.send(garbage)
            with pytest.raises(RemoteProtocol):
                await wire.recv_head()

    asyncio.run(main())


@pytest.mark.parametrize("kept", [0, 1, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 2])
def test_an_end_in_mid_frame(kept: int) -> None:
    async def main() -> None:
        async with _wire() as (wire, peer):
            peer.send((_head(5, b"m") + b"12345")[:kept])
            peer.shutdown(socket.SHUT_WR)
            if kept >= HEAD_BYTES + 1:
                await wire.recv_head()
                receiving: Awaitable[object] = wire.recv_body([memoryview(bytearray(5))])
            else:
                receiving = wire.recv_head()
            with pytest.raises(PeerLost):
                await receiving

    asyncio.run(main())


def test_bytes_are_counted_while_a_body_lands() -> None:
    async def main() -> None:
        async with _wire() as (wire, peer):
            peer.send(_head(100))
            await wire.recv_head()
            into, seen = bytearray(100), wire.received_bytes
            receiving = asyncio.create_task(wire.recv_body([memoryview(into)]))
            for count in range(1, 100):
                peer.send(b"x")
                while wire.received_bytes < seen + count:  # noqa: ASYNC110 (nobody tells)
                    await asyncio.sleep(0)
                assert not receiving.done()
            peer.send(b"x")
            await receiving

    asyncio.run(main())


def test_nothing_lands_after_a_cancelled_receive() -> None:
    async def main() -> None:
        async with _wire() as (wire, peer):
            peer.send(_head(100) + b"x" * 50)
            await wire.recv_head()
            into = bytearray(100)
            receiving = asyncio.create_task(wire.recv_body([memoryview(into)]))
            await asyncio.sleep(0.01)
            receiving.cancel()
            peer.send(b"y" * 50)
            with pytest.raises(asyncio.CancelledError):
                await receiving
            for _ in range(5):
                await asyncio.sleep(0.01)
            assert into == b"x" * 50 + bytes(50)

    asyncio.run(main())


def test_calls_after_an_abort() -> None:
    async def main() -> None:
        async with _wire() as (wire, _):
            wire.abort()
            wire.abort()
            for call in (wire.send(_head()), wire.recv_head()):
                with pytest.raises(PeerLost):
                    await call
            await wire.close()
            await wire.quiet()

    asyncio.run(main())


def test_an_abort_wakes_who_waits() -> None:
    async def main() -> None:
        async with _wire() as (wire, _):
            receiving = asyncio.create_task(wire.recv_head())
            sending = asyncio.create_task(wire.send(_head(), [memoryview(bytes(8 * MIB))]))
            await asyncio.sleep(0.01)
            wire.abort()
            for task in (receiving, sending):
                with pytest.raises(PeerLost):
                    await task

    asyncio.run(main())


def test_a_peer_that_reads_no_more() -> None:
    async def main() -> None:
        async with _wire() as (wire, peer):
            sending = asyncio.create_task(wire.send(_head(), [memoryview(bytes(8 * MIB))]))
            await asyncio.sleep(0.01)
            peer.close()
            with pytest.raises(PeerLost):
                await sending

    asyncio.run(main())


def test_a_small_frame_is_one_piece() -> None:
    async def main() -> None:
        async with _wire() as (wire, peer):
            body = [memoryview(b"abc"), memoryview(b"def")]
            await wire.send(_head(6), body)
            assert peer.recv(AHEAD_BYTES) == _head(6) + b"abcdef"

    asyncio.run(main())
