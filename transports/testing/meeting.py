"""Checks of how links come about: addresses, listeners, the handshake, who may come."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from transports.address import parse
from transports.api import Peer
from transports.base import WireTransport
from transports.config import SessionConfig
from transports.errors import (
    LocalMisuse,
    PeerClosed,
    PeerLost,
    Refused,
    RemoteProtocol,
    TransportError,
    Unreachable,
)
from transports.frame import Frame, Type, decode
from transports.handshake import make_hello
from transports.testing.setup import Setup, alive, both, carry, expect, meet, turns, until

_TOKEN = b"a secret of sixteen bytes or more"


async def check_who_is_at_the_other_end(setup: Setup) -> None:
    """Each side knows the other's name and incarnation."""
    async with setup.pair({"incarnation": "left 1"}, {"incarnation": "right 2"}) as pair:
        assert pair.a.peer == Peer("listener", "right 2", pair.a.peer.address)
        assert pair.b.peer == Peer("dialler", "left 1", pair.b.peer.address)
        assert pair.a.capabilities == pair.left.capabilities
        assert pair.a.peer.address and pair.b.peer.address
        assert parse(pair.listener.address).scheme == pair.left.scheme


async def check_a_token_that_both_know(setup: Setup) -> None:
    """And an allow-list that names the peer."""
    left, right = (frozenset({name}) for name in ("dialler", "listener"))
    async with setup.pair({"allow": right}, {"allow": left}, token=_TOKEN) as pair:
        await alive(pair.a, pair.b)


async def check_who_may_not_come_is_refused(setup: Setup) -> None:
    """Wrong token, no token, one too many, not on a list: both sides hear Refused, and the
    listener takes the next.
    """
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"token": _TOKEN}, {"token": _TOKEN[::-1]}),
        ({}, {"token": _TOKEN}),
        ({"token": _TOKEN}, {}),
        ({}, {"allow": frozenset({"somebody else"})}),
        ({"allow": frozenset({"somebody else"})}, {}),
    ]
    for dialler, listener in cases:
        async with setup.transports(dialler, listener) as (left, _, listening):
            with expect_refusal():
                await left.connect(listening.address)
            await until(lambda of=listening: of.num_refused)  # type: ignore[misc]
        async with setup.transports({"node_id": "nobody"}, {"allow": frozenset({"dialler"})}) as (
            left,
            _,
            listening,
        ):
            with expect_refusal():
                await left.connect(listening.address)
            second = setup.dialler()
            async with second.open():
                await alive(*await meet(second, listening))


class expect_refusal:
    """Refused, or a kind of it, with the reason."""

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        """Swallow the error that was expected."""
        assert isinstance(error, Refused), f"not refused but {error!r}"
        assert str(error), "no reason given"
        return True


async def check_addresses_that_do_not_work(setup: Setup) -> None:
    """Nobody listens, in use, nonsense: said at once, and nothing is left of it."""
    async with setup.transports(handshake_s=2.0) as (left, right, listening):
        scheme = left.scheme
        for address in ("", "nonsense", "other://name", f"{scheme}://", f"{scheme}://?a=b"):
            with expect(LocalMisuse):
                await left.connect(address)
            with expect(LocalMisuse):
                await right.listen(address)
        with expect(Unreachable):
            await right.listen(listening.address)
        await listening.close()
        with expect(Unreachable):
            await left.connect(listening.address)
        again = await right.listen(listening.address)
        assert again.address == listening.address
        await alive(*await meet(left, again))


async def check_only_open_transports_work(setup: Setup) -> None:
    """And each is open once at a time."""
    left = setup.dialler()
    address = setup.address()
    with expect(LocalMisuse):
        await left.connect(address)
    with expect(LocalMisuse):
        await left.listen(address)
    async with left.open():
        with expect(LocalMisuse):
            async with left.open():
                pass


async def check_a_closed_listener(setup: Setup) -> None:
    """Who waits for a link gets LocalMisuse; links that were accepted go on, others end."""
    async with setup.transports() as (left, _, listening):
        a, b = await meet(left, listening)
        unaccepted = await left.connect(listening.address)
        for _ in range(100):
            await asyncio.sleep(0)
        await listening.close()
        await listening.close()
        with expect(LocalMisuse):
            await listening.accept()
        with expect(PeerLost):
            await unaccepted.recv()
        await alive(a, b)
    async with setup.transports() as (_, _, listening):
        waiting = [asyncio.create_task(listening.accept()) for _ in range(2)]
        await turns(1)
        await listening.close()
        for task in waiting:
            with expect(LocalMisuse):
                await task


async def check_a_listener_closed_during_handshakes(setup: Setup) -> None:
    """Who is in the middle of one gets an error soon, or a link that has ended."""
    for after in (0, 1, 2, 3, 4, 6, 8, 12):
        async with setup.transports(handshake_s=0.5) as (left, _, listening):
            connecting = [asyncio.create_task(left.connect(listening.address)) for _ in range(3)]
            await turns(after)
            await listening.close()
            async with asyncio.timeout(3):
                for task in connecting:
                    try:
                        link = await task
                    except (Unreachable, RemoteProtocol):
                        continue
                    with expect(PeerLost, PeerClosed):
                        await link.recv()


async def check_leaving_the_context_during_a_handshake(setup: Setup) -> None:
    """Who dials then gets an error soon."""
    for after in (0, 1, 2, 3, 4, 6, 8, 12):
        async with setup.transports(handshake_s=5.0) as (_, _, listening):
            left = setup.dialler()
            async with left.open():
                connecting = asyncio.create_task(left.connect(listening.address))
                await turns(after)
            async with asyncio.timeout(3):
                try:
                    link = await connecting
                except TransportError:
                    continue
                with expect(PeerLost):
                    await link.recv()


async def check_strangers_do_not_disturb(setup: Setup) -> None:
    """Who says nothing, or nonsense, is cut off; meanwhile others come and go."""
    async with setup.transports(handshake_s=1.0) as (left, _, listening):
        assert isinstance(left, WireTransport)
        silent = await left.dial(parse(listening.address))
        rude = await left.dial(parse(listening.address))
        try:
            await rude.send(Frame(Type.BYE, 7).encode())
            await alive(*await meet(left, listening))
            for wire in (silent, rude):
                with expect(PeerLost):
                    while True:
                        await wire.recv_head()
            assert listening.num_refused == 2  # type: ignore[attr-defined]
            await alive(*await meet(left, listening))
        finally:
            for wire in (silent, rude):
                wire.abort()
                await wire.quiet()


async def check_another_version_is_refused(setup: Setup) -> None:
    """With a reason, before anything else is said."""
    async with setup.transports() as (left, _, listening):
        assert isinstance(left, WireTransport)
        wire = await left.dial(parse(listening.address))
        try:
            hello = json.loads(make_hello(SessionConfig(node_id="x"), bytes(32)).raw)
            hello["protocol"] = 99
            await wire.send(Frame(Type.HELLO, 0, meta=json.dumps(hello).encode()).encode())
            answer = decode(await wire.recv_head())
            assert answer.type is Type.REFUSED
            assert b"99" in answer.meta
        finally:
            wire.abort()
            await wire.quiet()
        await alive(*await meet(left, listening))


async def check_two_links_between_the_same_peers(setup: Setup) -> None:
    """Also when both dialled at the same time, and in opposite directions."""
    async with setup.transports() as (left, right, listening):
        other = await left.listen(setup.address())
        (a, b), (c, d) = await both(meet(left, listening), meet(right, other))
        assert len({id(link) for link in (a, b, c, d)}) == 4
        await both(carry(a, b, bytes(100_000)), carry(c, d, bytes(100_000)))
        a.abort()
        await alive(c, d)


CHECKS: list[Callable[[Setup], Awaitable[None]]] = [
    check_who_is_at_the_other_end,
    check_a_token_that_both_know,
    check_who_may_not_come_is_refused,
    check_addresses_that_do_not_work,
    check_only_open_transports_work,
    check_a_closed_listener,
    check_a_listener_closed_during_handshakes,
    check_leaving_the_context_during_a_handshake,
    check_strangers_do_not_disturb,
    check_another_version_is_refused,
    check_two_links_between_the_same_peers,
]
