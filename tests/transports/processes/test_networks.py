"""Two hosts: unplugged, unplugged for a while, vanished, and far too slow."""

import asyncio
import contextlib
import os
import signal
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.transports.linked import config
from tests.transports.processes.child import Child, child
from tests.transports.processes.network import Network, network
from tests.transports.processes.peer import BODY_BYTES
from transports.api import Link
from transports.errors import PeerClosed, PeerLost
from transports.registry import make_transport

#: Far beyond any deadline of ours: only a hang takes that long.
HANG_S = 30
#: How long a peer may be silent here.
SOON = {"keepalive_s": 0.2, "lost_after_s": 1.0, "close_s": 1.0}


@pytest.fixture
def net() -> Iterator[Network]:
    with network() as made:
        yield made


@contextlib.contextmanager
def _far(net: Network, scenario: str, **settings: Any) -> Iterator[Child]:
    with child(scenario, f"tcp://{net.there}:0", net.prefix, **settings) as peer:
        yield peer


@contextlib.asynccontextmanager
async def _dialled(peer: Child, **settings: Any) -> AsyncIterator[Link]:
    async with (
        asyncio.timeout(HANG_S),
        make_transport(peer.address, config("test", **settings)).open() as transport,
    ):
        link = await transport.connect(peer.address)
        assert await asyncio.to_thread(peer.line) == "test"
        yield link


@pytest.mark.parametrize("scenario", ["wait", "pour", "drink"])
def test_unplugged_both_sides_find_out(net: Network, scenario: str) -> None:
    async def main(peer: Child) -> None:
        async with _dialled(peer, **SOON) as link:
            target = bytearray(BODY_BYTES)

            async def busy() -> None:
                while True:
                    if scenario == "drink":
                        await link.send(1, b"", [target])
                    else:
                        await link.recv(lambda _: [target])

            working = asyncio.create_task(busy())
            await asyncio.sleep(0.1)
            assert not working.done()
            net.set_cable("down")
            with pytest.raises(PeerLost):
                await working
            await link.quiet()
            assert await asyncio.to_thread(peer.line) == "PeerLost"

    with _far(net, scenario, **SOON) as peer:
        asyncio.run(main(peer))


def test_unplugged_for_a_while(net: Network) -> None:
    patient = {"keepalive_s": 0.2, "lost_after_s": 8.0}

    async def main(peer: Child) -> None:
        async with _dialled(peer, **patient) as link:
            source, target = os.urandom(8 << 20), bytearray(8 << 20)

            async def unplug() -> None:
                await asyncio.sleep(0.005)
                net.set_cable("down")
                await asyncio.sleep(0.5)
                net.set_cable("up")

            async with asyncio.TaskGroup() as group:
                group.create_task(unplug())
                group.create_task(link.send(1, b"", [source]))
                await link.recv(lambda _: [target])
            assert target == source
            await link.close()

    with _far(net, "echo", **patient) as peer:
        asyncio.run(main(peer))
        assert peer.line() == "PeerClosed"


def test_vanished_without_a_word(net: Network) -> None:
    """Half open: the other process dies when nothing of it can get through any more."""

    async def main(peer: Child) -> None:
        async with _dialled(peer, **SOON) as link:
            net.set_cable("down")
            peer.signal(signal.SIGKILL)
            peer.process.wait()
            net.set_cable("up")
            with pytest.raises(PeerLost):
                await link.recv()

    with _far(net, "wait") as peer:
        asyncio.run(main(peer))
        port = peer.address
    with child("echo", port, net.prefix) as again:

        async def after(peer: Child) -> None:
            async with _dialled(peer) as link:
                await link.send(1)
                await link.recv()

        asyncio.run(after(again))


@pytest.mark.parametrize("rate_mbit", [40, 8])
def test_a_slow_network(net: Network, rate_mbit: int) -> None:
    """Keep-alives that wait behind a body are no silence, and nothing piles up here."""
    size = (rate_mbit << 20) // 8 * 2  # two seconds
    net.slow_down(f"{rate_mbit}mbit")

    async def main(peer: Child) -> None:
        async with _dialled(peer, **SOON) as link:
            source, target = os.urandom(size), bytearray(size)
            tracemalloc.start()
            async with asyncio.TaskGroup() as group:
                group.create_task(link.send(1, b"", [source]))
                await link.recv(lambda _: [target])
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
            tracemalloc.stop()
            assert target == source

    with _far(net, "echo", **SOON) as peer:
        asyncio.run(main(peer))


def test_a_slow_network_and_a_close(net: Network) -> None:
    net.slow_down("40mbit")

    async def main(peer: Child) -> None:
        async with _dialled(peer) as link:
            assert (await link.recv(lambda _: [bytearray(50_000)])).meta == b"last words"
            with pytest.raises(PeerClosed):
                await link.recv()

    with _far(net, "farewell") as peer:
        asyncio.run(main(peer))
        assert peer.process.wait(HANG_S) == 0
