"""Messages over UCX that come before anybody asks for them, and more of them than there may be."""

import asyncio
import contextlib
import importlib.util
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.transports.linked import config, linked
from transports import ucx
from transports.address import parse
from transports.api import Link
from transports.errors import PeerLost, RemoteProtocol, TransportError
from transports.frame import Frame, Type
from transports.ucx import UcxTransport, UcxWire
from transports.ucx_memory import Piece
from transports.ucx_operation import Send
from transports.wire import Wire

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ucxx") is None, reason="ucxx isn't installed (the extra is `ucx`)"
)

HERE = "ucx://127.0.0.1:0"
MIB = 1 << 20
#: And patience: pings wait behind a flood, and a busy machine takes its time for that.
SMALL_WINDOW: dict[str, Any] = {
    "eager_bytes": 1000,
    "window_bytes": 256 << 10,
    "lost_after_s": 60.0,
}
HEAD, BODY, COMMIT = 0, 1, 2


@pytest.fixture(params=["shm", "tcp"], autouse=True)
def _lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "tcp":
        monkeypatch.setenv("UCX_TLS", "tcp")


@contextlib.asynccontextmanager
async def wires() -> AsyncIterator[tuple[UcxWire, UcxWire]]:
    """Two ends that nobody reads from unless the test does."""
    came: asyncio.Queue[Wire] = asyncio.Queue()
    async with (
        UcxTransport(config("near")).open() as near_transport,
        UcxTransport(config("far")).open() as far_transport,
    ):
        bound = await far_transport.bind(parse(HERE), came.put_nowait)
        near, far = await near_transport.dial(bound.address), await came.get()
        assert isinstance(near, UcxWire) and isinstance(far, UcxWire)
        async with asyncio.TaskGroup() as group:
            group.create_task(near.trusted())
            group.create_task(far.trusted())
        try:
            yield near, far
        finally:
            bound.close()
            near.abort()
            far.abort()


async def some_turns() -> None:
    """Time for what is under way to come."""
    for _ in range(50):
        await asyncio.sleep(0.001)


def _head(number: int, size: int, type_: Type = Type.MESSAGE) -> bytes:
    return Frame(type_, number, body_bytes=size, meta=b"m" * (number % 300)).encode()


def test_who_receives_late_gets_all_in_order() -> None:
    async def main() -> None:
        async with wires() as (near, far):
            bodies = [os.urandom(size) for size in (0, 1, 50_000, 0, 100_000, 0, 5 * MIB, 3)] * 3

            async def send() -> None:
                for number, body in enumerate(bodies):
                    await near.send(_head(number, len(body)), [memoryview(body)] if body else [])

            sending = asyncio.create_task(send())
            for number, body in enumerate(bodies):
                await some_turns()  # as far as it gets without us, all of it lies unread
                assert await far.recv_head() == _head(number, len(body))
                await some_turns()
                target = bytearray(len(body))
                if body:
                    await far.recv_body([memoryview(target)])
                assert target == body
            await sending

    asyncio.run(main())


def test_small_messages_dont_stay_with_their_sender() -> None:
    """Nothing would tell what takes their place there, later; so no receive is needed for them."""

    async def main() -> None:
        async with wires() as (near, far):
            most = near._context.eager_bytes - len(_head(0, 0))
            async with asyncio.timeout(5):
                for size in (1, most // 2, most):
                    await near.send(_head(0, size), [memoryview(bytes(size))])
            assert far.received_bytes < 1000  # nobody has received

    asyncio.run(main())


@pytest.mark.parametrize("end", ["near", "far"])
def test_what_lies_unread_goes_with_the_link(end: str) -> None:
    async def main() -> None:
        async with wires() as (near, far):
            body = memoryview(bytes(9 * MIB))
            sending = asyncio.create_task(near.send(_head(0, len(body)), [body]))
            await some_turns()
            (far if end == "far" else near).abort()
            with contextlib.suppress(TransportError):
                await sending
                await far.recv_head()

    asyncio.run(main())


def test_who_sends_faster_than_we_receive_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bodies don't wait at their sender, it may be far ahead, with what was asked for."""

    async def main() -> None:
        async with linked(HERE) as pair:
            source, target = bytes(200 * MIB), bytearray(b"x") * (200 * MIB)
            step = 16 << 10
            views = [memoryview(target)[i : i + step] for i in range(0, len(target), step)]
            sending = asyncio.create_task(pair.near.send(1, b"", [source]))
            await pair.far.recv(lambda _: views)
            await sending
            assert target == source

    monkeypatch.setattr(ucx, "most_bytes", lambda _: 48 * MIB)
    asyncio.run(main())


def _post(link: Link, tag: int, message: bytes) -> None:
    """Send what no peer of ours would."""
    wire: Any = link._wire  # type: ignore[attr-defined]
    wire._worker.start(Send(iter([(wire._tag_out | tag, Piece([memoryview(message)]))])))


async def _flood(link: Link, tag: int, message: bytes) -> None:
    """Send the same until the peer has had enough."""
    with contextlib.suppress(PeerLost):
        while True:
            for _ in range(16):
                _post(link, tag, message)
            await asyncio.sleep(0)


def test_a_tag_that_nobody_gave_out() -> None:
    async def main() -> None:
        async with linked(HERE) as pair:
            _post(pair.near, 7, b"hello")
            with pytest.raises(RemoteProtocol, match="tag"):
                await pair.far.recv()

    asyncio.run(main())


@pytest.mark.parametrize("tag", [BODY, COMMIT])
def test_bodies_that_nobody_asked_for(tag: int) -> None:
    async def main() -> None:
        async with linked(HERE, **SMALL_WINDOW) as pair:
            async with asyncio.timeout(30):
                await _flood(pair.near, tag, bytes(60_000))
            with pytest.raises(RemoteProtocol, match="more messages"):
                await pair.far.recv()

    asyncio.run(main())


def test_messages_in_place_of_a_body() -> None:
    """Their tag is right, and no receive is posted for them as long as the body is awaited."""

    async def main() -> None:
        async with linked(HERE, **SMALL_WINDOW) as pair:
            number = pair.near._session.next_number_out  # type: ignore[attr-defined]
            _post(pair.near, HEAD, Frame(Type.MESSAGE, number, body_bytes=10).encode())
            async with asyncio.timeout(30):
                await _flood(pair.near, HEAD, _head(0, 0))
            with pytest.raises(RemoteProtocol, match="more messages"):
                await pair.far.recv()

    asyncio.run(main())


def test_a_body_at_the_end_of_a_head_without_one() -> None:
    async def main() -> None:
        async with linked(HERE) as pair:
            number = pair.near._session.next_number_out  # type: ignore[attr-defined]
            _post(pair.near, HEAD, Frame(Type.MESSAGE, number).encode() + b"body")
            with pytest.raises(RemoteProtocol, match="no head announced"):
                await pair.far.recv()

    asyncio.run(main())


def test_a_small_body_of_another_size() -> None:
    async def main() -> None:
        async with linked(HERE) as pair:
            number = pair.near._session.next_number_out  # type: ignore[attr-defined]
            head = Frame(Type.MESSAGE, number, body_bytes=3).encode()
            _post(pair.near, HEAD, head + b"body")
            with pytest.raises(RemoteProtocol, match="another size"):
                await pair.far.recv(lambda _: [bytearray(3)])

    asyncio.run(main())
