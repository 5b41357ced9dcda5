"""How long a pull takes, beside the same bytes over the same transport by itself.

Owns:   two workers without a model, and the sockets by which a node would tell them what to do.
Knows nothing of: models, HTTP, tables.
Units:  seconds, bytes.

A pull begins when the reader's worker is told to fetch, and ends when its node hears that the bytes
are confirmed: a socket, open, the bytes, confirm, a socket. Raw is what `transport_peer` needs for
the same scattered blocks, into a region as well where there are any, so that both fill the same
kind of memory. They take turns, so that a change of the machine's mood meets both.
"""

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from benchmarks.blocks import ROOT, Worker
from benchmarks.meter import first_in_line
from benchmarks.pair_worker import BLOCK_TOKENS
from benchmarks.patterns import Pattern
from benchmarks.transports import TRANSPORTS, process
from kvdist.connector.content import DIGEST_BYTES
from kvdist.connector.local import (
    Fetch,
    FromWorker,
    Grant,
    Granted,
    PartEnded,
    PartQuiet,
    Revoke,
    Revoked,
)
from kvdist.connector.messages import PartId
from kvdist.connector.settings import Settings
from kvdist.ids import BlockId, Incarnation, LeaseId, PullId, Rank
from kvdist.links.local_link import LocalLink
from kvdist.links.local_wire import Ask, Begin, Known

#: By transport: how it moves bytes fastest.
VERBS: Final = {"tcp": "message", "shm": "read", "ucx": "read"}
_TRIPS: Final = 300
_RUN: Final = Incarnation(1)
_RANK: Final = Rank(0)
_DIGEST: Final = bytes(DIGEST_BYTES)
_PATIENCE_S: Final = 60.0


@dataclass(slots=True)
class Transfer:
    """Pulls of so many bytes over one transport, and what they are measured by."""

    transport: str
    num_bytes: int
    pulls: list[float] = field(default_factory=list)
    raws: list[float] = field(default_factory=list)
    #: Round trips of a small message between the same two processes.
    trips: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Best by best."""
        return min(self.pulls) / min(self.raws)

    @property
    def more_trips(self) -> float:
        """What a pull needs beyond its bytes, in round trips (medians)."""
        return (median(self.pulls) - median(self.raws)) / median(self.trips)

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        told = {"transport": self.transport, "bytes": self.num_bytes, "ratio": self.ratio}
        return told | {"pulls_s": self.pulls, "raws_s": self.raws, "trip_s": median(self.trips)}


class Bench:
    """One worker, and what its node hears of it."""

    def __init__(self, link: LocalLink, lines: Worker) -> None:
        self.link, self.lines = link, lines
        self.addresses: dict[str, tuple[str, ...]] = {}
        self._news: asyncio.Queue[FromWorker] = asyncio.Queue()

    def hear(self, message: FromWorker | Ask) -> None:
        """See `local_link.Hear`."""
        if isinstance(message, Ask):
            self.link.say(Known(message.node, self.addresses[message.node]))
        else:
            self._news.put_nowait(message)

    async def until(self, kind: type[FromWorker]) -> Any:
        """The next news, which is of this kind."""
        async with asyncio.timeout(_PATIENCE_S):
            message = await self._news.get()
        assert isinstance(message, kind), message
        return message


async def measure(transport: str, patterns: Sequence[Pattern], repeats: int) -> list[Transfer]:
    """Of all patterns, whose blocks are of one size each."""
    found = []
    for pattern in patterns:
        transfer = Transfer(transport, pattern.num_bytes)
        async with _pair(transport, pattern) as (owner, reader):
            with _raw(transport, pattern) as raw:
                for number in range(repeats + 1):
                    pulled = await _pull(owner, reader, pattern, number)
                    seconds = await asyncio.to_thread(_move, raw, transport)
                    if number:  # the first time doesn't count
                        transfer.pulls.append(pulled)
                        transfer.raws.append(seconds)
                transfer.trips = await asyncio.to_thread(_trips, raw)
        found.append(transfer)
    return found


def moved(transport: str, pattern: Pattern, repeats: int) -> tuple[list[float], list[float]]:
    """How long these bytes take by themselves, and round trips of a small message."""
    with _raw(transport, pattern) as raw:
        _move(raw, transport)
        return [_move(raw, transport) for _ in range(repeats)], _trips(raw)


def _move(raw: Worker, transport: str) -> float:
    job = {"job": "move", "verb": VERBS[transport], "heartbeat": False, "computes": ""}
    return float(raw.ask(job)["seconds"])


def _trips(raw: Worker) -> list[float]:
    found: list[float] = raw.ask({"job": "echo", "bytes": 64, "times": _TRIPS})["trips"]
    return found


async def _pull(owner: Bench, reader: Bench, pattern: Pattern, number: int) -> float:
    """One, from a new lease, checked."""
    job = [pattern.name, pattern.blocks, pattern.block_bytes]
    await asyncio.to_thread(reader.lines.ask, ["clear", *job])  # type: ignore[arg-type]
    tokens, lease = pattern.blocks * BLOCK_TOKENS, LeaseId(number.to_bytes(16, "little"))
    owner.link.say(Grant(lease, _tables(pattern.sources()), tokens, tokens, _DIGEST))
    await owner.until(Granted)
    part = PartId(PullId(number), _RANK, _RANK)
    fetch = Fetch(
        *(part, lease, "owner", _RUN, ((0, tokens),), (0, 1)), _tables(pattern.targets()), _DIGEST
    )
    with first_in_line():
        begin = time.perf_counter()
        reader.link.say(fetch)
        ended = await reader.until(PartEnded)
        seconds = time.perf_counter() - begin
    assert not ended.failure, ended
    await reader.until(PartQuiet)
    owner.link.say(Revoke(lease))
    await owner.until(Revoked)
    await asyncio.to_thread(reader.lines.ask, ["check", *job])  # type: ignore[arg-type]
    return seconds


def _tables(numbers: Sequence[int]) -> tuple[tuple[BlockId, ...], ...]:
    """Block 0 stands for none."""
    return (tuple(BlockId(number + 1) for number in numbers),)


@asynccontextmanager
async def _pair(transport: str, pattern: Pattern) -> AsyncIterator[tuple[Bench, Bench]]:
    async with (
        _bench("owner", transport, pattern) as owner,
        _bench("reader", transport, pattern) as reader,
        asyncio.TaskGroup() as tasks,
    ):
        owner.addresses["reader"] = ((await reader.link.listening()).address,)
        reader.addresses["owner"] = ((await owner.link.listening()).address,)
        hearing = [tasks.create_task(b.link.run(b.hear)) for b in (owner, reader)]
        job = ["fill", pattern.name, pattern.blocks, pattern.block_bytes]
        await asyncio.to_thread(owner.lines.ask, job)  # type: ignore[arg-type]
        yield owner, reader
        for task in hearing:
            task.cancel()


@asynccontextmanager
async def _bench(name: str, transport: str, pattern: Pattern) -> AsyncIterator[Bench]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    begin = Begin(
        *(name, _RUN, _RANK, transport, "127.0.0.1", b"only for this benchmark", "sha256"),
        Settings(),
    )
    link = await LocalLink.open(ours, begin)
    sizes = (str(pattern.slots + 1), str(pattern.block_bytes))
    with _worker(theirs, *sizes) as lines:
        try:
            yield Bench(link, lines)
        finally:
            link.close()


@contextmanager
def _worker(link: socket.socket, *sizes: str) -> Iterator[Worker]:
    with link:
        descriptor = link.fileno()
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.pair_worker", str(descriptor), *sizes],
            cwd=ROOT,
            pass_fds=[descriptor],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    with child:
        try:
            yield Worker(child)
        finally:
            child.kill()


@contextmanager
def _raw(transport: str, pattern: Pattern) -> Iterator[Worker]:
    """A reader of the transports' benchmark, which has the blocks of this pattern."""
    address, environment = TRANSPORTS[transport]
    peer = [sys.executable, "-m", "benchmarks.transport_peer"]
    with (
        tempfile.TemporaryDirectory() as folder,
        process([*peer, "owner", address.format(folder=folder)], environment) as owner,
        process([*peer, "reader", owner.read()["address"]], environment) as reader,
    ):
        reader.read()
        fields = [pattern.name, pattern.blocks, pattern.block_bytes]
        reader.ask({"job": "pattern", "pattern": fields, "into": "region"})
        yield reader
