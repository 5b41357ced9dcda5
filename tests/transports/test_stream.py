"""What links over sockets share, over tcp and over shm."""

import asyncio
import contextlib
import os
import threading
import tracemalloc
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from tests.transports.linked import an_address, config, linked, scattered
from transports.api import Head, Link
from transports.errors import (
    BodyRefused,
    PeerClosed,
    PeerLost,
    TransportError,
    Unreachable,
)
from transports.registry import make_transport
from transports.stream import TURN_BYTES

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
