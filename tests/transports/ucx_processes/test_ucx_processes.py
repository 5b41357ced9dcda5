"""Two processes over UCX, one of them struck: bodies and reads in many pieces, on all lanes.

The dead aren't reaped until a test ends: UCX by itself takes such a process for alive.
"""

import asyncio
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.transports.linked import SHORT, config
from tests.transports.processes.child import ROOT, Child, child
from tests.transports.processes.peer import BODY_BYTES, REGION_BYTES
from tests.transports.shared_memory import files_that_stay, segments_of
from transports.api import Link, Span
from transports.errors import PeerLost, TransportError
from transports.registry import make_transport

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ucxx") is None, reason="ucxx isn't installed (the extra is `ucx`)"
)

HERE = "ucx://127.0.0.1:0"
HANG_S = 20
BLOCK = 64 << 10
#: The link's own deadlines are far away: only the lifeline, or UCX, can tell.
PATIENT: dict[str, Any] = {"keepalive_s": 30.0, "lost_after_s": 90.0}
STRIKES = [signal.SIGKILL, signal.SIGSTOP]
#: Over tcp there are no one-sided reads.
_where_there_are_reads = pytest.mark.parametrize("_lanes", ["shm"], indirect=True)


@pytest.fixture(params=["shm", "tcp"], autouse=True)
def _lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "tcp":
        monkeypatch.setenv("UCX_TLS", "tcp")


def _scattered(memory: bytearray) -> list[memoryview]:
    """All of it in blocks, every second one first."""
    view = memoryview(memory)
    starts = [*range(0, len(memory), 2 * BLOCK), *range(BLOCK, len(memory), 2 * BLOCK)]
    return [view[start : start + BLOCK] for start in starts]


def _settings(number: signal.Signals) -> dict[str, Any]:
    return PATIENT if number is signal.SIGKILL else SHORT


@contextlib.asynccontextmanager
async def _dialled(peer: Child, **settings: Any) -> AsyncIterator[Link]:
    async with (
        asyncio.timeout(HANG_S),
        make_transport(peer.address, config("test", **settings)).open() as transport,
    ):
        yield await transport.connect(peer.address)


async def _lost_and_quiet(link: Link, peer: Child, target: bytearray) -> None:
    """The link has ended, and no byte lands, even if the peer goes on."""
    with pytest.raises(PeerLost):
        await link.recv()
    await link.quiet()
    before = bytes(target)
    peer.signal(signal.SIGCONT)
    await asyncio.sleep(0.2)
    assert target == before


@pytest.mark.parametrize("number", STRIKES)
def test_struck_while_it_sends(number: signal.Signals) -> None:
    async def main(peer: Child) -> None:
        async with _dialled(peer, **_settings(number)) as link:
            target = bytearray(BODY_BYTES)
            receiving = asyncio.create_task(link.recv(lambda _: _scattered(target)))
            while not target[0]:  # noqa: ASYNC110 (nobody tells)
                await asyncio.sleep(0)
            peer.signal(number)
            struck = time.monotonic()
            with contextlib.suppress(PeerLost):  # or all had been sent
                await receiving
                assert target == b"x" * BODY_BYTES
            await _lost_and_quiet(link, peer, target)
            assert time.monotonic() - struck < 5

    with child("pour", HERE, **_settings(number)) as peer:
        asyncio.run(main(peer))


@pytest.mark.parametrize("number", STRIKES)
def test_struck_while_it_receives(number: signal.Signals) -> None:
    async def main(peer: Child) -> None:
        async with _dialled(peer, **_settings(number)) as link:
            source = bytearray(BODY_BYTES)

            async def send() -> None:
                while True:
                    await link.send(1, b"", _scattered(source))

            sending = asyncio.create_task(send())
            await asyncio.sleep(0.1)
            peer.signal(number)
            with pytest.raises(PeerLost):
                await sending
            await _lost_and_quiet(link, peer, source)

    with child("drink", HERE, **_settings(number)) as peer:
        asyncio.run(main(peer))


@pytest.fixture(params=["seen", "far"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The owner's memory is seen from here, or only UCX reaches it."""
    if request.param == "far":
        monkeypatch.setattr("transports.ucx_region.found", lambda *_: None)
    return str(request.param)


@_where_there_are_reads
@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("number", STRIKES)
def test_the_owner_is_struck_during_a_read(number: signal.Signals) -> None:
    async def main(peer: Child) -> None:
        async with _dialled(peer, **_settings(number)) as link:
            await link.recv()
            target = bytearray(REGION_BYTES)
            spans = [Span(start, BLOCK) for start in range(0, REGION_BYTES, BLOCK)]
            read = link.read(1, spans, _scattered(target))
            waiting = asyncio.create_task(read.wait())
            while not target[0]:  # noqa: ASYNC110 (nobody tells)
                await asyncio.sleep(0)
            peer.signal(number)
            with contextlib.suppress(PeerLost):  # who is stopped can still be read from
                await waiting
                assert target == b"x" * REGION_BYTES
            await _lost_and_quiet(link, peer, target)
            await read.quiet()
            with pytest.raises(PeerLost):
                link.read(1, spans, _scattered(target))

    with child("share", HERE, **_settings(number)) as peer:
        asyncio.run(main(peer))


def _until_dead(peer: Child) -> None:
    """Kill it, and leave it unreaped."""
    os.kill(peer.process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, peer.process.pid, os.WEXITED | os.WNOWAIT)


async def _pour(link: Link) -> None:
    while True:
        await link.send(1, b"hello", [b"y" * 10_000])


@_where_there_are_reads
def test_reads_from_the_dead_before_anybody_knows(memory: str) -> None:
    """They end: what is seen is there until the link ends."""

    async def main(peer: Child) -> None:
        async with _dialled(peer, **PATIENT) as link:
            await link.recv()
            target = bytearray(REGION_BYTES)
            _until_dead(peer)
            reads = [link.read(1, [Span(0, REGION_BYTES)], [target]) for _ in range(3)]
            for read in reads:
                ends = contextlib.suppress if memory == "seen" else pytest.raises
                with ends(PeerLost):
                    await read.wait()
                await read.quiet()
            assert memory == "seen" or not any(target)
            await _lost_and_quiet(link, peer, target)

    with child("share", HERE, **PATIENT) as peer:
        asyncio.run(main(peer))


def test_sends_to_the_dead_before_anybody_knows() -> None:
    async def main(peer: Child) -> None:
        async with _dialled(peer, **PATIENT) as link:
            _until_dead(peer)
            with pytest.raises(PeerLost):
                await _pour(link)
            await link.quiet()

    with child("wait", HERE, **PATIENT) as peer:
        asyncio.run(main(peer))


@_where_there_are_reads
def test_a_killed_process_leaves_nothing_behind() -> None:
    async def main(peer: Child) -> None:
        async with _dialled(peer) as link:
            await link.recv()
            peer.signal(signal.SIGKILL)
            with contextlib.suppress(TransportError):
                await link.recv()

    before = set(os.listdir("/dev/shm"))
    with child("share", HERE) as peer:
        asyncio.run(main(peer))
        peer.process.wait()
    assert not files_that_stay(before)
    assert not segments_of(os.getpid(), peer.process.pid)


def test_a_process_that_ends_in_order_says_nothing() -> None:
    program = textwrap.dedent("""
        import asyncio
        from tests.transports.linked import linked

        async def main():
            async with linked("ucx://127.0.0.1:0") as pair:
                if pair.far.capabilities.one_sided_reads:
                    await pair.far.share(pair.far_transport.allocate(1000))
                await pair.far.send(1, b"x" * 1000, [b"y" * 50_000])
                await pair.near.recv(lambda head: [bytearray(head.body_bytes)])
                await pair.near.close()

        asyncio.run(main())
    """)
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        capture_output=True, text=True, cwd=ROOT, timeout=HANG_S, check=True,
    )  # fmt: skip
    slow = [line for line in ended.stderr.splitlines() if not line.startswith("Executing <")]
    assert (ended.stdout, slow) == ("", [])
