"""Checks of cancellation: at each await, a call leaves the link as it was or ends it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from transports.api import Head, Link
from transports.errors import PeerClosed, PeerLost, TransportError
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
    until,
)

_LARGE = 32 << 20
_IN_PARTS: dict[str, Any] = {"part_bytes": 65536}
#: A call is cancelled after so many turns of the loop: at its first awaits, then now and then.
_TURNS = (0, 1, 2, 3, 4, 5, 6, 8, 11, 15, 21)


async def _cancel(task: "asyncio.Task[Any]") -> bool:
    """True if it was cancelled, False if it was over before; its own errors come up."""
    task.cancel()
    await asyncio.wait([task])
    if task.cancelled():
        return True
    task.result()
    return False


async def _ended(pair: Pair) -> None:
    for link in (pair.a, pair.b):
        with expect(PeerLost):
            await _until_it_ends(link)
        await link.quiet()


async def _until_it_ends(link: Link) -> None:
    """Receive until the link ends."""
    while True:
        await link.recv()


async def check_a_cancelled_receive_that_waits(setup: Setup) -> None:
    """Nothing is lost; the next receive gets the next message."""
    async with setup.pair() as pair:
        for number in range(20):
            receiving = asyncio.create_task(pair.b.recv())
            await turns(number % 3)
            sending = asyncio.create_task(pair.a.send(1, b"%d" % number))
            await turns(number // 3)
            if await _cancel(receiving):
                head = await pair.b.recv()
            else:
                head = receiving.result()
            assert head == Head(1, b"%d" % number)
            await sending
        await alive(pair.a, pair.b)


async def check_a_cancelled_offer_is_withdrawn(setup: Setup) -> None:
    """A send that only waited for its verdict leaves the link as it was."""
    async with setup.pair() as pair:
        for _ in range(5):
            sending = asyncio.create_task(pair.a.send(1, b"gone", [noise(100_000)]))
            await asyncio.sleep(0.01)
            assert await _cancel(sending)
        await carry(pair.a, pair.b, meta=b"next")
        await alive(pair.a, pair.b)


async def check_an_offer_cancelled_as_it_is_accepted(setup: Setup) -> None:
    """Withdrawal and verdict cross: the receiver goes on to the next message, or the link ends."""
    for after in _TURNS:
        async with setup.pair() as pair:
            sending = asyncio.create_task(pair.a.send(1, b"gone", [noise(1_000_000)]))
            receiving = asyncio.create_task(receive(pair.b))
            await turns(after)
            if not await _cancel(sending):
                assert (await receiving)[1] == noise(1_000_000)
                continue
            try:
                await pair.a.send(2, b"next", [noise(200_000)])
            except PeerLost:  # cancelled in mid-body, or in the last of it
                with contextlib.suppress(PeerLost):
                    assert (await receiving)[1] == noise(1_000_000)
                continue
            head, body = await receiving
            assert (head.meta, body) == (b"next", noise(200_000))
            await alive(pair.a, pair.b)


async def check_a_send_cancelled_in_mid_body_ends_the_link(setup: Setup) -> None:
    """On both sides, and the target is quiet afterwards."""
    async with setup.pair(**_IN_PARTS) as pair:
        target = bytearray(_LARGE)
        sending = asyncio.create_task(pair.a.send(1, b"", [noise(_LARGE)]))
        receiving = asyncio.create_task(pair.b.recv(lambda _: [target]))
        await until(lambda: any(target[:16]))
        assert await _cancel(sending)
        with expect(PeerLost):
            await receiving
        await _ended(pair)


async def check_a_receive_cancelled_in_mid_body_ends_the_link(setup: Setup) -> None:
    """On both sides, and nothing lands after `quiet`."""
    async with setup.pair(**_IN_PARTS) as pair:
        target = bytearray(_LARGE)
        sending = asyncio.create_task(pair.a.send(1, b"", [noise(_LARGE)]))
        receiving = asyncio.create_task(pair.b.recv(lambda _: [target]))
        await until(lambda: any(target[:16]))
        assert await _cancel(receiving)
        await pair.b.quiet()
        before = bytes(target)
        with expect(PeerLost):
            await sending
        await _ended(pair)
        assert target == before


async def check_cancelled_at_each_await(setup: Setup) -> None:
    """Each call, cancelled after each number of turns: the link lives on, or has ended on both
    sides; never half, never wrong bytes.
    """
    calls: list[Callable[[Link], Coroutine[Any, Any, Any]]] = [
        lambda link: link.send(1, b"small", [noise(1000)]),
        lambda link: link.send(1, b"large", [noise(300_000)]),
        receive,
    ]
    async with setup.transports(**_IN_PARTS) as (left, _, listening):
        for call in calls:
            for after in _TURNS:
                a, b = await meet(left, listening)
                await _one_cancelled(call, after, a, b)
                a.abort()


async def _one_cancelled(
    call: Callable[[Link], Coroutine[Any, Any, Any]], after: int, a: Link, b: Link
) -> None:
    """Cancel `call` on a, with b doing what fits; then see whether both sides agree."""
    task = asyncio.create_task(call(a))
    feeding = asyncio.create_task(_feed(b) if call is receive else _drain(b))
    await turns(after)
    try:
        await _cancel(task)
    except TransportError as error:
        raise AssertionError(f"cancelled after {after} turns") from error
    feeding.cancel()
    await asyncio.wait([feeding])
    if not feeding.cancelled():
        feeding.exception()
    try:
        await _talk(a, b)
    except PeerLost:
        for link in (a, b):
            with expect(PeerLost):
                await _until_it_ends(link)


async def _feed(link: Link) -> None:
    await send_each(link, [b"fed"] * 2)
    await link.send(1, b"", [noise(200_000)])


async def _drain(link: Link) -> None:
    while True:
        head, body = await receive(link)
        assert body == noise(1000 if head.meta == b"small" else 300_000)


async def _talk(a: Link, b: Link) -> None:
    """A last message each way, behind whatever is left over."""

    async def until_last(link: Link) -> None:
        while (await receive(link))[0].meta != b"last":
            pass

    await both(
        both(a.send(1, b"last"), until_last(b)),
        both(b.send(1, b"last"), until_last(a)),
    )


async def check_connect_cancelled_at_each_await(setup: Setup) -> None:
    """Nothing is left of it, and the listener takes the next."""
    async with setup.transports() as (left, _, listening):
        for after in _TURNS:
            connecting = asyncio.create_task(left.connect(listening.address))
            await turns(after)
            if not await _cancel(connecting):
                connecting.result().abort()
        link = await left.connect(listening.address)
        await link.send(1, b"hello")
        while True:  # some of the cancelled got as far as the listener's queue
            accepted = await listening.accept()
            with contextlib.suppress(PeerLost, PeerClosed):
                assert (await accepted.recv()).meta == b"hello"
                break
        await alive(link, accepted)


async def check_accept_cancelled_at_each_await(setup: Setup) -> None:
    """No link is lost by it."""
    async with setup.transports() as (left, _, listening):
        for after in _TURNS[:8]:
            accepting = asyncio.create_task(listening.accept())
            connecting = asyncio.create_task(left.connect(listening.address))
            await turns(after)
            cancelled = await _cancel(accepting)
            accepted = await listening.accept() if cancelled else accepting.result()
            await alive(await connecting, accepted)


async def check_close_cancelled_at_each_await(setup: Setup) -> None:
    """The link ends at once instead; the peer sees one end or the other."""
    async with setup.transports(close_s=30.0) as (left, _, listening):
        for after in _TURNS[:8]:
            a, b = await meet(left, listening)
            closing = asyncio.create_task(a.close())
            await turns(after)
            await _cancel(closing)
            if after:
                await a.close()
            else:  # it hadn't begun
                a.abort()
            with expect(PeerLost, PeerClosed):
                await b.recv()


CHECKS: list[Callable[[Setup], Awaitable[None]]] = [
    check_a_cancelled_receive_that_waits,
    check_a_cancelled_offer_is_withdrawn,
    check_an_offer_cancelled_as_it_is_accepted,
    check_a_send_cancelled_in_mid_body_ends_the_link,
    check_a_receive_cancelled_in_mid_body_ends_the_link,
    check_cancelled_at_each_await,
    check_connect_cancelled_at_each_await,
    check_accept_cancelled_at_each_await,
    check_close_cancelled_at_each_await,
]
