"""What links over sockets share, over tcp and shm; and the wire under them, byte by byte."""

import asyncio
import contextlib
import os
import socket
import threading
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.transports.linked import SHORT, Linked, an_address, config, linked, scattered
from transports.api import Head, Link
from transports.errors import (
    BodyRefused,
    LocalMisuse,
    PeerClosed,
    PeerLost,
    RemoteProtocol,
    TransportError,
    Unreachable,
)
from transports.frame import HEAD_BYTES, MAX_META_BYTES, Frame, Type
from transports.registry import make_transport
from transports.stream import AHEAD_BYTES, TURN_BYTES, StreamWire

MIB = 1 << 20


@pytest.fixture(params=["tcp", "shm"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return an_address(request.param, tmp_path)


# -- links -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        ([1], [1]),
        ([65_536], [65_536]),
        ([65_537], [1, 65_536]),
        ([3 * MIB, 1, 5, 2 * MIB], [1, MIB, 4 * MIB + 5]),
        ([100] * 5_000, [500_000]),
        ([500_000], [100] * 5_000),
        ([7_777] * 3_000, [9_999] * 2_333 + [3_333]),
        ([20 * MIB], [20 * MIB]),
    ],
    ids=lambda sizes: f"{len(sizes)}x{sizes[0]}",
)
def test_bodies_land_where_they_should(address: str, sent: list[int], received: list[int]) -> None:
    assert sum(sent) == sum(received)
    source = bytearray(os.urandom(sum(sent) + len(sent)))
    target = bytearray(sum(received) + len(received))

    async def main() -> None:
        async with linked(address) as pair:
            views = scattered(target, received)
            async with asyncio.TaskGroup() as group:
                group.create_task(pair.near.send(7, b"meta", scattered(source, sent)))
                head = await pair.far.recv(lambda _: views)
            assert head == Head(7, b"meta", sum(sent))
            assert b"".join(views) == b"".join(scattered(source, sent))
            gaps = len(target) - sum(received)
            assert target.count(0) >= gaps

    asyncio.run(main())


def test_messages_of_all_sizes_keep_their_order(address: str) -> None:
    sizes = [0, 1, 43, 44, 45, 1_000, 65_535, 65_536, 65_537, 200_000, 0, 0, 5] * 8

    async def main() -> None:
        async with linked(address, checksum_bodies=True) as pair, asyncio.TaskGroup() as group:

            async def send() -> None:
                for number, size in enumerate(sizes):
                    body = [bytes([number % 256]) * size] if size else []
                    await pair.near.send(number % 256, os.urandom(number), body)

            group.create_task(send())
            for number, size in enumerate(sizes):
                body = bytearray(size)
                head = await pair.far.recv(lambda _, body=body: [body])  # type: ignore[misc]
                assert (head.kind, len(head.meta), head.body_bytes) == (number % 256, number, size)
                assert body == bytes([number % 256]) * size

    asyncio.run(main())


@pytest.mark.parametrize("size", [10, 60_000, 3 * MIB])
def test_what_was_sent_before_a_close_arrives(address: str, size: int) -> None:
    async def main() -> None:
        async with linked(address) as pair, asyncio.TaskGroup() as group:

            async def send() -> None:
                await pair.near.send(1, b"", [bytes(size)])
                await pair.near.close()

            group.create_task(send())
            await asyncio.sleep(0.05)
            assert (await pair.far.recv(lambda _: [bytearray(size)])).body_bytes == size
            with pytest.raises(PeerClosed):
                await pair.far.recv()

    asyncio.run(main())


def test_close_right_after_send_never_loses_the_message(address: str) -> None:
    async def main() -> None:
        async with (
            make_transport(address, config("near")).open() as near,
            make_transport(address, config("far")).open() as far,
        ):
            listener = await far.listen(address)
            for number in range(50):
                link = await near.connect(listener.address)
                accepted = await listener.accept()
                await link.send(number, b"last words")
                async with asyncio.TaskGroup() as group:
                    group.create_task(link.close())
                    if number % 2:
                        await asyncio.sleep(0)
                    assert (await accepted.recv()).kind == number
                with pytest.raises(PeerClosed):
                    await accepted.recv()

    asyncio.run(main())


@pytest.mark.parametrize("side", ["near", "far"])
def test_an_abort_is_seen_at_once(address: str, side: str) -> None:
    async def main() -> None:
        # The link's own deadlines are far away: only the connection can tell.
        async with linked(address, keepalive_s=30.0, lost_after_s=90.0) as pair:
            ends, waits = (pair.near, pair.far) if side == "near" else (pair.far, pair.near)
            await ends.send(1)
            ends.abort()
            async with asyncio.timeout(10):
                await waits.recv()
                with pytest.raises(PeerLost):
                    await waits.recv()
                with pytest.raises(PeerLost):
                    await waits.send(1)
                await waits.quiet()
                await ends.quiet()

    asyncio.run(main())


def test_an_abort_in_mid_body_leaves_the_rest_untouched(address: str) -> None:
    source, target = bytes([255]) * (64 * MIB), bytearray(64 * MIB)

    async def main() -> None:
        async with linked(address) as pair, asyncio.TaskGroup() as group:

            async def cut() -> None:
                while not target[0]:  # noqa: ASYNC110 (nobody tells)
                    await asyncio.sleep(0)
                pair.near.abort()

            sending = group.create_task(_outcome(pair.near.send(1, b"", [source])))
            group.create_task(cut())
            with pytest.raises(PeerLost):
                await pair.far.recv(lambda _: [target])
            await pair.far.quiet()
            before = bytes(target)
            assert isinstance(await sending, PeerLost)
            await asyncio.sleep(0.05)
            assert target == before and not target[-1]

    asyncio.run(main())


async def _outcome(work: Awaitable[object]) -> object:
    """What it raised, or returned."""
    try:
        return await work
    except TransportError as error:
        return error


def test_a_slow_reader_costs_its_window_and_no_more(address: str) -> None:
    window = 1 << 18

    async def main() -> None:
        async with linked(address, window_bytes=window, eager_bytes=1 << 14) as pair:
            sent = 0

            async def send() -> None:
                nonlocal sent
                while True:
                    await pair.near.send(1, b"", [bytes(8_192)])
                    sent += 1

            tracemalloc.start()
            task = asyncio.create_task(send())
            for _ in range(20):
                await asyncio.sleep(0.02)
            assert 0 < sent <= window // 8_192
            assert tracemalloc.get_traced_memory()[1] < 3 * window
            tracemalloc.stop()
            for _ in range(3 * sent):  # and goes on when the reader does
                await pair.far.recv(lambda head: [bytearray(head.body_bytes)])
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(main())


def test_the_loop_has_its_turns_during_a_body(address: str) -> None:
    size = 32 * TURN_BYTES

    async def main() -> None:
        async with linked(address) as pair, asyncio.TaskGroup() as group:
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    await asyncio.sleep(0)
                    turns += 1

            counting = group.create_task(count())
            group.create_task(pair.near.send(1, b"", [bytes(size)]))
            await pair.far.recv(lambda _: [bytearray(size)])
            counting.cancel()
            assert turns >= size // TURN_BYTES

    asyncio.run(main())


def test_both_directions_at_once(address: str) -> None:
    size, rounds = 6 * MIB, 4

    async def main() -> None:
        async with linked(address) as pair, asyncio.TaskGroup() as group:

            async def send(link: Link, fill: int) -> None:
                for _ in range(rounds):
                    await link.send(fill, b"", [bytes([fill]) * size])

            async def recv(link: Link, fill: int) -> None:
                for _ in range(rounds):
                    body = bytearray(size)
                    await link.recv(lambda _, body=body: [body])  # type: ignore[misc]
                    assert body == bytes([fill]) * size

            for link, out, into in ((pair.near, 1, 2), (pair.far, 2, 1)):
                group.create_task(send(link, out))
                group.create_task(recv(link, into))

    asyncio.run(main())


def test_many_links_at_once(address: str) -> None:
    async def main() -> None:
        async with (
            make_transport(address, config("near")).open() as near,
            make_transport(address, config("far")).open() as far,
        ):
            listener = await far.listen(address)

            async def ask(number: int) -> None:
                link = await near.connect(listener.address)
                await link.send(number, b"", [bytes([number]) * 70_000])
                body = bytearray(70_000)
                assert (await link.recv(lambda _: [body])).kind == number
                assert body == bytes([number]) * 70_000
                await link.close()

            async def answer() -> None:
                link = await listener.accept()
                body = bytearray(70_000)
                head = await link.recv(lambda _: [body])
                await link.send(head.kind, b"", [body])
                with pytest.raises(PeerClosed):
                    await link.recv()

            async with asyncio.TaskGroup() as group:
                for number in range(60):
                    group.create_task(answer())
                    group.create_task(ask(number))

    asyncio.run(main())


async def _talk(address: str) -> None:
    async with linked(address) as pair, asyncio.TaskGroup() as group:
        for size in (10, 300_000, 3 * MIB):
            source, target = os.urandom(size), bytearray(size)
            group.create_task(pair.near.send(1, b"", [source]))
            await pair.far.recv(lambda _, target=target: [target])  # type: ignore[misc]
            assert target == source
        await pair.near.close()
        with pytest.raises(PeerClosed):
            await pair.far.recv()


def test_two_loops_in_two_threads(address: str) -> None:
    failures: list[BaseException] = []

    def listen(ready: threading.Event, where: list[str]) -> None:
        async def main() -> None:
            async with make_transport(address, config("far")).open() as transport:
                listener = await transport.listen(address)
                where.append(listener.address)
                ready.set()
                link = await listener.accept()
                for _ in range(20):
                    body = bytearray(MIB)
                    head = await link.recv(lambda _, body=body: [body])  # type: ignore[misc]
                    await link.send(head.kind, b"", [body])
                with pytest.raises(PeerClosed):
                    await link.recv()

        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 (the main thread raises it)
            failures.append(error)
            ready.set()

    async def ask(where: str) -> None:
        async with make_transport(address, config("near")).open() as transport:
            link = await transport.connect(where)
            for number in range(20):
                source, target = os.urandom(MIB), bytearray(MIB)
                await link.send(number, b"", [source])
                await link.recv(lambda _, target=target: [target])  # type: ignore[misc]
                assert source == target
            await link.close()

    ready, where = threading.Event(), list[str]()
    thread = threading.Thread(target=listen, args=(ready, where))
    thread.start()
    ready.wait(10)
    try:
        asyncio.run(ask(where[0]))
    finally:
        thread.join(10)
    assert not failures


@pytest.fixture(scope="module")
def uvloop() -> Any:
    """The module; its first loop makes a pipe that the process keeps, so that is done by now."""
    module = pytest.importorskip("uvloop")
    module.new_event_loop().close()
    return module


def test_uvloop(address: str, uvloop: Any) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_talk(address))


# -- cancelled at each await -----------------------------------------------------------------------


async def _cancelled_after(turns: int, work: Callable[[], Awaitable[Any]]) -> tuple[bool, Any]:
    """Whether `work` was cancelled, after so many turns of the loop; else what came of it."""
    task = asyncio.ensure_future(work())
    for _ in range(turns):
        await asyncio.sleep(0)
        if task.done():
            break
    task.cancel()
    try:
        return False, await task
    except asyncio.CancelledError:
        return True, None
    except TransportError as error:
        return False, error


@contextlib.asynccontextmanager
async def _echo(address: str) -> AsyncIterator[Linked]:
    """A pair whose far side sends everything back."""

    async def echo(link: Link) -> None:
        with contextlib.suppress(TransportError):
            body = memoryview(bytearray(MIB))
            while True:
                head = await link.recv(lambda head: [body[: head.body_bytes]])
                await link.send(head.kind, head.meta, [body[: head.body_bytes]])

    async with linked(address) as pair, asyncio.TaskGroup() as group:
        task = group.create_task(echo(pair.far))
        try:
            yield pair
        finally:
            task.cancel()


@pytest.mark.parametrize("size", [0, 100, MIB])
def test_cancelled_sends_and_receives(address: str, size: int) -> None:
    """At each turn: the link is as good as before, or it has ended; never something between."""

    async def main(turns: int) -> bool:
        async with _echo(address) as pair:
            link, body = pair.near, bytearray(size)

            async def ask() -> None:
                await link.send(1, b"first", [bytes(size)])
                await link.recv(lambda _: [body])

            cancelled, _ = await _cancelled_after(turns, ask)
            try:
                async with asyncio.timeout(10):
                    await link.send(2, b"second")
                    heads = [await link.recv(lambda h: [bytearray(h.body_bytes)])]
                    while heads[-1].kind != 2:
                        heads.append(await link.recv(lambda h: [bytearray(h.body_bytes)]))
            except PeerLost:
                assert cancelled
            return cancelled

    turns = 0
    while asyncio.run(main(turns)):
        turns += 1
    assert turns > 2


def test_cancelled_connects(address: str) -> None:
    async def main() -> None:
        async with (
            make_transport(address, config("near")).open() as near,
            make_transport(address, config("far")).open() as far,
        ):
            listener = await far.listen(address)
            turns = 0
            while True:
                cancelled, link = await _cancelled_after(
                    turns, lambda: near.connect(listener.address)
                )
                if not cancelled:
                    break
                turns += 1
            assert turns > 2
            await link.send(1, b"after all")
            while True:
                accepted = await listener.accept()
                try:
                    head = await accepted.recv()
                    break
                except PeerLost:
                    pass  # one that was cancelled late
            assert head.meta == b"after all"

    asyncio.run(main())


def test_cancelled_accepts_lose_nobody(address: str) -> None:
    async def main() -> None:
        async with (
            make_transport(address, config("near")).open() as near,
            make_transport(address, config("far")).open() as far,
        ):
            listener = await far.listen(address)
            for turns in range(12):
                connecting = asyncio.create_task(near.connect(listener.address))
                cancelled, accepted = await _cancelled_after(turns, listener.accept)
                link = await connecting
                if cancelled:
                    accepted = await listener.accept()
                await link.send(turns)
                assert (await accepted.recv()).kind == turns
                link.abort()

    asyncio.run(main())


def test_cancelled_closes_end_the_link(address: str) -> None:
    async def main(turns: int) -> bool:
        async with linked(address, **SHORT) as pair:
            cancelled, outcome = await _cancelled_after(turns, pair.near.close)
            assert outcome is None
            async with asyncio.timeout(10):
                with pytest.raises((PeerClosed, PeerLost)):
                    await pair.far.recv()
                with pytest.raises((LocalMisuse, PeerClosed, PeerLost)):
                    await pair.near.send(1)
                await pair.near.close()
                await pair.near.quiet()
            return cancelled

    turns = 1  # before that it hasn't begun
    while asyncio.run(main(turns)):
        turns += 1
    assert turns > 2


def test_refused_bodies_leave_the_link_good(address: str) -> None:
    def refuse(head: Head) -> list[bytearray]:
        raise BodyRefused("no room")

    async def main() -> None:
        async with linked(address) as pair, asyncio.TaskGroup() as group:
            sending = group.create_task(_outcome(pair.near.send(1, b"", [bytes(MIB)])))
            with pytest.raises(BodyRefused):
                await pair.far.recv(refuse)
            assert isinstance(await sending, BodyRefused)
            group.create_task(pair.near.send(2))
            assert (await pair.far.recv()).kind == 2

    asyncio.run(main())


def test_nobody_listens(address: str, tmp_path: Path) -> None:
    async def main() -> None:
        where = address
        async with make_transport(address, config()).open() as transport:
            if address.startswith("tcp"):
                listener = await transport.listen(address)
                where = listener.address
                await listener.close()
            with pytest.raises(Unreachable):
                await transport.connect(where)

    asyncio.run(main())


def test_an_address_in_use(address: str) -> None:
    async def main() -> None:
        async with make_transport(address, config()).open() as transport:
            listener = await transport.listen(address)
            with pytest.raises(Unreachable, match="in use"):
                await transport.listen(listener.address)
            await listener.close()
            again = await transport.listen(listener.address)
            assert again.address == listener.address

    asyncio.run(main())


# -- the wire --------------------------------------------------------------------------------------


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
