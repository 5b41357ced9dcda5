"""The side that gets the blocks, and holds the clock.

Owns:   the pool that blocks arrive in, and another to copy from for comparison.
Knows nothing of: repeats, tables, other tools.
Units:  seconds.

A time begins with lists of views of the blocks, which whoever has a pool has, and ends when the
last byte is in its place. Nothing is in the targets before, and everything is checked after; that
is other threads' work, or the peer would take the loop for dead.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import patterns
from benchmarks.meter import Meter, first_in_line
from benchmarks.patterns import Pattern
from benchmarks.transport_calls import Kind, call
from transports.api import Link, Region, Span, Transport


class Reader:
    """Does the jobs that the benchmark asks for, over one link."""

    def __init__(self, transport: Transport, link: Link, meter: Meter) -> None:
        self._transport = transport
        self._link = link
        self._meter = meter
        self._pattern = Pattern("none", 0, 0)
        #: Of the peer's memory.
        self._region: int | None = None
        #: What the blocks arrive in, where that is to be memory that could be handed over itself.
        self._ours: Region | None = None
        self._blocks: list[memoryview] = []
        #: Where the blocks go, and where in the peer's region they come from.
        self._targets: list[memoryview] = []
        self._spans: list[Span] = []
        #: The same blocks in this process.
        self._sources: list[memoryview] = []
        self._copies: dict[str, Callable[[], None]] = {}

    async def do(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """One job. Raises: WrongBytesError, and what the link raises."""
        match job["job"]:
            case "pattern":
                return await self._take(Pattern(*job["pattern"]), job.get("into", "memory"))
            case "copy":
                return await asyncio.to_thread(self._copy)
            case "move":
                return await self._move(job["verb"], job["heartbeat"], job["computes"])
            case "idle":
                return await self._idle(job["seconds"])
            case "echo":
                return await self._echo(job["bytes"], job["times"])
            case other:
                raise AssertionError(f"no such job: {other}")

    async def _take(self, pattern: Pattern, into: str) -> dict[str, Any]:
        """New pools take the place of the last ones; says which verbs there are.

        Blocks arrive in `memory` of this process alone, or in a `region`, as a node's do.
        """
        self._pattern = pattern
        self.let_go()
        if into == "region" and self._link.capabilities.one_sided_reads:
            self._ours = self._transport.allocate(pattern.pool_bytes)
        fields = [pattern.name, pattern.blocks, pattern.block_bytes]
        self._region = (await call(self._link, "pattern", pattern=fields))["region"]
        await asyncio.to_thread(self._make)
        return {"verbs": ["message"] if self._region is None else ["message", "read"]}

    def _make(self) -> None:
        pattern = self._pattern
        other = patterns.memory(pattern.pool_bytes)
        pool = patterns.memory(pattern.pool_bytes) if self._ours is None else self._ours.view
        self._blocks, others = patterns.cut(pool, pattern), patterns.cut(other, pattern)
        patterns.fill(others, pattern)
        patterns.clear(self._blocks, pattern)
        self._targets = [self._blocks[number] for number in pattern.targets()]
        self._sources = [others[number] for number in pattern.sources()]
        size = pattern.block_bytes
        self._spans = [Span(number * size, size) for number in pattern.sources()]
        self._copies = _copies(self._sources, self._targets)

    def let_go(self) -> None:
        """Of all memory."""
        self._copies = {}
        self._blocks, self._targets, self._sources = [], [], []
        if self._ours is not None:
            self._ours.close()
            self._ours = None

    # -- moving --------------------------------------------------------------------------------

    async def _move(self, verb: str, heartbeat: bool, computes: str) -> dict[str, Any]:
        """Bring the blocks here once."""
        await asyncio.to_thread(patterns.clear, self._targets, self._pattern)
        begin = {"heartbeat": heartbeat, "compute": computes == "sender"}
        await call(self._link, "begin", **begin)
        self._meter.begin(heartbeat=heartbeat, compute=computes == "receiver")
        start = time.perf_counter()
        try:
            await (self._read() if verb == "read" else self._message())
            seconds = time.perf_counter() - start
        finally:
            receiver = self._meter.end()
        sender = await call(self._link, "end")
        await asyncio.to_thread(patterns.check, self._blocks, self._pattern)
        return {"seconds": seconds, "receiver": receiver, "sender": sender}

    async def _idle(self, seconds: float) -> dict[str, Any]:
        """Heartbeats while nothing moves."""
        await call(self._link, "begin", heartbeat=True, compute=False)
        self._meter.begin(heartbeat=True)
        await asyncio.sleep(seconds)
        receiver = self._meter.end()
        return {"receiver": receiver, "sender": await call(self._link, "end")}

    async def _message(self) -> None:
        await self._link.send(Kind.WANT)
        head = await self._link.recv(lambda _head: self._targets)
        assert head.body_bytes == self._pattern.num_bytes

    async def _read(self) -> None:
        assert self._region is not None
        await self._link.read(self._region, self._spans, self._targets).wait()

    async def _echo(self, size: int, times: int) -> dict[str, Any]:
        """Round trips of a message with `size` bytes of meta."""
        meta, trips = bytes(size), []
        await call(self._link, "begin", heartbeat=False, compute=False)
        self._meter.begin()
        for _ in range(times):
            start = time.perf_counter()
            await self._link.send(Kind.ECHO, meta)
            head = await self._link.recv()
            trips.append(time.perf_counter() - start)
            assert len(head.meta) == size
        self._meter.end()
        await call(self._link, "end")
        return {"trips": trips}

    # -- what it is measured by ----------------------------------------------------------------

    def _copy(self) -> dict[str, Any]:
        """The same blocks within this process; the faster way counts."""
        seconds = {}
        for name, copy in self._copies.items():
            patterns.clear(self._targets, self._pattern)
            with first_in_line():
                start = time.perf_counter()
                copy()
                seconds[name] = time.perf_counter() - start
            patterns.check(self._blocks, self._pattern)
        return {"seconds": min(seconds.values()), "by": min(seconds, key=seconds.__getitem__)}


def _copies(
    sources: Sequence[memoryview], targets: Sequence[memoryview]
) -> dict[str, Callable[[], None]]:
    """Ways to copy block by block."""

    def views() -> None:
        for source, target in zip(sources, targets, strict=True):
            target[:] = source

    try:
        import numpy
    except ImportError:
        return {"memoryview": views}
    from_arrays = [numpy.frombuffer(view, numpy.uint8) for view in sources]
    to_arrays = [numpy.frombuffer(view, numpy.uint8) for view in targets]

    def arrays() -> None:
        for source, target in zip(from_arrays, to_arrays, strict=True):
            target[:] = source

    return {"memoryview": views, "numpy": arrays}
