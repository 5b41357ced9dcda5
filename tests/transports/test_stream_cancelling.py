"""Calls on links over sockets, cancelled at each turn of the loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.transports.linked import SHORT, Linked, an_address, config, linked
from transports.api import Link
from transports.errors import (
    LocalMisuse,
    PeerClosed,
    PeerLost,
    TransportError,
)
from transports.registry import make_transport

MIB = 1 << 20


@pytest.fixture(params=["tcp", "shm"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return an_address(request.param, tmp_path)


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
