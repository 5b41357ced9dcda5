"""Checks of how links end: closed, aborted, lost; and what is promised afterwards."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from transports.api import Buffer, Head, Link
from transports.errors import LocalMisuse, PeerClosed, PeerLost
from transports.testing.setup import (
    Setup,
    alive,
    begun,
    both,
    carry,
    expect,
    into,
    meet,
    noise,
    receive,
    send_each,
    turns,
    until,
)

_LARGE = 32 << 20
_IN_PARTS: dict[str, Any] = {"part_bytes": 65536}


async def check_close_comes_after_all_messages(setup: Setup) -> None:
    """A slow reader gets everything, then PeerClosed, every time it asks."""
    async with setup.pair() as pair:
        metas = [b"%d" % number for number in range(500)]
        await send_each(pair.a, metas)
        await pair.a.send(1, b"body", [noise(50_000)])
        await pair.a.close()
        for meta in metas:
            await turns(1)
            assert (await pair.b.recv()).meta == meta
        assert (await receive(pair.b))[1] == noise(50_000)
        for _ in range(2):
            with expect(PeerClosed):
                await pair.b.recv()
            with expect(PeerClosed):
                await pair.b.send(1)
        await pair.b.close()
        await pair.b.quiet()


async def check_close_waits_for_a_send_under_way(setup: Setup) -> None:
    """The body that another task sends arrives whole."""
    data = noise(_LARGE >> 2)
    async with setup.pair(**_IN_PARTS) as pair:
        sending = asyncio.create_task(pair.a.send(1, b"", [data]))
        receiving = asyncio.create_task(receive(pair.b))
        await turns(3)
        await pair.a.close()
        await sending
        assert (await receiving)[1] == data
        with expect(PeerClosed):
            await pair.b.recv()


async def check_after_close_every_call_is_misuse(setup: Setup) -> None:
    """Also for a receive that was waiting when the link was closed."""
    async with setup.pair() as pair:
        waiting = asyncio.create_task(pair.a.recv())
        await pair.b.send(1, b"unread")
        assert (await waiting).meta == b"unread"
        waiting = asyncio.create_task(pair.a.recv())
        await turns(1)
        await pair.a.close()
        with expect(LocalMisuse):
            await waiting
        with expect(LocalMisuse):
            await pair.a.send(1)
        with expect(LocalMisuse):
            await pair.a.recv()


async def check_abort_is_a_loss_on_both_sides(setup: Setup) -> None:
    """For what waits and for what comes later."""
    async with setup.pair() as pair:
        waiting = asyncio.create_task(pair.b.recv())
        offered = asyncio.create_task(pair.b.send(1, b"", [noise(100_000)]))
        await turns(3)
        pair.a.abort()
        for task in (waiting, offered):
            with expect(PeerLost):
                await task
        for link in (pair.a, pair.b):
            with expect(PeerLost):
                await link.send(1)
            with expect(PeerLost):
                await link.recv()
            await link.quiet()


async def check_ending_twice_is_ending_once(setup: Setup) -> None:
    """`close` and `abort` in any order, and at the same time."""
    async with setup.pair() as pair:
        await both(pair.a.close(), pair.a.close())
        await pair.a.close()
        pair.a.abort()
        await pair.a.close()
        pair.b.abort()
        pair.b.abort()
        await both(pair.b.close(), pair.b.close())
        other = await pair.another()
        other.a.abort()
        await other.a.close()
        other.a.abort()
        await other.b.close()


async def check_both_close_at_once(setup: Setup) -> None:
    """No side waits for the other."""
    async with setup.pair(close_s=30.0) as pair:
        await pair.a.send(1, b"unread")
        await both(pair.a.close(), pair.b.close())
        for link in (pair.a, pair.b):
            with expect(LocalMisuse):
                await link.recv()


async def check_closing_frees_who_waits_for_a_verdict(setup: Setup) -> None:
    """A body that was offered and not asked for is not sent any more."""
    async with setup.pair(close_s=30.0) as pair:
        sending = asyncio.create_task(pair.a.send(1, b"", [noise(100_000)]))
        await turns(3)
        await pair.b.close()
        with expect(PeerClosed):
            await sending
        await pair.a.close()


async def check_closing_frees_who_waits_for_credit(setup: Setup) -> None:
    """The peer that would have granted it closes."""
    async with setup.pair(close_s=30.0) as pair:
        sending = asyncio.create_task(send_each(pair.a, [bytes(1000)] * 10_000))
        await asyncio.sleep(0.05)
        assert not sending.done()
        await pair.b.close()
        with expect(PeerClosed):
            await sending


async def check_close_ends_in_bounded_time(setup: Setup) -> None:
    """A peer that never takes the body doesn't keep us."""
    async with setup.pair(close_s=0.2) as pair:
        sending = asyncio.create_task(pair.a.send(1, b"", [noise(100_000)]))
        await turns(3)
        async with asyncio.timeout(2):
            await pair.a.close()
        with expect(PeerLost):
            await sending
        with expect(PeerLost):
            await pair.b.recv()


async def check_closing_in_the_middle_of_a_body(setup: Setup) -> None:
    """Who closes while a body lands here breaks the link: the bytes can't be given back."""
    async with setup.pair(**_IN_PARTS) as pair:
        target = bytearray(_LARGE)
        sending = asyncio.create_task(pair.a.send(1, b"", [noise(_LARGE)]))
        receiving = asyncio.create_task(pair.b.recv(lambda _: [target]))
        await until(lambda: any(target[:16]))
        await pair.b.close()
        with expect(PeerLost):
            await receiving
        with expect(PeerLost):
            await sending


async def check_nothing_lands_after_quiet(setup: Setup) -> None:
    """Either side aborts in the middle of a body: once quiet, the target is ours again."""
    for receiver_aborts in (True, False):
        async with setup.pair(**_IN_PARTS) as pair:
            target = bytearray(_LARGE)
            sending = asyncio.create_task(pair.a.send(1, b"", [noise(_LARGE)]))
            receiving = asyncio.create_task(pair.b.recv(into(target)))
            await until(begun(target))
            (pair.b if receiver_aborts else pair.a).abort()
            with expect(PeerLost):
                await sending
            with expect(PeerLost):
                await receiving
            await pair.a.quiet()
            await pair.b.quiet()
            before = bytes(target)
            await asyncio.sleep(0.02)
            assert target == before
            assert before != noise(_LARGE)


async def check_buffers_are_let_go(setup: Setup) -> None:
    """After a message or an end the transport holds no view: a bytearray can be resized."""
    async with setup.pair(**_IN_PARTS) as pair:
        body, target = bytearray(100_000), bytearray(100_000)
        await both(pair.a.send(1, b"", [body]), pair.b.recv(lambda _: [target]))
        await alive(pair.a, pair.b)
        body.append(0)
        target.append(0)
        offered = bytearray(100_000)
        sending = asyncio.create_task(pair.a.send(1, b"", [offered]))
        await turns(3)
        pair.a.abort()
        with expect(PeerLost):
            await sending
        await pair.a.quiet()
        del sending
        offered.append(0)


async def check_a_view_released_in_use(setup: Setup) -> None:
    """Misuse to who released it, a loss to the peer, which would wait for ever."""
    size, view = 5_000_000, memoryview(b"")

    def place(_: Head) -> list[Buffer]:
        nonlocal view
        view = memoryview(bytearray(size))
        return [view]

    async with setup.pair() as pair:
        offered = memoryview(bytearray(size))
        sending = asyncio.create_task(pair.a.send(1, b"", [offered]))
        await turns(3)
        offered.release()
        with expect(PeerLost):
            await pair.b.recv(into(bytearray(size)))
        with expect(LocalMisuse):
            await sending
    async with setup.pair() as pair:
        sending = asyncio.create_task(pair.a.send(1, b"", [bytes(size)]))
        receiving = asyncio.create_task(pair.b.recv(place))
        await until(lambda: bool(view))
        view.release()
        with expect(LocalMisuse):
            await receiving
        with expect(PeerLost):
            await sending


async def check_leaving_the_context_ends_everything(setup: Setup) -> None:
    """Links that are open are aborted, on both sides; nothing runs on."""
    right = setup.listener()
    async with right.open():
        listening = await right.listen(setup.address())
        left = setup.dialler()
        async with left.open():
            a, b = await both(left.connect(listening.address), listening.accept())
            waiting = asyncio.create_task(a.recv())
            await turns(1)
        with expect(PeerLost):
            await waiting
        with expect(PeerLost):
            await b.recv()
        with expect(LocalMisuse):
            await left.connect(listening.address)
        with expect(LocalMisuse):
            await left.listen(setup.address())
        async with left.open():  # once more
            await alive(*await both(left.connect(listening.address), listening.accept()))
    with expect(LocalMisuse):
        await listening.accept()


async def check_leaving_the_context_leaves_nothing(setup: Setup) -> None:
    """Neither tasks nor descriptors, however its links ended or if they didn't."""
    tasks, descriptors = asyncio.all_tasks(), list[int]()
    for _ in range(3):
        async with setup.transports() as (left, _, listening):
            for end in (Link.close, _abort, None):
                a, b = await meet(left, listening)
                await carry(a, b, noise(100_000))
                if end is not None:
                    await end(a)
        assert asyncio.all_tasks() == tasks
        descriptors.append(_num_descriptors())
    assert descriptors[1] == descriptors[2]  # the first time, a library may open some of its own


async def _abort(link: Link) -> None:
    link.abort()


def _num_descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(os.listdir(folder)) if folder.exists() else 0


async def check_errors_pass_through_the_context(setup: Setup) -> None:
    """What the caller raises comes out as it is, not wrapped."""
    left = setup.dialler()
    mine = ZeroDivisionError("mine")
    try:
        async with left.open():
            raise mine
    except ZeroDivisionError as error:
        assert error is mine  # noqa: PT017 (this suite doesn't depend on pytest)
    else:
        raise AssertionError("the error is gone")


CHECKS: list[Callable[[Setup], Awaitable[None]]] = [
    check_close_comes_after_all_messages,
    check_close_waits_for_a_send_under_way,
    check_after_close_every_call_is_misuse,
    check_abort_is_a_loss_on_both_sides,
    check_ending_twice_is_ending_once,
    check_both_close_at_once,
    check_closing_frees_who_waits_for_a_verdict,
    check_closing_frees_who_waits_for_credit,
    check_close_ends_in_bounded_time,
    check_closing_in_the_middle_of_a_body,
    check_nothing_lands_after_quiet,
    check_buffers_are_let_go,
    check_a_view_released_in_use,
    check_leaving_the_context_ends_everything,
    check_leaving_the_context_leaves_nothing,
    check_errors_pass_through_the_context,
]
