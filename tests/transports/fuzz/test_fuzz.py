"""Whatever bytes a peer sends, before, during and after the handshake: a typed error, a link that
has ended, memory that is bounded, and nothing that hangs or is left behind.
"""

import asyncio
import contextlib
import gc
import io
import json
import random
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.transports.linked import config
from tests.transports.raw import Raw, RawPeer, nonce, raw_peer, say_all
from transports.address import parse
from transports.api import Head, Link
from transports.base import WireTransport
from transports.config import SessionConfig
from transports.errors import (
    BodyRefused,
    PeerClosed,
    PeerLost,
    Refused,
    RemoteProtocol,
    TransportError,
    Unreachable,
)
from transports.frame import HEAD_BYTES, Frame, Type, decode
from transports.handshake import make_hello
from transports.memory import MemoryRegion, MemoryTransport
from transports.record import RecordingTransport, read_recording
from transports.testing.setup import alive, meet, until

LARGE = 100_000
#: A link's window, and as much again for what Python itself needs.
MEMORY_LIMIT = 8 << 20
SETTINGS: dict[str, Any] = {
    "handshake_s": 5.0,
    "close_s": 0.3,
    "keepalive_s": 0.2,
    "lost_after_s": 0.4,
    "max_body_bytes": 1 << 20,
    "window_bytes": 300_000,
}


def _run(test: Callable[[], Awaitable[None]]) -> None:
    """Within bounded time, and with no error that nobody retrieved."""
    unheard: list[dict[str, Any]] = []

    async def limited() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        async with asyncio.timeout(20):
            await test()
        gc.collect()

    asyncio.run(limited())
    assert not unheard, unheard


async def _use(link: Link, heard: list[TransportError]) -> None:
    """A user that sends and receives until the link has ended, and then ends it too."""

    def place(head: Head) -> list[bytearray]:
        if head.kind % 5 == 4:
            raise BodyRefused("not this one")
        return [bytearray(head.body_bytes)]

    async def recv() -> None:
        while True:
            with contextlib.suppress(BodyRefused):
                await link.recv(place)

    async def send() -> None:
        for number in range(1000):
            with contextlib.suppress(BodyRefused):
                await link.send(number % 256, b"meta", [bytes(LARGE if number % 3 == 0 else 10)])

    async def until_over(work: Awaitable[None]) -> None:
        try:
            await work
        except (PeerLost, PeerClosed, RemoteProtocol) as error:
            heard.append(error)

    async with asyncio.TaskGroup() as group:
        group.create_task(until_over(recv()))
        group.create_task(until_over(send()))
    await link.close()
    await link.quiet()


async def _against(raw: Raw, say: Callable[[RawPeer], Awaitable[None]]) -> list[TransportError]:
    """What the link's user hears while the peer says that, and then hangs up."""
    heard: list[TransportError] = []

    async def talk() -> None:
        with contextlib.suppress(TransportError):
            await say(raw.peer)
            await asyncio.sleep(0.01)
        raw.peer.wire.abort()

    async with asyncio.TaskGroup() as group:
        group.create_task(_use(raw.link, heard))
        group.create_task(talk())
    return heard


SIZES = st.sampled_from([0, 0, 0, 1, 10, LARGE, 1 << 20, (1 << 20) + 1, 1 << 40, (1 << 64) - 1])
NUMBERS = st.integers(0, 5) | st.sampled_from([1 << 32, 1 << 63, (1 << 64) - 1])
FRAMES: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    type_=st.sampled_from(Type),
    argument=NUMBERS,
    kind=st.integers(0, 255),
    meta=st.binary(max_size=30) | st.just(bytes(0xFFFF)),
    body_bytes=SIZES,
    flags=st.integers(0, 1),
    body_crc=st.just(0),
)


def _one(fields: dict[str, Any], number: int) -> bytes:
    fields = dict(fields)
    return Frame(fields.pop("type_"), number, **fields).encode()


@settings(max_examples=40)
@given(st.lists(FRAMES, min_size=1, max_size=25), st.booleans())
def test_sound_frames_in_any_order(frames: list[dict[str, Any]], with_bodies: bool) -> None:
    async def test() -> None:
        async with raw_peer(**SETTINGS) as raw:

            async def say(peer: RawPeer) -> None:
                listening = asyncio.create_task(peer.until_cut_off())
                try:
                    for number, fields in enumerate(frames, start=2):
                        size = fields["body_bytes"]
                        body = bytes(size) if with_bodies and 0 < size <= 1 << 20 else b""
                        with_body = fields["type_"] in (Type.MESSAGE, Type.BODY)
                        head = _one(fields, number)
                        async with asyncio.timeout(0.2):
                            await peer.wire.send(
                                head, [memoryview(body)] if body and with_body else []
                            )
                except TimeoutError:
                    pass
                finally:
                    listening.cancel()
                    await asyncio.wait([listening])

            assert await _against(raw, say)

    _run(test)


@settings(max_examples=40)
@given(st.binary(max_size=200), st.integers(0, 2))
def test_any_bytes_after_the_handshake(data: bytes, when: int) -> None:
    """At once, behind an offer, and where the body of an offer is due."""

    async def test() -> None:
        async with raw_peer(**SETTINGS) as raw:

            async def say(peer: RawPeer) -> None:
                if when:
                    await peer.say(Type.OFFER, argument=1, body_bytes=LARGE)
                if when == 2:
                    await peer.hear(Type.ACCEPT)
                await peer.wire.send(data)

            heard = await _against(raw, say)
            assert any(isinstance(error, RemoteProtocol) for error in heard), heard

    _run(test)


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=200) | FRAMES.map(lambda f: _one(f, 0)), max_size=4))
def test_any_bytes_before_the_handshake(heads: list[bytes]) -> None:
    async def test() -> None:
        async with (
            MemoryTransport(config("a", **SETTINGS)).open() as left,
            MemoryTransport(config("b", **SETTINGS)).open() as right,
        ):
            listener = await right.listen("memory://fuzzed")
            wire = await left.dial(parse("memory://fuzzed"))
            await say_all(wire, heads)
            wire.abort()
            await alive(*await meet(left, listener))

    _run(test)


HELLO = json.loads(make_hello(SessionConfig(node_id="x"), bytes(32)).raw)
BOMBS = [
    b"[" * 65_000,
    b'{"protocol":1,"nonce":"' + b"0" * 65_000,
    b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    b"9" * 65_000,
    b'{"protocol":1,"window":1' + b"0" * 60_000 + b"}",
    b"{" + b",".join(b'"k%d":1' % number for number in range(6_000)) + b"}",
    json.dumps({**HELLO, "node": "x" * 60_000}).encode(),
    json.dumps({**HELLO, "protocol": "x" * 60_000}).encode(),
    json.dumps({**HELLO, "protocol": [[]] * 20_000}).encode()[:65_535],
    json.dumps({**HELLO, "protocol": 10**4000}).encode(),
    json.dumps({**HELLO, "window": 1 << 61}).encode(),
    json.dumps({**HELLO, "eager": 1 << 61, "window": (1 << 62) - 1}).encode(),
]


@pytest.mark.parametrize("bomb", BOMBS, ids=range(len(BOMBS)))
@pytest.mark.parametrize("side", ["dialler", "listener"])
def test_bombs_in_hello(bomb: bytes, side: str) -> None:
    """Whoever gets one: a typed error, little memory, and the next peer is served."""

    async def answer(wire: Any) -> None:
        with contextlib.suppress(TransportError):
            await wire.recv_head()
            await wire.send(Frame(Type.HELLO, 0, meta=(bytes(32) + bomb)[:65_535]).encode())
            await wire.recv_head()

    async def test() -> None:
        async with (
            MemoryTransport(config("a", **SETTINGS)).open() as left,
            MemoryTransport(config("b", **SETTINGS)).open() as right,
        ):
            if side == "listener":
                listener = await right.listen("memory://fuzzed")
                for _ in range(20):
                    wire = await left.dial(parse("memory://fuzzed"))
                    await say_all(wire, [Frame(Type.HELLO, 0, meta=bomb).encode()])
                    with contextlib.suppress(TransportError):
                        await wire.recv_head()
                    wire.abort()
                await until(lambda: listener.num_refused == 20)  # type: ignore[attr-defined]
                await alive(*await meet(left, listener))
                return
            tasks: list[asyncio.Task[None]] = []
            bound = await right.bind(
                parse("memory://fuzzed"),
                lambda wire: tasks.append(asyncio.create_task(answer(wire))),
            )
            with pytest.raises((RemoteProtocol, Refused)):
                await left.connect("memory://fuzzed")
            await asyncio.wait(tasks)
            bound.close()

    assert _peak(lambda: _run(test)) < MEMORY_LIMIT


def _peak(work: Callable[[], None]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _floods() -> dict[str, Callable[[RawPeer, int], Awaitable[None]]]:
    async def messages(peer: RawPeer, number: int) -> None:
        await peer.say(Type.MESSAGE, kind=4, meta=bytes(number % 2000))

    async def empty(peer: RawPeer, number: int) -> None:
        await peer.say(Type.MESSAGE, kind=4)

    async def offers(peer: RawPeer, number: int) -> None:
        await peer.say(Type.OFFER, argument=number + 1, body_bytes=1 << 20)

    async def withdrawn(peer: RawPeer, number: int) -> None:
        await peer.say(Type.OFFER, argument=number + 1, body_bytes=1 << 20)
        await peer.say(Type.WITHDRAW, argument=number + 1)

    async def pings(peer: RawPeer, number: int) -> None:
        await peer.say(Type.PING)

    async def pongs(peer: RawPeer, number: int) -> None:
        await peer.say(Type.PONG)

    async def withdrawals(peer: RawPeer, number: int) -> None:
        await peer.say(Type.WITHDRAW, argument=number)

    async def credit(peer: RawPeer, number: int) -> None:
        await peer.say(Type.CREDIT, argument=1 << 20)

    async def regions(peer: RawPeer, number: int) -> None:
        await peer.share(100)
        await peer.say(Type.UNSHARE, argument=number + 1)

    one = MemoryRegion(100)

    async def shared(peer: RawPeer, number: int) -> None:
        meta = peer.wire.share(one)
        await peer.say(Type.REGION, argument=number + 1, meta=meta, body_bytes=100)

    messaging = (messages, empty, offers, withdrawn, withdrawals, credit)
    every = (*messaging, pings, pongs, regions, shared)
    return {flood.__name__: flood for flood in every}


async def _recv_all(link: Link) -> None:
    while True:
        await link.recv(lambda head: [bytearray(head.body_bytes)])


@pytest.mark.parametrize("flood", _floods())
def test_floods_that_nobody_reads(flood: str) -> None:
    """A peer that sends without end, and reads nothing, to a user that receives nothing."""
    say = _floods()[flood]

    async def test() -> None:
        async with raw_peer(**SETTINGS) as raw:
            with contextlib.suppress(TransportError, TimeoutError):
                for number in range(6_000):
                    async with asyncio.timeout(0.2):
                        await say(raw.peer, number)
            raw.peer.wire.abort()
            with pytest.raises((PeerLost, RemoteProtocol)):
                await _recv_all(raw.link)

    assert _peak(lambda: _run(test)) < MEMORY_LIMIT


def _recorded() -> list[tuple[bytes, bytes]]:
    """What the side that dialled sent in a conversation, after the handshake: heads, bodies."""
    file = io.BytesIO()

    async def talk() -> None:
        left = RecordingTransport(
            MemoryTransport(config("a", part_bytes=40_000, checksum_bodies=True)),
            file,
            lambda: 0.0,
            keep_bodies=True,
        )
        async with left.open(), MemoryTransport(config("b")).open() as right:
            listener = await right.listen("memory://recorded")
            a, b = await meet(left, listener)
            for number in range(4):
                await alive(a, b)
                await a.send(number, b"meta", [bytes(3000)])
                await b.recv(lambda head: [bytearray(head.body_bytes)])
            await a.close()

    asyncio.run(talk())
    frames: list[tuple[bytes, bytes]] = []
    for entry in read_recording(io.BytesIO(file.getvalue())):
        if entry.sent and not entry.is_body:
            frames.append((entry.data or b"", b""))
        elif entry.sent:
            frames[-1] = frames[-1][0], entry.data or b""
    return frames[2:]


@pytest.fixture(scope="module")
def recorded() -> list[tuple[bytes, bytes]]:
    return _recorded()


def _mutate(head: bytes, chance: random.Random) -> bytes:
    """One field changed, and most often a sound checksum."""
    damaged = bytearray(head)
    for _ in range(chance.choice((1, 1, 3))):
        at = chance.choice((2, 3, 4, 5, 6, 8, 16, 24, 25, 27, 32, 36, chance.randrange(len(head))))
        damaged[at % len(head)] = chance.choice((0, 1, 2, 9, 255, chance.randrange(256)))
    if chance.random() < 0.8:
        damaged[HEAD_BYTES - 4 : HEAD_BYTES] = zlib.crc32(damaged[: HEAD_BYTES - 4]).to_bytes(
            4, "little"
        )
    return bytes(damaged)


@pytest.mark.parametrize("seed", range(40))
def test_a_recorded_conversation_mutated(recorded: list[tuple[bytes, bytes]], seed: int) -> None:
    chance = random.Random(seed)
    frames = list(recorded)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(frames))
        head, body = frames[at]
        match chance.randrange(5):
            case 0:
                del frames[at]
            case 1:
                frames.insert(at, (head, body))
            case 2:
                frames[at] = head, body[: len(body) // 2]
            case _:
                frames[at] = _mutate(head, chance), body

    async def test() -> None:
        async with raw_peer(**SETTINGS) as raw:

            async def say(peer: RawPeer) -> None:
                listening = asyncio.create_task(peer.until_cut_off())
                try:
                    for head, body in frames:
                        async with asyncio.timeout(0.2):
                            await peer.wire.send(head, [memoryview(body)] if body else [])
                        await asyncio.sleep(0)
                except TimeoutError:
                    pass
                finally:
                    listening.cancel()
                    await asyncio.wait([listening])

            assert await _against(raw, say)

    assert _peak(lambda: _run(test)) < 3 * MEMORY_LIMIT


@pytest.mark.parametrize("seed", range(10))
def test_bytes_on_a_socket(seed: int) -> None:
    """The same over tcp, where heads and bodies are one stream: noise, mutated hellos, and frames
    that promise more than they bring."""
    tcp = pytest.importorskip("transports.tcp")
    chance = random.Random(seed)
    hello = Frame(Type.HELLO, 0, meta=make_hello(config("x"), nonce()).raw).encode()
    said = [
        chance.randbytes(chance.randrange(2000)),
        hello[: chance.randrange(len(hello))],
        _mutate(hello, chance) + chance.randbytes(100),
        hello + chance.randbytes(500),
        hello + Frame(Type.PROOF, 1, meta=bytes(32), body_bytes=1 << 62).encode(),
    ]

    async def test() -> None:
        quick = {**SETTINGS, "handshake_s": 0.5, "token": b"0123456789abcdef"}
        left: WireTransport = tcp.TcpTransport(config("a", **quick))
        right: WireTransport = tcp.TcpTransport(config("b", **quick))
        async with left.open(), right.open():
            listener = await right.listen("tcp://127.0.0.1:0")
            port = parse(listener.address).port
            for data in said:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(data)
                if chance.random() < 0.5:
                    writer.write_eof()
                with contextlib.suppress(ConnectionError):
                    while await reader.read(1000):
                        pass
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()
            await alive(*await meet(left, listener))

    _run(test)


@settings(max_examples=40)
@given(st.lists(FRAMES.map(lambda f: _one(f, 0)) | st.binary(max_size=100), max_size=3))
def test_a_listener_that_says_anything(heads: list[bytes]) -> None:
    """Who dials it hears a typed error in bounded time."""

    async def test() -> None:
        async with (
            MemoryTransport(config("a", **{**SETTINGS, "handshake_s": 0.05})).open() as left,
            MemoryTransport(config("b", **SETTINGS)).open() as right,
        ):
            tasks: list[asyncio.Task[None]] = []
            bound = await right.bind(
                parse("memory://fuzzed"),
                lambda wire: tasks.append(asyncio.create_task(say_all(wire, heads))),
            )
            with pytest.raises((RemoteProtocol, Refused, Unreachable)):
                await left.connect("memory://fuzzed")
            await asyncio.wait(tasks)
            bound.close()

    _run(test)


def test_what_a_mutation_is() -> None:
    """The mutations above do reach past the checksum."""
    chance, sound = random.Random(1), 0
    head = Frame(Type.MESSAGE, 3, meta=b"meta").encode()
    for _ in range(300):
        with contextlib.suppress(RemoteProtocol):
            decode(_mutate(head, chance))
            sound += 1
    assert sound > 50
