"""How links over UCX begin and end: what both sides agree on, and the order of the last things."""

import asyncio
import importlib.util
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.transports.linked import config, linked
from tests.transports.test_ucx_unread import some_turns, wires
from transports import ucp, ucx
from transports.address import Address
from transports.api import Span
from transports.errors import LocalMisuse, PeerLost, Unsupported
from transports.faulty import FaultyTransport
from transports.sockets import dialled
from transports.testing.setup import NO_FAULTS
from transports.ucx import UcxTransport
from transports.ucx_context import Context
from transports.ucx_operation import Flush
from transports.ucx_region import UcxRegion
from transports.ucx_settings import DEFAULTS
from transports.ucx_worker import Worker

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ucxx") is None, reason="ucxx isn't installed (the extra is `ucx`)"
)

HERE = "ucx://127.0.0.1:0"


def test_ucx_takes_what_our_promises_stand_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Receivers fetch, or a peer would write here after the end; small messages don't wait."""
    for name in DEFAULTS:  # who imports ucxx gets some wishes of its own
        monkeypatch.delenv(f"UCX_{name}", raising=False)
    context = Context()
    try:
        assert context.config["RNDV_SCHEME"] == "get_zcopy"
        assert context.config["RNDV_THRESH"] == "intra:72K,inter:72K"
        assert context.config["KEEPALIVE_INTERVAL"] == "inf"
        assert context.config["TLS"] == "^sysv"
    finally:
        context.close()


def test_ucx_that_can_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who listens hears of it, and not each peer in vain."""

    async def main() -> None:
        async with UcxTransport(config()).open() as transport:
            with pytest.raises(Unsupported, match="can't start"):
                await transport.listen(HERE)
            with pytest.raises(Unsupported, match="can't start"):
                await transport.connect("ucx://127.0.0.1:1")

    monkeypatch.setenv("UCX_TLS", "nonsense")
    asyncio.run(main())


def test_dialled_when_its_transport_has_been_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """No context comes into being that nobody would close."""
    left = asyncio.Event()

    async def slowly(address: Address, limit_s: float) -> socket.socket:
        sock = await dialled(address, limit_s)
        await left.wait()
        return sock

    async def main() -> None:
        near = UcxTransport(config("near"))
        async with UcxTransport(config("far")).open() as far:
            listener = await far.listen(HERE)
            async with near.open():
                connecting = asyncio.create_task(near.connect(listener.address))
                await some_turns()
            left.set()
            with pytest.raises(LocalMisuse):
                await connecting
            assert near._context is None

    monkeypatch.setattr(ucx, "dialled", slowly)
    asyncio.run(main())


def test_one_side_without_lanes_that_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then there are no reads in either direction: a region would be nonsense to that side."""
    real, asked = ucx.UcxWire._transports, list[ucx.UcxWire]()

    def transports(wire: ucx.UcxWire) -> set[str]:
        asked.append(wire)
        return {"posix"} if wire is asked[0] else real(wire)

    async def main() -> None:
        async with linked(HERE) as pair:
            for link, transport in (
                (pair.near, pair.near_transport),
                (pair.far, pair.far_transport),
            ):
                assert not link.capabilities.one_sided_reads
                with pytest.raises(Unsupported, match="send messages"):
                    await link.share(transport.allocate(10))
            await pair.near.send(1)
            await pair.far.recv()

    monkeypatch.setattr(ucx.UcxWire, "_transports", transports)
    asyncio.run(main())


def test_a_wrapped_link_knows_its_lanes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It learns of them only when its wire is trusted."""

    async def main() -> None:
        async with (
            UcxTransport(config("far")).open() as far,
            FaultyTransport(UcxTransport(config("near")), NO_FAULTS).open() as near,
        ):
            listener = await far.listen(HERE)
            link = await near.connect(listener.address)
            assert not link.capabilities.one_sided_reads

    monkeypatch.setenv("UCX_TLS", "tcp")
    asyncio.run(main())


def test_a_wire_that_breaks_under_what_it_has_just_received() -> None:
    """UCX crashes if it is asked about an endpoint or a worker that has gone."""

    async def main() -> None:
        async with wires() as (near, far):
            assert near._worker is not None and far._worker is not None
            region = UcxRegion(near._context, 10)
            description, address = near.share(region), near._worker.address()
            far.abort()
            with pytest.raises(PeerLost):
                far.attach(description, 10)
            with pytest.raises(PeerLost):
                far._worker.connect(address)
            with pytest.raises(PeerLost):
                far._worker.lanes()
            region.close()

    asyncio.run(main())


def test_goodbye_is_said_after_everything_was_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the peer would let go while something is still under way to it."""
    held = True

    class Held(Flush):
        def turn(self, worker: Worker) -> bool:
            return False if held else super().turn(worker)

    async def main() -> None:
        nonlocal held
        async with wires() as (near, far):
            closing = asyncio.create_task(near.close())
            await some_turns()
            assert not far._bootstrap.said_goodbye
            held = False
            assert near._worker is not None
            near._worker._schedule()
            await far.close()
            await closing
            assert far._bootstrap.said_goodbye

    monkeypatch.setattr(ucx, "Flush", Held)
    asyncio.run(main())


class _Spied:
    """A library that writes down some of its calls."""

    def __init__(self, real: Any, *names: str) -> None:
        self._real = real
        self._names = names
        #: Name and first argument.
        self.calls: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._real, name)
        return self._noted(name, call) if name in self._names else call

    def _noted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(first: int, *rest: Any) -> Any:
            self.calls.append((name, first))
            return call(first, *rest)

        return noted


@pytest.mark.parametrize("end", ["abort", "close"])
def test_handles_of_a_peers_memory_go_first(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """Before the endpoint that they belong to, each once."""
    made, gone, endpoint_gone = "ucp_ep_rkey_unpack", "ucp_rkey_destroy", "ucp_ep_close_nbx"
    spied = _Spied(ucp.library(), made, gone, endpoint_gone)

    async def main() -> None:
        async with linked(HERE) as pair:
            for _ in range(3):
                region = pair.far_transport.allocate(10)
                number = await pair.far.share(region)
                await pair.far.send(1)
                await pair.near.recv()
                await pair.near.read(number, [Span(0, 10)], [bytearray(10)]).wait()
            if end == "abort":
                pair.near.abort()
                await pair.near.quiet()
            else:
                await pair.near.close()

    monkeypatch.setattr(ucp, "library", lambda: spied)
    asyncio.run(main())
    endpoint = next(first for name, first in spied.calls if name == made)
    at_the_end = spied.calls.index((endpoint_gone, endpoint))
    assert [name for name, _ in spied.calls].count(made) == 3
    assert [name for name, _ in spied.calls].count(gone) == 3
    assert [name for name, _ in spied.calls[:at_the_end]].count(gone) == 3
