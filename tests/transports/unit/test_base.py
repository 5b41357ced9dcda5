"""Listening, dialling, and who owns what, where the conformance suite doesn't look."""

import asyncio
import itertools
from typing import Any

import pytest

from tests.transports.linked import config
from transports import base, greet
from transports.address import Address, parse
from transports.base import Bound, OnWire
from transports.errors import LocalMisuse, PeerLost, Refused, TransportError, Unreachable
from transports.frame import Frame, Type, decode
from transports.handshake import make_hello
from transports.memory import MemoryTransport
from transports.testing.setup import until
from transports.wire import Wire


def _run(test: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await test()

    asyncio.run(limited())


@pytest.mark.parametrize("turns", range(10))
def test_a_listener_closed_in_a_handshake_tells_the_dialler_at_once(turns: int) -> None:
    """Also when the handshake's task hasn't had its first turn."""

    async def test() -> None:
        async with (
            MemoryTransport(config("a")).open() as left,
            MemoryTransport(config("b")).open() as right,
        ):
            listener = await right.listen("memory://b")
            connecting = asyncio.create_task(left.connect("memory://b"))
            for _ in range(turns):
                await asyncio.sleep(0)
            await listener.close()
            async with asyncio.timeout(0.5):
                try:
                    link = await connecting
                except Unreachable:
                    return
                with pytest.raises(PeerLost):
                    await link.recv()

    _run(test)


def test_too_many_that_wait_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAX_WAITING", 3)

    async def test() -> None:
        async with (
            MemoryTransport(config("a")).open() as left,
            MemoryTransport(config("b")).open() as right,
        ):
            listener = await right.listen("memory://b")
            links = [await left.connect("memory://b") for _ in range(3)]
            with pytest.raises(Unreachable):
                await left.connect("memory://b")
            accepted = await listener.accept()
            links.append(await left.connect("memory://b"))
            await links[0].send(1)
            assert (await accepted.recv()).kind == 1

    _run(test)


def test_silent_peers_do_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAX_WAITING", 3)

    async def test() -> None:
        async with (
            MemoryTransport(config("a")).open() as left,
            MemoryTransport(config("b")).open() as right,
        ):
            listener = await right.listen("memory://b")
            silent = [await left.dial(parse("memory://b")) for _ in range(5)]
            await asyncio.sleep(0)
            async with asyncio.timeout(2):
                link = await left.connect("memory://b")
                accepted = await listener.accept()
            await link.send(7)
            assert (await accepted.recv()).kind == 7
            for wire in silent:
                wire.abort()

    _run(test)


def test_a_flood_from_one_place_leaves_slow_peers_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "MAX_WAITING", 4)

    class Slow(MemoryTransport):
        """It dials, and says hello when it is told to."""

        go = asyncio.Event()

        async def dial(self, address: Address) -> Wire:
            wire = await super().dial(address)
            await self.go.wait()
            return wire

    class Door(MemoryTransport):
        """The first comes from one host, all others from another."""

        hosts = itertools.chain(["10.0.0.1"], itertools.repeat("10.0.0.2"))
        ports = itertools.count(5000)

        async def bind(self, address: Address, on_wire: OnWire) -> Bound:
            def arrive(wire: Wire) -> None:
                wire.peer_address = f"tcp://{next(self.hosts)}:{next(self.ports)}"
                on_wire(wire)

            return await super().bind(address, arrive)

    async def test() -> None:
        async with Slow(config("slow")).open() as slow, Door(config("b")).open() as right:
            listener = await right.listen("memory://b")
            connecting = asyncio.create_task(slow.connect("memory://b"))
            await asyncio.sleep(0)
            flood = []
            for _ in range(20):
                flood.append(await MemoryTransport(config("flood")).dial(parse("memory://b")))
                await asyncio.sleep(0)
            Slow.go.set()
            async with asyncio.timeout(2):
                link, accepted = await connecting, await listener.accept()
            await link.send(7)
            assert (await accepted.recv()).kind == 7
            for wire in flood:
                wire.abort()

    _run(test)


def test_a_bug_in_a_handshake_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        async with (
            MemoryTransport(config("a", handshake_s=1.0)).open() as left,
            MemoryTransport(config("b")).open() as right,
        ):
            listener = await right.listen("memory://b")

            async def fails(*_: Any) -> Any:
                raise ZeroDivisionError("a bug")

            with monkeypatch.context() as patched:
                patched.setattr(base, "respond", fails)
                with pytest.raises(Unreachable):
                    await left.connect("memory://b")
            link = await left.connect("memory://b")
            await (await listener.accept()).send(1)
            assert (await link.recv()).kind == 1

    with pytest.raises(ExceptionGroup) as caught:
        _run(test)
    assert caught.group_contains(ZeroDivisionError)


def test_a_wire_that_comes_after_the_end_is_cut_off() -> None:
    async def test() -> None:
        left = MemoryTransport(config("a"))
        async with MemoryTransport(config("b")).open() as right:
            await right.listen("memory://b")
            dialling = asyncio.Event()

            async def late(address: Any) -> Any:
                dialling.set()
                await asyncio.sleep(0.01)
                return await MemoryTransport.dial(left, address)

            left.dial = late  # type: ignore[method-assign]
            async with left.open():
                connecting = asyncio.create_task(left.connect("memory://b"))
                await dialling.wait()
            with pytest.raises(LocalMisuse):
                await connecting

    _run(test)


def test_leaving_the_context_ends_a_handshake_with_a_silent_listener() -> None:
    async def test() -> None:
        wires: list[Wire] = []
        left = MemoryTransport(config("a", handshake_s=5.0))
        async with left.open():
            bound = await left.bind(parse("memory://silent"), wires.append)
            connecting = asyncio.create_task(left.connect("memory://silent"))
            await until(lambda: bool(wires))
            bound.close()
        async with asyncio.timeout(1):
            with pytest.raises(LocalMisuse):
                await connecting

    _run(test)


def test_listening_that_comes_after_the_end_is_undone() -> None:
    async def test() -> None:
        left = MemoryTransport(config("a"))
        binding = asyncio.Event()

        async def late(address: Any, on_wire: Any) -> Any:
            binding.set()
            await asyncio.sleep(0.01)
            return await MemoryTransport.bind(left, address, on_wire)

        left.bind = late  # type: ignore[method-assign]
        async with left.open():
            listening = asyncio.create_task(left.listen("memory://b"))
            await binding.wait()
        with pytest.raises(LocalMisuse):
            await listening
        async with MemoryTransport(config("b")).open() as right:
            await right.listen("memory://b")

    _run(test)


@pytest.mark.parametrize("answer", [Type.WELCOME, Type.PROOF, Type.BYE])
def test_a_listener_that_speaks_out_of_turn(answer: Type) -> None:
    async def test() -> None:
        wires: list[Wire] = []
        left = MemoryTransport(config("a"))

        async def answer_it() -> None:
            await until(lambda: bool(wires))
            await wires[0].send(Frame(answer, 0).encode())

        async with left.open():
            bound = await left.bind(parse("memory://odd"), wires.append)
            try:
                answering = asyncio.create_task(answer_it())
                with pytest.raises(TransportError):
                    await left.connect("memory://odd")
                await answering
            finally:
                bound.close()

    _run(test)


def test_who_refuses_waits_until_it_was_read() -> None:
    """The reason arrives although the wire is aborted afterwards; a peer that doesn't read it
    isn't waited for longer than `close_s`."""

    async def test() -> None:
        async with (
            MemoryTransport(config("a")).open() as left,
            MemoryTransport(config("b", token=bytes(16), close_s=0.1)).open() as right,
        ):
            listener = await right.listen("memory://b")
            for reads in (True, False):
                wire = await left.dial(parse("memory://b"))
                hello = make_hello(config("x"), bytes(32))
                await wire.send(Frame(Type.HELLO, 0, meta=hello.raw).encode())
                if reads:
                    await asyncio.sleep(0.05)
                    assert decode(await wire.recv_head()).type is Type.REFUSED
                    wire.abort()
                else:
                    async with asyncio.timeout(1):
                        await until(lambda: listener.num_refused == 2)  # type: ignore[attr-defined]
                    wire.abort()

    _run(test)


def test_a_refusal_of_any_length_travels() -> None:
    async def test() -> None:
        sent: list[bytes] = []

        class Wire:
            async def send(self, head: bytes) -> None:
                sent.append(head)

            async def close(self) -> None:
                sent.append(b"closed")

            async def recv_head(self) -> bytes:
                sent.append(b"waited for the peer")
                raise PeerLost("gone")

        await greet._refuse(Wire(), 1, Refused("ü" * 100_000), config())  # type: ignore[arg-type]
        assert decode(sent[0]).meta == "ü".encode() * 512
        assert sent[1:] == [b"closed", b"waited for the peer"]

    _run(test)
