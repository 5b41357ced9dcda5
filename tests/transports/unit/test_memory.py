import asyncio
import threading
from typing import Any

import pytest

from tests.transports.linked import config
from transports.api import Span
from transports.copying import STEP_BYTES, Copies
from transports.errors import LocalMisuse, PeerLost, ReadCancelled, RemoteProtocol, Unreachable
from transports.memory import MemoryTransport, MemoryWire, _Pipe
from transports.pieces import MAX_PIECE_BYTES, Pieces, matched


def _pair() -> tuple[MemoryWire, MemoryWire]:
    there, back = _Pipe(), _Pipe()
    return MemoryWire(there, back, "a", {}), MemoryWire(back, there, "b", {})


def _run(test: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await test()

    asyncio.run(limited())


@pytest.mark.parametrize("who", [0, 1])
def test_a_body_whose_hand_over_is_broken_off(who: int) -> None:
    """Nothing is copied after an abort of either side, and the sender's buffer is let go."""

    async def test() -> None:
        wires = a, b = _pair()
        body, into = bytearray(b"x" * 100), bytearray(100)
        sending = asyncio.create_task(a.send(b"head", [memoryview(body)]))
        assert await b.recv_head() == b"head"
        wires[who].abort()
        with pytest.raises(PeerLost):
            await b.recv_body([memoryview(into)])
        await asyncio.wait([sending])
        assert type(sending.exception()) is PeerLost
        del sending
        assert into == bytes(100)
        body.append(1)

    _run(test)


def test_a_cancelled_send_leaves_nothing_behind_once_aborted() -> None:
    async def test() -> None:
        a, b = _pair()
        sending = asyncio.create_task(a.send(b"head", [memoryview(bytearray(10))]))
        await b.recv_head()
        sending.cancel()
        await asyncio.wait([sending])
        a.abort()
        with pytest.raises(PeerLost):
            await b.recv_body([memoryview(bytearray(10))])

    _run(test)


def test_a_body_of_another_size() -> None:
    async def test() -> None:
        a, b = _pair()
        sending = asyncio.create_task(a.send(b"head", [memoryview(bytes(10))]))
        await b.recv_head()
        with pytest.raises(RemoteProtocol):
            await b.recv_body([memoryview(bytearray(9))])
        b.abort()
        with pytest.raises(PeerLost):
            await sending

    _run(test)


def test_heads_wait_for_the_reader() -> None:
    async def test() -> None:
        a, b = _pair()

        async def send_all() -> None:
            for number in range(20_000):
                await a.send(b"%8d" % number + bytes(92))

        sending = asyncio.create_task(send_all())
        await asyncio.sleep(0.01)
        assert not sending.done()
        assert len(a._out.heads) < 3000
        for number in range(20_000):
            assert int((await b.recv_head())[:8]) == number
        await sending
        await a.close()
        with pytest.raises(PeerLost):
            await b.recv_head()
        with pytest.raises(LocalMisuse):
            await a.send(b"more")

    _run(test)


def test_the_other_end_is_in_another_loop() -> None:
    ready, over = threading.Event(), threading.Event()

    async def listen() -> None:
        async with MemoryTransport(config("there")).open() as transport:
            await transport.listen("memory://there")
            ready.set()
            await asyncio.to_thread(over.wait)

    async def dial() -> None:
        async with MemoryTransport(config("here")).open() as transport:
            with pytest.raises(Unreachable, match="another event loop"):
                await transport.connect("memory://there")

    thread = threading.Thread(target=asyncio.run, args=(listen(),))
    thread.start()
    try:
        ready.wait()
        asyncio.run(dial())
    finally:
        over.set()
        thread.join()


class Source:
    """Memory that can go away."""

    def __init__(self, size: int) -> None:
        self.memory = bytearray(b"\x5a" * size)
        self.there = True

    def __call__(self) -> memoryview:
        if not self.there:
            raise PeerLost("gone")
        return memoryview(self.memory)


def _all_of(into: memoryview) -> Pieces:
    return matched([Span(0, len(into))], [into], len(into))


BROKEN_OFF = {
    "cancelled": ReadCancelled,
    "source gone": PeerLost,
    "link ended": PeerLost,
    "buffer gone": LocalMisuse,
}


@pytest.mark.parametrize("how", BROKEN_OFF)
def test_a_copy_that_is_broken_off(how: str) -> None:
    """At the end of a step, whatever the reason; then it is quiet, and the buffers are let go."""

    async def test() -> None:
        size = 4 * STEP_BYTES
        source, into = Source(size), bytearray(size)
        copies, offsets = Copies(), range(0, size, MAX_PIECE_BYTES)
        views = [memoryview(into)[offset : offset + MAX_PIECE_BYTES] for offset in offsets]
        spans = [Span(offset, MAX_PIECE_BYTES) for offset in offsets]
        read = copies.begin(source, matched(spans, views.copy(), size))
        waiting = [asyncio.create_task(wait) for wait in (read.wait(), read.quiet(), read.wait())]
        await asyncio.sleep(0)
        assert into[0]
        assert not into[-1]
        match how:
            case "cancelled":
                read.cancel()
            case "source gone":
                source.there = False
            case "link ended":
                copies.end(PeerLost("the link has ended"))
            case _:
                views[-1].release()
        for ended in (waiting[0], waiting[2], read.wait(), read.wait()):
            with pytest.raises(BROKEN_OFF[how]):
                await ended
        await waiting[1]
        await read.quiet()
        read.cancel()  # too late to matter
        before = bytes(into)
        with pytest.raises(BROKEN_OFF[how]):
            await read.wait()
        views.clear()
        into.append(0)  # nothing holds it
        await asyncio.sleep(0.01)
        assert into == before + b"\0"

    _run(test)


def test_a_copy_that_a_bug_of_ours_ends() -> None:
    """It ends all the same, the loop hears of it, and other copies go on."""

    async def test() -> None:
        heard: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: heard.append(repr(context["exception"]))
        )

        def bad() -> memoryview:
            raise ZeroDivisionError

        copies, into = Copies(), bytearray(10)
        first = copies.begin(bad, _all_of(memoryview(bytearray(10))))
        second = copies.begin(Source(10), _all_of(memoryview(into)))
        with pytest.raises(PeerLost, match="a bug on this side"):
            await first.wait()
        await second.wait()
        assert into == b"\x5a" * 10
        assert heard == ["ZeroDivisionError()"]

    _run(test)


def test_several_wait_for_one_copy() -> None:
    async def test() -> None:
        source, into = Source(3 * STEP_BYTES), bytearray(3 * STEP_BYTES)
        read = Copies().begin(source, _all_of(memoryview(into)))
        await asyncio.gather(read.wait(), read.quiet(), read.wait())
        assert into == source.memory

    _run(test)


def test_a_copy_cancelled_before_it_began() -> None:
    async def test() -> None:
        into = bytearray(10)
        read = Copies().begin(Source(10), _all_of(memoryview(into)))
        read.cancel()
        await read.quiet()
        with pytest.raises(ReadCancelled):
            await read.wait()
        assert into == bytes(10)

    _run(test)
