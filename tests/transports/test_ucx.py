"""Links over UCX: what is UCX's own about them; the promises of all links are tested elsewhere."""

import asyncio
import contextlib
import gc
import importlib.util
import itertools
import logging
import os
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.transports.linked import SHORT, Linked, config, linked
from tests.transports.shared_memory import segments_of
from transports import ucp, ucx, ucx_region, ucx_worker
from transports.api import Placer, Span
from transports.base import WireListener
from transports.errors import (
    LocalMisuse,
    PeerClosed,
    PeerLost,
    RegionClosed,
    RemoteProtocol,
    Unreachable,
    Unsupported,
)
from transports.pieces import matched
from transports.registry import make_transport
from transports.ucx import UcxTransport, UcxWire
from transports.ucx_bootstrap import MAX_FRAME_BYTES
from transports.ucx_memory import PIECE_BYTES, address_of, gets, pieces, runs
from transports.ucx_operation import Get
from transports.ucx_settings import settings

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ucxx") is None, reason="ucxx isn't installed (the extra is `ucx`)"
)

HERE = "ucx://127.0.0.1:0"
MIB = 1 << 20


def _wire(link: Any) -> UcxWire:
    wire = link._wire
    assert isinstance(wire, UcxWire)
    return wire


async def _talk(pair: Linked, size: int = 3 * MIB) -> None:
    for sender, receiver in ((pair.near, pair.far), (pair.far, pair.near)):
        source, target = os.urandom(size), bytearray(size)
        views = [memoryview(target)[:7], memoryview(target)[7:]]
        async with asyncio.TaskGroup() as group:
            group.create_task(sender.send(1, b"meta", [source[:100], source[100:]]))
            await receiver.recv(_placer(views))
        assert target == source


async def _bye(pair: Linked) -> None:
    await pair.near.close()
    with pytest.raises(PeerClosed):
        await pair.far.recv()


async def _no_reads(pair: Linked) -> None:
    """Neither side offers them or asks for them, and the link goes on."""
    region = pair.far_transport.allocate(1000)
    for link in (pair.near, pair.far):
        assert not link.capabilities.one_sided_reads
        with pytest.raises(Unsupported):
            link.read(1, [Span(0, 1)], [bytearray(1)])
    with pytest.raises(Unsupported):
        await pair.far.share(region)
    await _talk(pair, 10)


# -- memory --------------------------------------------------------------------------------------


def test_addresses_of_all_kinds_of_memory() -> None:
    memory = bytearray(100)
    view = memoryview(memory)
    assert address_of(view[7:]) == address_of(view) + 7
    assert address_of(view.toreadonly()[7:]) == address_of(view) + 7
    constant = memoryview(b"constant")
    assert address_of(constant[3:]) == address_of(constant) + 3


def test_views_that_touch_are_one_run() -> None:
    view = memoryview(bytearray(100))
    start = address_of(view)
    assert runs([view[:10], view[10:20], view[30:40]]) == [start, 20, start + 30, 10]
    assert runs([view[10:20], view[:10]]) == [start + 10, 10, start, 10]
    assert runs([]) == []


@given(st.lists(st.integers(1, 3 * MIB), min_size=1, max_size=6))
def test_pieces_are_cut_alike_on_both_sides(sizes: list[int]) -> None:
    scattered = [memoryview(bytearray(size)) for size in sizes]
    whole = [memoryview(bytearray(sum(sizes)))]
    ours = [piece.num_bytes for _, piece in pieces(0, scattered)]
    assert ours == [piece.num_bytes for _, piece in pieces(0, whole)]
    assert set(ours[:-1]) <= {PIECE_BYTES} and sum(ours) == sum(sizes)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 100)), max_size=12), st.randoms())
def test_gets_are_few_and_complete(cuts: list[tuple[int, int]], chance: random.Random) -> None:
    spans = [Span(offset, length) for offset, length in cuts]
    size = sum(span.length for span in spans)
    memory, into, end = memoryview(bytearray(2 * size + 1)), [], 0
    while end < size:
        step = chance.randint(1, size - end)
        into.append(memory[end : end + step])
        end += step
    base = 1 << 40
    want = [base + span.offset + i for span in spans for i in range(span.length)]
    found = gets(base, matched(spans, into, 500))
    assert [remote + i for _, remote, length in found for i in range(length)] == want
    here = [local + i for local, _, length in found for i in range(length)]
    assert here == [address_of(memory) + i for i in range(size)]
    for (local, remote, length), (next_local, next_remote, _) in itertools.pairwise(found):
        assert (next_local, next_remote) != (local + length, remote + length)


def test_large_gets_are_cut() -> None:
    memory = memoryview(bytearray(2 * PIECE_BYTES + 5))
    spans = [Span(3, PIECE_BYTES), Span(3 + PIECE_BYTES, PIECE_BYTES + 5)]
    found = gets(0, matched(spans, [memory], 3 * PIECE_BYTES))
    assert [length for _, _, length in found] == [PIECE_BYTES, PIECE_BYTES, 5]


# -- settings, lanes -------------------------------------------------------------------------------


def test_the_users_settings_come_first() -> None:
    ours = settings({"UCX_RNDV_THRESH": "1M", "UCX_TLS": "tcp"})
    assert "RNDV_THRESH" not in ours and ours["POSIX_ERROR_HANDLING"] == "y"


def test_shared_memory_within_one_host(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with linked(HERE) as pair:
            for link in (pair.near, pair.far):
                wire = _wire(link)
                assert "cma/memory" in wire.lanes and not wire.concern
            await _talk(pair)
            await _bye(pair)

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert not caplog.records


def test_tcp_where_the_user_wants_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with linked(HERE) as pair:
            wire = _wire(pair.near)
            assert {lane.partition("/")[0] for lane in wire.lanes} == {"tcp"}
            assert wire.least_part_bytes == 32 << 20  # as within any host
            await _talk(pair)
            await _no_reads(pair)
            await _bye(pair)

    monkeypatch.setenv("UCX_TLS", "tcp")
    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert not caplog.records


@pytest.mark.parametrize(
    "missing",
    [
        # nothing but tcp; nothing that reads
        ["POSIX_ERROR_HANDLING", "CMA_MEMORY_INVALIDATE"],
        ["CMA_MEMORY_INVALIDATE"],
    ],
)
def test_slow_lanes_within_one_host_are_never_silent(
    missing: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with linked(HERE) as pair:
            assert "within one host" in _wire(pair.near).concern
            await _talk(pair)
            await _no_reads(pair)
            await _bye(pair)

    for name in missing:
        monkeypatch.setenv(f"UCX_{name}", "n")
    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert len(caplog.records) == 2


def test_a_device_that_has_gone_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers need a new context then; what the old one made goes on."""
    real, failures = ucx_worker.Worker, 0

    def worker(*arguments: Any) -> ucx_worker.Worker:
        nonlocal failures
        if failures:
            failures -= 1
            raise ucp.error_of(ucp.Status.NO_DEVICE, "worker")
        return real(*arguments)

    async def main() -> None:
        nonlocal failures
        async with linked(HERE) as pair:
            region = pair.far_transport.allocate(10)
            region.view[:] = b"0123456789"
            await pair.far.share(region)
            failures = 1
            listener = await pair.far_transport.listen(HERE)
            near = await pair.near_transport.connect(listener.address)
            far = await listener.accept()
            assert failures == 0
            for owner, reader in ((pair.far, pair.near), (far, near)):
                number = await owner.share(region)
                await owner.send(1)
                await reader.recv()
                target = bytearray(10)
                await reader.read(number, [Span(0, 10)], [target]).wait()
                assert target == b"0123456789"

    monkeypatch.setattr(ucx, "Worker", worker)
    asyncio.run(main())


# -- strangers and nonsense ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        (MAX_FRAME_BYTES + 1).to_bytes(4, "little"),
        b"\0\0\0\0" * 100,
        b"\x05\0\0\0hello",
        b"",
    ],
)
def test_strangers(said: bytes) -> None:
    """They cost a socket until they are cut off, and nobody's link."""

    async def main() -> None:
        async with linked(HERE, **SHORT, handshake_s=0.5) as pair:
            listener = await pair.far_transport.listen(HERE)
            assert isinstance(listener, WireListener)
            host, port = listener.address.removeprefix("ucx://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(said)
            with contextlib.suppress(ConnectionError):
                while await reader.read(1000):
                    pass
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            assert listener.num_refused == 1
            await _talk(pair, 100)

    asyncio.run(main())


@contextlib.asynccontextmanager
async def _refused_by_far(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """The far side ends a connect in its last step."""
    async with (
        make_transport(HERE, config("far", handshake_s=2.0)).open() as far,
        make_transport(HERE, config("near", handshake_s=2.0)).open() as near,
    ):
        listener = await far.listen(HERE)
        with pytest.raises((Unreachable, RemoteProtocol)):
            await near.connect(listener.address)
        assert isinstance(listener, WireListener)
        monkeypatch.undo()
        link = await near.connect(listener.address)
        accepted = await listener.accept()
        await link.send(1)
        assert (await accepted.recv()).kind == 1
        yield


@pytest.mark.parametrize("address", [b"", bytes(40 << 10)])
def test_an_introduction_of_absurd_size(monkeypatch: pytest.MonkeyPatch, address: bytes) -> None:
    async def main() -> None:
        async with _refused_by_far(monkeypatch):
            pass

    monkeypatch.setattr(ucx_worker.Worker, "address", lambda _: address)
    asyncio.run(main())


def test_an_introduction_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        real = ucx._INTRODUCTION

        class _Other:
            size = real.size
            unpack_from = real.unpack_from

            @staticmethod
            def pack(_: int, *rest: Any) -> bytes:
                return real.pack(99, *rest)

        monkeypatch.setattr(ucx, "_INTRODUCTION", _Other)
        async with _refused_by_far(monkeypatch):
            pass

    asyncio.run(main())


#: Where in the description of a region its address is.
_TO_ADDRESS = 24


@pytest.mark.parametrize(
    "description",
    [
        b"",
        bytes(_TO_ADDRESS + 8),
        bytes(60000),
        b"\xff" * 200,
        bytes(_TO_ADDRESS + 8) + b"\xff" * 300,
        bytes(_TO_ADDRESS) + (1 << 63).to_bytes(8, "little") + b"\1" * 30,
    ],
)
def test_a_region_described_in_nonsense(
    monkeypatch: pytest.MonkeyPatch, description: bytes
) -> None:
    async def main() -> None:
        async with linked(HERE) as pair:
            monkeypatch.setattr(ucx_region.UcxRegion, "describe", lambda *_: description)
            await pair.far.share(pair.far_transport.allocate(100))
            with pytest.raises(RemoteProtocol):
                await pair.near.recv()

    asyncio.run(main())


@pytest.mark.parametrize("where", [8, 1 << 46])
def test_a_region_that_lies_about_its_address(monkeypatch: pytest.MonkeyPatch, where: int) -> None:
    real = ucx_region.UcxRegion.describe

    def lie(region: ucx_region.UcxRegion, context: int) -> bytes:
        told = real(region, context)
        return told[:_TO_ADDRESS] + where.to_bytes(8, "little") + told[_TO_ADDRESS + 8 :]

    async def main() -> None:
        async with linked(HERE) as pair:
            number = await pair.far.share(pair.far_transport.allocate(100_000))
            await pair.far.send(1)
            await pair.near.recv()
            target = bytearray(100_000)
            read = pair.near.read(number, [Span(0, 100_000)], [target])
            with pytest.raises(PeerLost):
                await read.wait()
            await read.quiet()
            assert not any(target)

    monkeypatch.setattr(ucx_region.UcxRegion, "describe", lie)
    monkeypatch.setattr(ucx_region, "found", lambda *_: None)
    asyncio.run(main())


def test_a_closed_region_is_let_go_of_when_its_gets_have_ended() -> None:
    """No more are posted; those under way can't be stopped, and use its handle."""
    started: list[Get] = []
    dropped: list[int] = []

    class Idle:
        unpack = staticmethod(lambda _: 77)
        start = staticmethod(started.append)
        drop = staticmethod(dropped.append)

    async def main() -> None:
        region = ucx_region.RemoteUcxRegion(Idle(), bytes(100), 1000)  # type: ignore[arg-type]
        reads = [region.read(matched([Span(0, 5)], [memoryview(bytearray(5))], 1000)) for _ in "12"]
        region.close(RegionClosed("by its owner"))
        for read in reads:
            with pytest.raises(RegionClosed):
                await read.wait()
        quiet = asyncio.create_task(region.quiet())
        for getting in started:
            await asyncio.sleep(0)
            assert not quiet.done() and not dropped
            getting.forget()
        await quiet
        assert dropped == [77]

    asyncio.run(main())


def test_a_region_that_its_owner_forgot() -> None:
    """It is registered no more, before its memory goes."""
    unmapped: list[tuple[int, int]] = []

    class Context:
        class library:
            ucp_mem_unmap = staticmethod(lambda *handles: unmapped.append(handles))

    region = ucx_region.UcxRegion(Context(), 10)  # type: ignore[arg-type]
    region._handles[1] = 2
    del region
    gc.collect()
    assert unmapped == [(1, 2)]


def test_a_region_of_another_transport() -> None:
    async def main() -> None:
        async with linked(HERE) as pair:
            with pytest.raises(LocalMisuse):
                await pair.near.share(pair.far_transport.allocate(10))
            memory = make_transport("memory://x", config()).allocate(10)
            with pytest.raises(LocalMisuse):
                await pair.near.share(memory)
            await _talk(pair, 10)

    asyncio.run(main())


# -- ends ------------------------------------------------------------------------------------------


def _placer(views: list[memoryview]) -> Placer:
    return lambda _: views


def test_buffers_may_go_after_an_abort() -> None:
    async def main() -> None:
        for scattered in (False, True):
            async with linked(HERE) as pair:
                source, target = b"x" * (64 * MIB), bytearray(64 * MIB)
                step = 64 << 10 if scattered else len(target)
                view = memoryview(target)
                views = [view[i : i + step] for i in range(0, len(target), 2 * step)]
                body = memoryview(source)[: sum(map(len, views))]
                sending = asyncio.create_task(pair.near.send(1, b"", [body]))
                place = _placer(views)
                receiving = asyncio.create_task(pair.far.recv(place))
                while not target[0]:  # noqa: ASYNC110 (nobody tells)
                    await asyncio.sleep(0)
                pair.far.abort()
                await pair.far.quiet()
                await asyncio.wait([sending, receiving])
                assert receiving.exception() and sending.exception()
                del views, place, receiving
                view.release()
                target.clear()  # BufferError if anything still refers to it
                await pair.near.quiet()

    asyncio.run(main())


def _native_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_nothing_is_left(capfd: pytest.CaptureFixture[str]) -> None:
    async def main(*, rude: bool) -> None:
        async with linked(HERE) as pair:
            region = pair.far_transport.allocate(MIB)
            await pair.far.share(region)
            await pair.far.send(1)
            await pair.near.recv()
            await _talk(pair)
            if not rude:
                region.close()
                await _bye(pair)

    asyncio.run(main(rude=False))
    threads = _native_threads()
    for rude in (False, True):
        asyncio.run(main(rude=rude))
        assert _native_threads() == threads
        assert not segments_of(os.getpid())
        assert "/dev/shm/" not in Path("/proc/self/maps").read_text()
    said = capfd.readouterr()
    assert not said.out and not said.err


def test_without_ucxx(monkeypatch: pytest.MonkeyPatch) -> None:
    ucp.library.cache_clear()
    monkeypatch.setitem(sys.modules, "ucxx._lib.libucxx", None)
    try:
        with pytest.raises(Unsupported, match="pip install ucxx"):
            UcxTransport(config())
    finally:
        monkeypatch.undo()
        ucp.library.cache_clear()


def test_foreign_statuses_have_their_names() -> None:
    assert ucp.name_of(-80) == "UCS_ERR_ENDPOINT_TIMEOUT"
    assert ucp.name_of(-33) == "UCS status -33"
    assert isinstance(ucp.error_of(-9, "x"), RemoteProtocol)
    assert isinstance(ucp.error_of(-3, "x"), PeerLost)
    assert isinstance(ucp.error_of(-22, "x"), Unsupported)
