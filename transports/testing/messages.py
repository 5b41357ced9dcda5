"""Checks of messages: order, sizes, buffers, refusals, limits."""

import array
import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from transports.api import Buffer, Head, Link
from transports.errors import BodyRefused, LocalMisuse
from transports.testing.setup import (
    Setup,
    alive,
    both,
    carry,
    expect,
    into,
    noise,
    pieces,
    receive,
    send_each,
    split,
    until,
)
from transports.testing.tensors import Tensor

_EAGER, _PART = 4096, 65536
_SIZES: dict[str, Any] = {"eager_bytes": _EAGER, "part_bytes": _PART}


async def check_messages_of_all_sizes_arrive_in_order(setup: Setup) -> None:
    """Around every limit at which a body takes another way."""
    sizes = [0, 1, _EAGER - 1, _EAGER, _EAGER + 1, _PART - 1, _PART, _PART + 1, 3 * _PART + 7]
    sizes += [0, 5_000_000, 1]
    async with setup.pair(**_SIZES) as pair:

        async def send() -> None:
            for number, size in enumerate(sizes):
                await pair.a.send(number, b"meta %d" % number, [noise(size, number)])

        async def recv() -> None:
            for number, size in enumerate(sizes):
                head, body = await receive(pair.b)
                assert head == Head(number, b"meta %d" % number, size)
                assert body == noise(size, number)

        await both(send(), recv())


async def check_many_small_messages_in_order(setup: Setup) -> None:
    """More than a window's worth, in both directions at once."""
    count = 3000
    async with setup.pair() as pair:
        metas = [number.to_bytes(4, "little") for number in range(count)]

        async def recv(link: Link) -> None:
            for meta in metas:
                assert (await link.recv()).meta == meta

        await both(
            both(send_each(pair.a, metas), recv(pair.b)),
            both(send_each(pair.b, metas), recv(pair.a)),
        )


async def check_bodies_are_cut_differently_on_both_sides(setup: Setup) -> None:
    """Only the sums need to agree; empty buffers are allowed."""
    async with setup.pair(**_SIZES) as pair:
        for seed, size in enumerate([1, _EAGER, _EAGER + 1, 5 * _PART + 11]):
            data = noise(size, seed)
            body = split(data, pieces(size, 1 + 40 * seed, seed))
            targets = [bytearray(length) for length in pieces(size, 1 + 30 * seed, seed + 1)]
            await both(pair.a.send(1, b"", body), pair.b.recv(into(*targets)))
            assert b"".join(targets) == data


async def check_thousands_of_buffers(setup: Setup) -> None:
    """A body of more buffers than one system call takes."""
    data = noise(4096 * 48)
    async with setup.pair(**_SIZES) as pair:
        target = bytearray(len(data))
        views = [memoryview(target)[at : at + 48] for at in range(0, len(target), 48)]
        body = [data[at : at + 64] for at in range(0, len(data), 64)]
        await both(pair.a.send(1, b"", body), pair.b.recv(into(*views)))
        assert target == data


async def check_buffers_of_other_types(setup: Setup) -> None:
    """Whatever has contiguous memory; bytes are what counts."""
    numbers = array.array("i", range(5000))
    async with setup.pair(**_SIZES) as pair:
        for body in (numbers, memoryview(numbers).cast("B").cast("i", (50, 100))):
            target = array.array("d", bytes(20000))
            await both(pair.a.send(1, b"", [body]), pair.b.recv(into(target)))
            assert target.tobytes() == numbers.tobytes()
        with expect(LocalMisuse):
            await pair.a.send(1, b"", [memoryview(numbers)[::2]])
        nonsense: list[Any] = [[17], [None], [b"a", "text"], None, 7, iter([b"a"]), {b"a"}]
        for body in [*nonsense, "", "text", b"", b"bytes", bytearray(9), memoryview(numbers)]:
            with expect(LocalMisuse):
                await pair.a.send(1, b"", body)
        await alive(pair.a, pair.b)


async def check_tensors(setup: Setup) -> None:
    """Whatever lends its memory by DLPack, to be sent and to be filled; it gets it back."""
    async with setup.pair(**_SIZES) as pair:
        for size in (60, 3 * _PART):
            for versioned in (True, False):
                source = Tensor(bytearray(noise(size)), size // 4, bits=32, versioned=versioned)
                target = Tensor(bytearray(size), 2, size // 2, versioned=versioned)
                await both(pair.a.send(1, b"", [source]), pair.b.recv(into(target)))
                assert target.memory == noise(size)
                await until(lambda s=source, t=target: s.num_lent == t.num_lent == 0)  # type: ignore[misc]
        whole = bytearray(60)
        for odd in (
            Tensor(whole, 10, 3, strides=(1, 10)),
            Tensor(whole, device_type=2),
            Tensor(whole, device_type=99),
        ):
            with expect(LocalMisuse):
                await pair.a.send(1, b"", [odd])
            assert not odd.num_lent
        await alive(pair.a, pair.b)


async def check_what_was_sent_may_be_overwritten(setup: Setup) -> None:
    """When `send` has returned, the peer gets the old bytes whenever it asks."""
    async with setup.pair(**_SIZES) as pair:
        small = bytearray(noise(1000))
        await pair.a.send(1, b"", [small])
        small[:] = bytes(1000)
        assert (await receive(pair.b))[1] == noise(1000)
        large = bytearray(noise(3 * _PART))
        received = asyncio.create_task(receive(pair.b))
        await pair.a.send(1, b"", [large])
        large[:] = bytes(3 * _PART)
        assert (await received)[1] == noise(3 * _PART)


async def check_kind_and_meta_limits(setup: Setup) -> None:
    """What is out of bounds is refused here, and the link goes on."""
    async with setup.pair() as pair:
        for kind in (-1, 256, 1 << 70, "x", 1.0, None, b"1", [1], True):
            with expect(LocalMisuse):
                await pair.a.send(kind)  # type: ignore[arg-type]
        for meta in (bytes(0x10000), "text", None, 7, [b"meta"], bytearray(1), memoryview(b"m")):
            with expect(LocalMisuse):
                await pair.a.send(1, meta)  # type: ignore[arg-type]
        await carry(pair.a, pair.b, kind=0, meta=noise(0xFFFF))
        await carry(pair.a, pair.b, noise(100_000), kind=255, meta=noise(0xFFFF))


async def check_limits_of_the_peer_hold(setup: Setup) -> None:
    """Each side says what it takes; the other side's calls are checked against it."""
    tight = {"max_meta_bytes": 10, "max_body_bytes": 200_000, "eager_bytes": 100}
    async with setup.pair(listener=tight) as pair:
        with expect(LocalMisuse):
            await pair.a.send(1, bytes(11))
        with expect(LocalMisuse):
            await pair.a.send(1, b"", [bytes(200_001)])
        for size in (100, 101, 1000, 200_000):
            await carry(pair.a, pair.b, noise(size), meta=bytes(10))
        await alive(pair.a, pair.b)


async def check_a_refused_body_writes_nothing(setup: Setup) -> None:
    """The receiver refuses a stale target before any byte comes; both sides go on."""
    async with setup.pair(**_SIZES) as pair:
        target = bytearray(3 * _PART)
        for size in (100, 3 * _PART):  # it was good once
            view = memoryview(target)[:size]
            await both(pair.a.send(1, b"", [noise(size)]), pair.b.recv(into(view)))
        target[:] = b"old" * _PART

        def stale(head: Head) -> list[Buffer]:
            raise BodyRefused("this target is stale")

        for _ in range(3):
            sending = asyncio.create_task(pair.a.send(1, b"", [noise(3 * _PART)]))
            with expect(BodyRefused):
                await pair.b.recv(stale)
            with expect(BodyRefused):
                await sending
        await pair.a.send(1, b"", [noise(100)])
        with expect(BodyRefused):
            await pair.b.recv(stale)
        assert target == b"old" * _PART
        await alive(pair.a, pair.b)


async def check_places_that_do_not_fit(setup: Setup) -> None:
    """No place, too little, too much, nothing to fill, or the caller's own error: refused."""
    async with setup.pair(**_SIZES) as pair:
        for size in (_EAGER, _EAGER + 1):

            async def attempt(place: object, error: type[Exception], size: int = size) -> None:
                sending = asyncio.create_task(pair.a.send(1, b"", [noise(size)]))
                try:
                    await pair.b.recv(place)  # type: ignore[arg-type]
                except error:
                    pass
                else:
                    raise AssertionError(f"no {error.__name__}")
                if size > _EAGER:
                    with expect(BodyRefused):
                        await sending
                await asyncio.wait([sending])

            def broken(_: Head) -> list[Buffer]:
                raise ZeroDivisionError

            exact = bytearray(size)
            await attempt(None, BodyRefused)
            await attempt(lambda _, to=exact: [to, bytearray(1)], LocalMisuse)
            await attempt(lambda _, to=exact: [memoryview(to)[1:]], LocalMisuse)
            await attempt(lambda _, to=exact: [bytes(to)], LocalMisuse)
            gaps = memoryview(bytearray(2 * size))[::2]
            await attempt(lambda _, to=gaps: [to], LocalMisuse)
            for given in (None, 7, exact, "x" * size, iter([exact]), [exact, None], [[exact]]):
                await attempt(lambda _, given=given: given, LocalMisuse)
            await attempt(broken, ZeroDivisionError)
            assert exact == bytes(size)
        await alive(pair.a, pair.b)


async def check_the_place_is_asked_once(setup: Setup) -> None:
    """For each message with a body, whatever comes of it."""
    async with setup.pair(**_SIZES) as pair:
        for size in (0, 1, _EAGER + 1, 3 * _PART):
            for wanted in (True, False):
                asked: list[Head] = []

                def place(
                    head: Head, asked: list[Head] = asked, wanted: bool = wanted
                ) -> list[Buffer]:
                    asked.append(head)
                    if not wanted:
                        raise BodyRefused("not wanted")
                    return [bytearray(head.body_bytes)]

                sending = asyncio.create_task(pair.a.send(7, b"meta", [noise(size)]))
                with contextlib.suppress(BodyRefused):
                    await pair.b.recv(place)
                with contextlib.suppress(BodyRefused):
                    await sending
                assert asked == [Head(7, b"meta", size)] * bool(size)


async def check_large_bodies_in_the_usual_parts(setup: Setup) -> None:
    """As they travel unless one sets something else; the last part is small."""
    async with setup.pair() as pair:
        for size in (9_000_001, (33 << 20) + 1):
            await carry(pair.a, pair.b, noise(size))


async def check_places_of_empty_buffers_and_of_none(setup: Setup) -> None:
    """Empty ones are passed over; for a message without a body nobody is asked."""
    asked: list[Head] = []

    async with setup.pair(**_SIZES) as pair:
        for body in ([], [b""], [bytearray(), memoryview(b"")]):
            await both(pair.a.send(1, b"none", body), pair.b.recv(asked.append))  # type: ignore[arg-type]
        assert not asked
        for size in (_EAGER, _EAGER + 1):
            target = bytearray(size)
            halves = memoryview(target)[:10], memoryview(target)[10:]
            place = into(bytearray(), halves[0], bytearray(), halves[0][:0], halves[1], bytearray())
            await both(pair.a.send(1, b"", [b"", noise(size), b""]), pair.b.recv(place))
            assert target == noise(size)


async def check_places_that_overlap(setup: Setup) -> None:
    """What they hold then is left to chance; what is around them isn't touched."""
    async with setup.pair(**_SIZES) as pair:
        for size in (_EAGER, 2 * _PART):
            half, memory = size // 2, bytearray(2 * size)
            target = memoryview(memory)[100 : 100 + size]
            place = into(target[:half], target[half - 50 : size - 50])
            await both(pair.a.send(1, b"", [noise(size)]), pair.b.recv(place))
            assert memory[:100] == bytes(100)
            assert target[: half - 50] == noise(size)[: half - 50]
            assert target[half : size - 50] == noise(size)[half + 50 :]
            assert memory[50 + size :] == bytes(size - 50)
        await alive(pair.a, pair.b)


async def check_one_sends_and_one_receives(setup: Setup) -> None:
    """A second is refused, and the first goes on."""
    async with setup.pair(**_SIZES) as pair:
        first = asyncio.create_task(pair.a.send(1, b"first", [noise(_PART)]))
        waiting = asyncio.create_task(receive(pair.a))
        await asyncio.sleep(0)
        with expect(LocalMisuse):
            await pair.a.send(1, b"second")
        with expect(LocalMisuse):
            await pair.a.recv()
        assert (await receive(pair.b))[0].meta == b"first"
        await first
        await pair.b.send(2, b"back")
        assert (await waiting)[0].meta == b"back"


async def check_checksums_of_bodies(setup: Setup) -> None:
    """With them, whatever arrives unharmed is accepted, whichever side asks for them."""
    for side in ("dialler", "listener"):
        async with setup.pair(**{side: {"checksum_bodies": True}}, **_SIZES) as pair:
            for size in (0, 1, _EAGER, _EAGER + 1, 3 * _PART + 1):
                await carry(pair.a, pair.b, noise(size))
                await carry(pair.b, pair.a, noise(size))


async def check_large_bodies_pass_each_other(setup: Setup) -> None:
    """Reading never waits for writing: both sides send before either is done."""
    data = noise(8 << 20), noise(8 << 20, 1)
    async with setup.pair(part_bytes=1 << 20) as pair:
        for _ in range(3):
            (_, (_, to_b)), (_, (_, to_a)) = await both(
                both(pair.a.send(1, b"", [data[0]]), receive(pair.b)),
                both(pair.b.send(1, b"", [data[1]]), receive(pair.a)),
            )
            assert (to_b, to_a) == data


async def check_the_body_waits_for_its_place(setup: Setup) -> None:
    """A large `send` returns only when the receiver has named a place; others pass it by."""
    async with setup.pair(**_SIZES) as pair:
        sending = asyncio.create_task(pair.a.send(1, b"", [noise(3 * _PART)]))
        await carry(pair.b, pair.a, noise(3 * _PART, 5))
        assert not sending.done()
        assert (await receive(pair.b))[1] == noise(3 * _PART)
        await until(sending.done)
        await sending


CHECKS: list[Callable[[Setup], Awaitable[None]]] = [
    check_messages_of_all_sizes_arrive_in_order,
    check_many_small_messages_in_order,
    check_bodies_are_cut_differently_on_both_sides,
    check_thousands_of_buffers,
    check_buffers_of_other_types,
    check_tensors,
    check_what_was_sent_may_be_overwritten,
    check_kind_and_meta_limits,
    check_limits_of_the_peer_hold,
    check_a_refused_body_writes_nothing,
    check_places_that_do_not_fit,
    check_the_place_is_asked_once,
    check_places_of_empty_buffers_and_of_none,
    check_places_that_overlap,
    check_one_sends_and_one_receives,
    check_checksums_of_bodies,
    check_large_bodies_pass_each_other,
    check_large_bodies_in_the_usual_parts,
    check_the_body_waits_for_its_place,
]
