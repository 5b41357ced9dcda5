"""The side that has the blocks: it sends them, or lets them be read.

Owns:   the pool, and the link that came in.
Knows nothing of: repeats, times, the benchmark's own process.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from benchmarks import patterns
from benchmarks.meter import Meter
from benchmarks.patterns import Pattern
from benchmarks.transport_calls import Kind
from transports.api import Head, Link, Region, Transport
from transports.errors import PeerClosed


class Owner:
    """Answers one reader until it has gone."""

    def __init__(self, transport: Transport, link: Link, meter: Meter) -> None:
        self._transport = transport
        self._link = link
        self._meter = meter
        self._region: Region | None = None
        #: The blocks that move, in order.
        self._moving: list[memoryview] = []

    async def serve(self) -> None:
        """Answer until the reader closes the link."""
        try:
            while True:
                await self._answer(await self._link.recv())
        except PeerClosed:
            return
        finally:
            self._let_go()

    async def _answer(self, head: Head) -> None:
        match head.kind:
            case Kind.ECHO:
                await self._link.send(Kind.ECHO, head.meta)
            case Kind.WANT:
                await self._link.send(Kind.BLOCKS, body=self._moving)
            case _:
                answer = await self._call(json.loads(head.meta))
                await self._link.send(Kind.REPLY, json.dumps(answer).encode())

    async def _call(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        match asked["call"]:
            case "pattern":
                return await self._take(Pattern(*asked["pattern"]))
            case "begin":
                self._meter.begin(heartbeat=asked["heartbeat"], compute=asked["compute"])
                return {}
            case "end":
                return self._meter.end()
            case other:
                raise AssertionError(f"no such call: {other}")

    async def _take(self, pattern: Pattern) -> dict[str, Any]:
        """A new pool takes the place of the last; in a region, where there are any."""
        self._let_go()
        number = None
        if self._link.capabilities.one_sided_reads:
            self._region = self._transport.allocate(pattern.pool_bytes)
            pool = self._region.view
            number = await self._link.share(self._region)
        else:
            pool = patterns.memory(pattern.pool_bytes)
        await asyncio.to_thread(self._fill, pool, pattern)
        return {"region": number}

    def _fill(self, pool: memoryview, pattern: Pattern) -> None:
        blocks = patterns.cut(pool, pattern)
        patterns.fill(blocks, pattern)
        self._moving = [blocks[number] for number in pattern.sources()]

    def _let_go(self) -> None:
        self._moving = []
        if self._region is not None:
            self._region.close()
            self._region = None
