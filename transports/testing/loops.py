"""Checks with several event loops: each in a thread of its own, none knows of the other."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from transports.errors import PeerClosed
from transports.testing.setup import Setup, alive, both, carry, expect, noise, receive

_LARGE = 3_000_000


def _in_threads(*works: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run each in a loop of its own; the first error counts."""
    errors: list[BaseException] = []

    def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            asyncio.run(work())
        except BaseException as error:  # noqa: BLE001 (raised below, in the caller's thread)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


async def check_two_loops_apart(setup: Setup) -> None:
    """A pair in each of two threads; they share nothing."""

    async def work() -> None:
        async with asyncio.timeout(20), setup.pair() as pair:
            for _ in range(5):
                await alive(pair.a, pair.b)
                await both(
                    carry(pair.a, pair.b, noise(_LARGE)), carry(pair.b, pair.a, noise(_LARGE))
                )

    await asyncio.to_thread(_in_threads, work, work)


async def check_two_loops_linked(setup: Setup) -> None:
    """One side of a link in each of two threads."""
    if not setup.other_loops:
        return
    known = threading.Event()
    address = ""

    async def listen() -> None:
        nonlocal address
        right = setup.listener()
        async with asyncio.timeout(20), right.open():
            listening = await right.listen(setup.address())
            address = listening.address
            known.set()
            link = await listening.accept()
            for number in range(5):
                await link.send(1, b"", [noise(_LARGE, number)])
                assert (await receive(link))[1] == noise(_LARGE, -number)
            await link.close()

    async def dial() -> None:
        left = setup.dialler()
        await asyncio.to_thread(known.wait, 10)
        async with asyncio.timeout(20), left.open():
            link = await left.connect(address)
            for number in range(5):
                assert (await receive(link))[1] == noise(_LARGE, number)
                await link.send(1, b"", [noise(_LARGE, -number)])
            with expect(PeerClosed):
                await link.recv()

    await asyncio.to_thread(_in_threads, listen, dial)


CHECKS: list[Callable[[Setup], Awaitable[None]]] = [
    check_two_loops_apart,
    check_two_loops_linked,
]
