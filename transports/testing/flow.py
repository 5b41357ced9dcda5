"""Checks of credit and keep-alive: slow readers cost little, and nobody is forgotten."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from transports.api import Link
from transports.errors import BodyRefused, PeerLost
from transports.session import cost
from transports.testing.setup import (
    Pair,
    Setup,
    alive,
    both,
    carry,
    expect,
    meet,
    noise,
    receive,
    send_each,
    turns,
)

#: The smallest window that there can be.
_TIGHT: dict[str, Any] = {"eager_bytes": 1024, "window_bytes": 2 * (1024 + 0xFFFF)}
_WINDOW = 2 * (1024 + 0xFFFF)
_IMPATIENT: dict[str, Any] = {"keepalive_s": 0.1, "lost_after_s": 0.5}


async def _fill(pair: Pair, body: bytes) -> int:
    """Send until there is no more credit; how many messages passed."""
    count = 0
    while True:
        try:
            async with asyncio.timeout(0.1):
                await pair.a.send(1, b"%d" % count, [body])
        except TimeoutError:
            return count
        count += 1


async def check_a_slow_reader_costs_a_window(setup: Setup) -> None:
    """What lies unread stays below `window_bytes`; the link lives, and nothing is lost."""
    async with setup.pair(**_TIGHT, **_IMPATIENT) as pair:
        count = await _fill(pair, noise(1000))
        assert 0 < count * cost(1, 1000) <= _WINDOW, count
        await asyncio.sleep(0.7)  # silence would have ended it by now
        await carry(pair.b, pair.a, noise(500_000))  # the other direction isn't held up
        for number in range(count):
            head, body = await receive(pair.b)
            assert (head.meta, body) == (b"%d" % number, noise(1000))
        await alive(pair.a, pair.b)


async def check_credit_comes_back(setup: Setup) -> None:
    """After many windows' worth, a window is as large as at first."""
    async with setup.pair(**_TIGHT) as pair:
        first = await _fill(pair, bytes(100))
        for _ in range(first):
            await receive(pair.b)
        for number in range(700):
            await carry(pair.a, pair.b, bytes(number % 1000))
        assert await _fill(pair, bytes(100)) > first * 3 // 4


async def check_refused_messages_return_their_credit(setup: Setup) -> None:
    """Small or large."""
    async with setup.pair(**_TIGHT) as pair:
        num = 2 * _WINDOW // cost(900, 0)
        for size in (1000, 2000):
            for _ in range(num):
                sending = asyncio.create_task(pair.a.send(1, bytes(900), [bytes(size)]))
                with expect(BodyRefused):
                    await pair.b.recv()
                await asyncio.wait([sending])
                sending.exception()
        await alive(pair.a, pair.b)


async def check_cancelled_messages_return_their_credit(setup: Setup) -> None:
    """Those that waited for credit, and offers that were withdrawn."""
    async with setup.pair(**_TIGHT) as pair:

        async def until_last() -> None:
            while True:
                with contextlib.suppress(BodyRefused):  # when it came to that before the withdrawal
                    if (await pair.b.recv()).meta == b"last":
                        return

        draining = asyncio.create_task(until_last())
        for _ in range(2 * _WINDOW // cost(4000, 0)):
            sending = asyncio.create_task(pair.a.send(1, bytes(4000), [bytes(2000)]))
            await turns(2)
            sending.cancel()
            await asyncio.wait([sending])
            if not sending.cancelled():
                sending.exception()
        await pair.a.send(1, b"last")
        await draining
        await alive(pair.a, pair.b)


async def check_an_idle_link_lives(setup: Setup) -> None:
    """Keep-alive needs nobody to send or receive."""
    async with setup.pair(**_IMPATIENT) as pair:
        await asyncio.sleep(0.7)
        await alive(pair.a, pair.b)


async def check_bulk_leaves_room_for_control(setup: Setup) -> None:
    """While a large body goes one way, small messages go the other, and neither side is silent."""
    data = noise(64 << 20)
    async with setup.pair(part_bytes=128 << 10, **_IMPATIENT) as pair:
        bulk = asyncio.create_task(both(pair.a.send(1, b"", [data]), receive(pair.b)))
        for number in range(4):
            await carry(pair.b, pair.a, b"%d" % number)
        assert not bulk.done(), "small messages came only when the large one had passed"
        _, (_, body) = await bulk
        assert body == data


async def check_many_links(setup: Setup) -> None:
    """Between the same transports; each has its own order, credit and end."""
    async with setup.transports() as (left, right, listening):
        del right
        links = [await meet(left, listening) for _ in range(8)]

        async def use(number: int, a: Link, b: Link) -> None:
            for size in (10, 100_000, 1_000_000):
                await both(carry(a, b, noise(size, number)), carry(b, a, noise(size, -number)))

        async with asyncio.TaskGroup() as group:
            for number, (a, b) in enumerate(links):
                group.create_task(use(number, a, b))
        links[0][0].abort()
        with expect(PeerLost):
            await links[0][1].recv()
        await links[1][1].close()
        for a, b in links[2:]:
            await alive(a, b)


async def check_a_waiting_receiver_does_not_stop_senders(setup: Setup) -> None:
    """Receive first, send later, in both directions and with both sizes."""
    async with setup.pair() as pair:
        for size in (10, 100_000):
            receiving = [asyncio.create_task(receive(link)) for link in (pair.a, pair.b)]
            await turns(2)
            await both(pair.a.send(1, b"", [noise(size)]), pair.b.send(1, b"", [noise(size)]))
            for task in receiving:
                assert (await task)[1] == noise(size)


async def check_a_burst_before_anyone_receives(setup: Setup) -> None:
    """Messages within the window need no receiver; they wait in order."""
    async with setup.pair() as pair:
        metas = [b"%d" % number for number in range(1000)]
        await both(send_each(pair.a, metas), send_each(pair.b, metas))
        for link in (pair.a, pair.b):
            assert [(await link.recv()).meta for _ in metas] == metas


CHECKS: list[Callable[[Setup], Awaitable[None]]] = [
    check_a_slow_reader_costs_a_window,
    check_credit_comes_back,
    check_refused_messages_return_their_credit,
    check_cancelled_messages_return_their_credit,
    check_an_idle_link_lives,
    check_bulk_leaves_room_for_control,
    check_many_links,
    check_a_waiting_receiver_does_not_stop_senders,
    check_a_burst_before_anyone_receives,
]
