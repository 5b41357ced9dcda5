"""Checks with faults between links and wires: what networks do, and what no wire may do.

Each runs a conversation whose every message is known in advance, so that whatever is received can
be judged: right, or the end.
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from transports.api import Link, Listener, Transport
from transports.errors import (
    LocalMisuse,
    PeerClosed,
    PeerLost,
    Refused,
    RemoteProtocol,
    TransportError,
    Unreachable,
)
from transports.faults import LIES, Direction, Fault, Kind, Part, Plan, random_plan
from transports.frame import HEAD_BYTES, Type
from transports.testing.setup import Setup, alive, both, expect, into, meet, noise, receive

_SIZES = (0, 10, 3000, 5000, 200_000, 7, 70_000, 4096)
QUICK: dict[str, Any] = {
    "eager_bytes": 4096,
    "part_bytes": 65536,
    "keepalive_s": 0.05,
    "lost_after_s": 0.25,
    "close_s": 1.0,
    "handshake_s": 1.0,
    "checksum_bodies": True,
}


_DIRECTIONS: tuple[Direction, ...] = ("out", "in")
#: Type, number, part, offset, mask of a byte to damage.
_DAMAGE: tuple[tuple[Type, int, Part, int, int], ...] = (
    (Type.MESSAGE, 1, "head", 3, 1),
    (Type.MESSAGE, 0, "meta", 0, 0x80),
    (Type.MESSAGE, 2, "body", 77, 4),
    (Type.BODY, 1, "head", 9, 0xFF),
    (Type.BODY, 1, "body", 30_000, 1),
)


@dataclass(slots=True)
class _Talk:
    """One side of a conversation."""

    sent: int = 0
    received: int = 0
    errors: list[TransportError] = field(default_factory=list)


async def _side(link: Link, rounds: int, talk: _Talk) -> None:
    """Send and receive all messages, or as far as it goes."""
    sizes = _SIZES * rounds

    async def send() -> None:
        for number, size in enumerate(sizes):
            await link.send(number % 256, b"%d" % number, [noise(size, number)])
            talk.sent += 1

    async def recv() -> None:
        for number, size in enumerate(sizes):
            head, body = await receive(link)
            assert (head.kind, head.meta) == (number % 256, b"%d" % number), head
            assert body == noise(size, number), f"wrong bytes in message {number}"
            talk.received += 1

    async def one(work: "asyncio.Task[None]") -> None:
        try:
            await work
        except TransportError as error:
            talk.errors.append(error)
            link.abort()

    async with asyncio.TaskGroup() as group:
        for work in (send(), recv()):
            group.create_task(one(asyncio.ensure_future(work)))


async def _converse(a: Link, b: Link, rounds: int = 1) -> tuple[_Talk, _Talk]:
    """Both sides of it; afterwards each side has all messages, or errors."""
    talks = _Talk(), _Talk()
    async with asyncio.timeout(10):
        await both(_side(a, rounds, talks[0]), _side(b, rounds, talks[1]))
    for mine, other in (talks, talks[::-1]):
        assert mine.errors or mine.sent == mine.received == len(_SIZES) * rounds
        assert mine.received <= other.sent + 1  # the last may have arrived and not been told
    return talks


async def whatever_happens(setup: Setup, rounds: int = 1) -> tuple[list[TransportError], ...]:
    """Meet and converse; errors of both sides, the meeting's too."""
    async with setup.transports(**QUICK) as (left, right, listening):
        async with asyncio.timeout(10):
            connecting = asyncio.create_task(left.connect(listening.address))
            accepting = asyncio.create_task(listening.accept())
            try:
                a = await connecting
            except (Unreachable, Refused, RemoteProtocol) as error:
                accepting.cancel()
                await asyncio.wait([accepting])
                return [error], [error]
            done, _ = await asyncio.wait([accepting], timeout=2)
            if not done:  # it was refused there, after it had passed here
                accepting.cancel()
                await asyncio.wait([accepting])
                with expect(PeerLost, PeerClosed):
                    await a.recv()
                return [PeerLost("refused")], [PeerLost("refused")]
            b = accepting.result()
            talks = await _converse(a, b, rounds)
            if talks[0].errors or talks[1].errors:
                await _both_end(a, b)
        del right
        return talks[0].errors, talks[1].errors


async def _both_end(a: Link, b: Link) -> None:
    """Also a side that had done its part before the end hears of it."""
    for link in (a, b):
        with expect(PeerLost, RemoteProtocol):
            while True:
                await receive(link)


def lost(errors: Sequence[Sequence[TransportError]]) -> bool:
    """Nothing but losses; one side may have been done before."""
    found = [error for side in errors for error in side]
    return bool(found) and all(isinstance(error, PeerLost) for error in found)


def sided(setup: Setup, fault: Fault, dialler: bool) -> Setup:
    """The same with one fault, on one side."""
    plan = Plan((fault,))
    return setup.faulty(dialler=plan) if dialler else setup.faulty(listener=plan)


async def check_cuts_anywhere_are_losses(setup: Setup) -> None:
    """Before, inside and after frames of each type, sent or received: both sides hear PeerLost,
    and what arrived is right.
    """
    kinds = (Kind.CUT_BEFORE, Kind.CUT_INSIDE, Kind.CUT_AFTER)
    types = (Type.MESSAGE, Type.OFFER, Type.ACCEPT, Type.BODY)
    places: tuple[tuple[Direction, int], ...] = (("out", 0), ("in", 1))
    cases = [
        Fault(kind=kind, direction=direction, of=type_, at=at, offset=1000)
        for kind in kinds
        for type_ in types
        for direction, at in places
    ]
    for number, fault in enumerate(cases):
        errors = await whatever_happens(sided(setup, fault, bool(number % 2)))
        assert lost(errors), (str(fault), errors)


async def check_a_cut_is_where_the_plan_says(setup: Setup) -> None:
    """Of a body that is cut, sent or received, just the bytes before the cut land: all of them, but
    for a piece where a wire moves pieces.
    """
    size, piece = 5_000_000, 2 << 20
    for direction in _DIRECTIONS:
        for cut in (0, 1, 70_000, 2 * piece, size - 1):
            where: dict[str, Any] = {"of": Type.BODY, "offset": HEAD_BYTES + cut}
            fault = Fault(kind=Kind.CUT_INSIDE, direction=direction, **where)
            quick = {**QUICK, "part_bytes": size}
            async with sided(setup, fault, dialler=direction == "out").pair(**quick) as pair:
                target = bytearray(size)
                sending = asyncio.create_task(pair.a.send(1, b"", [noise(size)]))
                with expect(PeerLost):
                    await pair.b.recv(into(target))
                await asyncio.wait([sending])
                assert isinstance(sending.exception(), PeerLost) or direction == "in"
                await pair.b.quiet()
                least = cut - cut % piece if direction == "out" else cut
                landed = len(target.rstrip(b"\0"))
                assert least - 4 <= landed <= cut, (str(fault), landed)
                assert target == noise(size)[:landed] + bytes(size - landed)


async def check_cuts_in_the_handshake(setup: Setup) -> None:
    """Who dials hears Unreachable or loses the link at once; the listener takes the next."""
    cuts = [Fault(kind=Kind.CUT_INSIDE, wire=0, offset=100)]
    cuts += [
        Fault(kind=kind, at=at, wire=0)
        for kind in (Kind.CUT_BEFORE, Kind.CUT_AFTER)
        for at in (0, 1)
    ]
    for fault in cuts:
        for dialler in (True, False):
            async with sided(setup, fault, dialler).transports(**QUICK) as (left, _, listening):
                try:
                    link = await left.connect(listening.address)
                except Unreachable:
                    pass
                else:
                    with expect(PeerLost):
                        await link.recv()
                async with asyncio.timeout(5):
                    await alive(*await _next_link(left, listening))


async def _next_link(left: Transport, listening: Listener) -> tuple[Link, Link]:
    """A link, though the listener may first give out one that is lost already."""
    link = await left.connect(listening.address)
    while True:
        accepted = await listening.accept()
        try:
            await both(link.send(1, b"hello"), accepted.recv())
        except PeerLost:
            continue
        return link, accepted


async def check_a_loss_after_so_many_bytes(setup: Setup) -> None:
    """Wherever the wire breaks: right so far, then PeerLost on both sides."""
    chance = random.Random(7)
    for number in range(8):
        fault = Fault(
            kind=Kind.FAIL_AFTER,
            direction="in" if number % 2 else "out",
            offset=chance.randrange(1000, 250_000),
        )
        errors = await whatever_happens(sided(setup, fault, number % 4 < 2))
        assert lost(errors), (str(fault), errors)


async def check_delays_change_nothing(setup: Setup) -> None:
    """Random delays and stalls shorter than the deadline, on both sides."""
    rates = {Kind.DELAY: 0.2, Kind.STALL: 0.01}
    for seed in range(3):
        plans = [random_plan(seed + side, rates, frames=80) for side in (0, 100)]
        short = [Plan(tuple(f for f in plan.faults if f.seconds < 0.1)) for plan in plans]
        errors = await whatever_happens(setup.faulty(*short), rounds=2)
        assert errors == ([], []), errors


async def check_silence_is_a_loss(setup: Setup) -> None:
    """A stall for ever, in one direction: both sides end the link, in bounded time."""
    for direction in _DIRECTIONS:
        fault = Fault(kind=Kind.STALL, direction=direction, at=5, seconds=math.inf)
        async with asyncio.timeout(3):
            errors = await whatever_happens(sided(setup, fault, dialler=True))
        assert lost(errors), (str(fault), errors)


async def check_silence_of_an_idle_link(setup: Setup) -> None:
    """Nobody sends; still both sides find out."""
    fault = Fault(kind=Kind.STALL, at=4, seconds=math.inf)
    async with sided(setup, fault, dialler=True).pair(**QUICK) as pair, asyncio.timeout(3):
        for link in (pair.a, pair.b):
            with expect(PeerLost):
                await link.recv()


async def check_silence_in_the_handshake(setup: Setup) -> None:
    """Bounded by `handshake_s`, whoever falls silent; the listener takes the next."""
    for dialler in (True, False):
        for at in (0, 1):
            fault = Fault(kind=Kind.STALL, at=at, wire=0, seconds=math.inf)
            quick = {**QUICK, "handshake_s": 0.2}
            async with sided(setup, fault, dialler).transports(**quick) as (left, _, listening):
                async with asyncio.timeout(2):
                    with expect(Unreachable):
                        await left.connect(listening.address)
                async with asyncio.timeout(2):
                    await alive(*await meet(left, listening))


async def check_close_against_a_stalled_peer(setup: Setup) -> None:
    """`close` gives up after `close_s`, or when the silence is a loss."""
    fault = Fault(kind=Kind.STALL, direction="in", at=3, seconds=math.inf)
    settings = {**QUICK, "close_s": 0.2}
    async with sided(setup, fault, dialler=False).pair(**settings) as pair:
        await pair.a.send(1, b"first")
        await pair.a.send(1, b"second")
        async with asyncio.timeout(2):
            await pair.a.close()


async def check_what_no_wire_may_do(setup: Setup) -> None:
    """A frame dropped, doubled, out of order or damaged: RemoteProtocol at the side that receives
    it, PeerLost at the other; what was received is right.
    """
    cases = [
        Fault(kind=kind, direction=direction, at=at)
        for kind in (Kind.DROP, Kind.DUPLICATE, Kind.REORDER)
        for direction in _DIRECTIONS
        for at in (2, 9)
    ]
    cases += [
        Fault(kind=Kind.CORRUPT, direction=way, at=at, of=of, part=part, offset=offset, mask=mask)
        for way in _DIRECTIONS
        for of, at, part, offset, mask in _DAMAGE
    ]
    for number, fault in enumerate(cases):
        dialler = bool(number % 2)
        errors = await whatever_happens(sided(setup, fault, dialler), rounds=2)
        sees = errors[0] if dialler == (fault.direction == "in") else errors[1]
        misses = errors[1] if sees is errors[0] else errors[0]
        assert any(isinstance(error, RemoteProtocol) for error in sees), (str(fault), errors)
        assert all(isinstance(error, PeerLost) for error in misses), (str(fault), errors)


async def check_damage_in_the_handshake(setup: Setup) -> None:
    """Every byte of it counts: no link comes of it, or one that ends at once."""
    chance = random.Random(3)
    for number in range(16):
        fault = Fault(
            kind=Kind.CORRUPT,
            at=number % 2,
            part="meta" if number % 4 < 2 else "head",
            offset=chance.randrange(400),
            mask=chance.randrange(1, 256),
        )
        errors = await whatever_happens(sided(setup, fault, number % 8 < 4))
        assert any(errors), (str(fault), errors)


async def check_random_faults_never_lie(setup: Setup) -> None:
    """Everything at once, by seed: all messages right, or an error on each side."""
    rates = dict.fromkeys((Kind.DROP, Kind.DUPLICATE, Kind.REORDER, Kind.CORRUPT), 0.004)
    rates |= dict.fromkeys((Kind.CUT_BEFORE, Kind.CUT_INSIDE, Kind.CUT_AFTER), 0.002)
    rates |= dict.fromkeys((Kind.FAIL_AFTER, *LIES), 0.001)
    rates[Kind.DELAY] = 0.05
    for seed in range(6):
        plans: Sequence[Plan] = [
            random_plan(seed * 2 + side, rates, frames=120, first=0) for side in (0, 1)
        ]
        await whatever_happens(setup.faulty(*plans), rounds=2)


async def check_a_link_that_ended_says_so_first(setup: Setup) -> None:
    """After any end, close is quiet and calls tell the first reason, not later ones."""
    fault = Fault(kind=Kind.DROP, of=Type.MESSAGE, at=0)
    async with sided(setup, fault, dialler=True).pair(**QUICK) as pair:
        await pair.a.send(1, b"dropped")
        await pair.a.send(1, b"next")
        for _ in range(2):
            with expect(RemoteProtocol):
                await pair.b.recv()
            with expect(RemoteProtocol):
                await pair.b.send(1)
        pair.b.abort()
        with expect(RemoteProtocol):
            await pair.b.recv()
        with expect(PeerLost):
            await pair.a.recv()
        await pair.b.close()
        with expect(LocalMisuse):
            await pair.b.recv()


CHECKS: list[Callable[[Setup], Awaitable[None]]] = [
    check_cuts_anywhere_are_losses,
    check_a_cut_is_where_the_plan_says,
    check_cuts_in_the_handshake,
    check_a_loss_after_so_many_bytes,
    check_delays_change_nothing,
    check_silence_is_a_loss,
    check_silence_of_an_idle_link,
    check_silence_in_the_handshake,
    check_close_against_a_stalled_peer,
    check_what_no_wire_may_do,
    check_damage_in_the_handshake,
    check_random_faults_never_lie,
    check_a_link_that_ended_says_so_first,
]
