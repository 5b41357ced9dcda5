"""A real second process: killed, stopped, gone in mid-body; what this side makes of it."""

import asyncio
import contextlib
import importlib.util
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.transports.linked import SHORT, an_address, config
from tests.transports.processes.child import Child, child
from tests.transports.processes.peer import BODY_BYTES, LETTERS, REGION_BYTES
from tests.transports.shared_memory import files_that_stay
from transports.api import Link, Span
from transports.errors import PeerClosed, PeerLost, RegionClosed, Unreachable
from transports.registry import make_transport

#: Far beyond any deadline of ours: only a hang takes that long.
HANG_S = 20


@pytest.fixture(params=["tcp", "shm", "ucx"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "ucx" and importlib.util.find_spec("ucxx") is None:
        pytest.skip("ucxx isn't installed (the extra is `ucx`)")
    return an_address(request.param, tmp_path)


@contextlib.asynccontextmanager
async def _dialled(peer: Child, **settings: Any) -> AsyncIterator[Link]:
    async with (
        asyncio.timeout(HANG_S),
        make_transport(peer.address, config("test", **settings)).open() as transport,
    ):
        yield await transport.connect(peer.address)


async def _until_lost(link: Link) -> None:
    with pytest.raises(PeerLost):
        await link.recv()


#: The link's own deadlines are far away: only the connection can tell.
PATIENT = {"keepalive_s": 30.0, "lost_after_s": 90.0}


def test_a_body_through_another_process(address: str) -> None:
    async def main(peer: Child) -> None:
        async with _dialled(peer) as link:
            source, target = os.urandom(20 << 20), bytearray(20 << 20)
            await link.send(1, b"meta", [source])
            head = await link.recv(lambda _: [target])
            assert head.meta == b"meta" and target == source
            await link.close()
        assert await asyncio.to_thread(peer.line) == "test"
        assert await asyncio.to_thread(peer.line) == "PeerClosed"

    with child("echo", address) as peer:
        asyncio.run(main(peer))


def test_close_right_after_send_and_the_process_is_gone(address: str) -> None:
    async def main(peer: Child) -> None:
        async with _dialled(peer) as link:
            await asyncio.sleep(0.2)
            body = bytearray(50_000)
            assert (await link.recv(lambda _: [body])).meta == b"last words"
            assert body == b"b" * 50_000
            with pytest.raises(PeerClosed):
                await link.recv()

    with child("farewell", address) as peer:
        asyncio.run(main(peer))
        assert peer.process.wait(HANG_S) == 0


def test_killed_right_after_its_first_send(address: str) -> None:
    async def main(peer: Child) -> None:
        async with _dialled(peer, **PATIENT) as link:
            with contextlib.suppress(PeerLost):
                assert (await link.recv()).meta == b"last words"
            await _until_lost(link)

    with child("last_words", address) as peer:
        asyncio.run(main(peer))


async def _read_until_closed(link: Link, number: int, wanted: bytes) -> None:
    """Each read has the region's own bytes, or none to be used."""
    with contextlib.suppress(RegionClosed):
        while True:
            target = bytearray(len(wanted))
            await link.read(number, [Span(0, len(target))], [target]).wait()
            assert target == wanted
    assert not target.strip(wanted[:1] + bytes(1))


def test_regions_that_are_replaced_while_they_are_read(address: str) -> None:
    if address.startswith("tcp"):
        return

    async def main(peer: Child) -> None:
        async with _dialled(peer) as link:
            for letter in LETTERS:
                number = (await link.recv()).meta[0]
                await link.send(0)
                await _read_until_closed(link, number, letter.to_bytes(1) * (REGION_BYTES // 4))
            with pytest.raises(PeerClosed):
                await link.recv()

    with child("replace", address) as peer:
        asyncio.run(main(peer))


async def _receive_until(link: Link, peer: Child, number: signal.Signals) -> bytearray:
    """Take a body in; `peer` gets a signal in the middle of it. What has landed by then."""
    target = bytearray(BODY_BYTES)

    async def strike() -> None:
        while not target[len(target) // 8]:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0)
        peer.signal(number)

    async with asyncio.TaskGroup() as group:
        group.create_task(strike())
        with pytest.raises(PeerLost):
            await link.recv(lambda _: [target])
    return target


async def _quiet(link: Link, target: bytearray) -> None:
    """The link is quiet, and so is the memory that it wrote to."""
    await link.quiet()
    before = bytes(target)
    await asyncio.sleep(0.1)
    assert target == before and not target[-1]


def test_killed_in_mid_body(address: str) -> None:
    async def main(peer: Child) -> None:
        async with _dialled(peer, **PATIENT) as link:
            await _quiet(link, await _receive_until(link, peer, signal.SIGKILL))

    with child("pour", address) as peer:
        asyncio.run(main(peer))


def test_killed_while_it_takes_a_body(address: str) -> None:
    async def main(peer: Child) -> None:
        async with _dialled(peer, **PATIENT) as link:
            body = bytes(BODY_BYTES)

            async def send() -> None:
                while True:
                    await link.send(1, b"", [body])

            sending = asyncio.create_task(send())
            await asyncio.sleep(0.1)
            peer.signal(signal.SIGKILL)
            await _until_lost(link)
            with pytest.raises(PeerLost):
                await sending

    with child("drink", address) as peer:
        asyncio.run(main(peer))


def test_stopped_in_mid_body_and_then_going_on(address: str) -> None:
    async def main(peer: Child) -> None:
        async with _dialled(peer, **SHORT) as link:
            target = await _receive_until(link, peer, signal.SIGSTOP)
            await link.quiet()
            before = bytes(target)
            peer.signal(signal.SIGCONT)
            await _quiet(link, target)
            assert target == before

    with child("pour", address, **SHORT) as peer:
        asyncio.run(main(peer))
        assert [peer.line(), peer.line()] == ["test", "PeerLost"]


def test_stopped_while_idle(address: str) -> None:
    async def main(peer: Child) -> None:
        async with _dialled(peer, **SHORT) as link:
            peer.signal(signal.SIGSTOP)
            await _until_lost(link)

    with child("wait", address) as peer:
        asyncio.run(main(peer))


def test_stopped_for_less_than_a_link_waits(address: str) -> None:
    async def main(peer: Child) -> None:
        async with _dialled(peer, keepalive_s=0.2, lost_after_s=10.0) as link:
            peer.signal(signal.SIGSTOP)
            await link.send(1, b"meanwhile")
            await asyncio.sleep(0.8)
            peer.signal(signal.SIGCONT)
            assert (await link.recv()).meta == b"meanwhile"

    with child("echo", address, keepalive_s=0.2, lost_after_s=10.0) as peer:
        asyncio.run(main(peer))


def test_stopped_before_it_can_answer(address: str) -> None:
    async def main(peer: Child) -> None:
        async with (
            asyncio.timeout(HANG_S),
            make_transport(peer.address, config(handshake_s=0.5)).open() as transport,
        ):
            peer.signal(signal.SIGSTOP)
            with pytest.raises(Unreachable):
                await transport.connect(peer.address)

    with child("wait", address) as peer:
        asyncio.run(main(peer))


def test_a_new_process_at_the_same_address(address: str) -> None:
    async def main(first: Child, incarnation: str) -> None:
        async with _dialled(first, **PATIENT) as link:
            assert (link.peer.node_id, link.peer.incarnation) == ("other", incarnation)
            first.signal(signal.SIGKILL)
            await _until_lost(link)

    where = address
    for incarnation in ("first", "second", "third"):
        with child("wait", where, node_id="other", incarnation=incarnation) as peer:
            where = peer.address
            asyncio.run(main(peer, incarnation))
            peer.process.wait()


# -- one-sided reads -------------------------------------------------------------------------------


@pytest.fixture
def shm(tmp_path: Path) -> str:
    return an_address("shm", tmp_path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_owner_is_struck_during_a_read(shm: str, number: signal.Signals) -> None:
    async def main(peer: Child) -> None:
        async with _dialled(peer, **SHORT) as link:
            await link.recv()
            target = bytearray(REGION_BYTES)
            read = link.read(1, [Span(0, REGION_BYTES)], [target])
            waiting = asyncio.create_task(read.wait())
            while not target[0]:  # noqa: ASYNC110 (nobody tells)
                await asyncio.sleep(0)
            peer.signal(number)
            with contextlib.suppress(PeerLost):  # or it has the memory still, and ends well
                await waiting
                assert target == b"x" * REGION_BYTES
            await _until_lost(link)
            await link.quiet()
            await read.quiet()
            before = bytes(target)
            peer.signal(signal.SIGCONT) if number is signal.SIGSTOP else None
            with pytest.raises(PeerLost):
                link.read(1, [Span(0, 1)], [bytearray(1)])
            await asyncio.sleep(0.1)
            assert target == before

    with child("share", shm) as peer:
        asyncio.run(main(peer))


def test_reads_need_nothing_of_the_owner(shm: str) -> None:
    async def main(peer: Child) -> None:
        async with _dialled(peer) as link:
            await link.recv()
            peer.signal(signal.SIGSTOP)
            target = bytearray(REGION_BYTES)
            await link.read(1, [Span(0, REGION_BYTES)], [target]).wait()
            assert target == b"x" * REGION_BYTES
            peer.signal(signal.SIGCONT)

    with child("share", shm) as peer:
        asyncio.run(main(peer))


def test_a_killed_owner_leaves_nothing_behind(shm: str, tmp_path: Path) -> None:
    async def main(peer: Child) -> None:
        async with _dialled(peer) as link:
            await link.recv()
            peer.signal(signal.SIGKILL)
            await _until_lost(link)

    before = set(os.listdir("/dev/shm"))
    with child("share", shm) as peer:
        asyncio.run(main(peer))
    assert not files_that_stay(before)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]  # the next listener replaces it
    started = time.monotonic()
    with child("wait", shm) as peer:
        assert peer.address == shm and time.monotonic() - started < HANG_S
