"""Gigabytes through one link, both ways, with memory watched.

Units:  bytes.
"""

import asyncio
import gc
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transports.api import Link, Transport
from transports.config import SessionConfig
from transports.registry import make_transport
from transports.testing.setup import both, meet, noise

#: Sizes of bodies, one after the other: most bytes in large ones, most messages small.
_SIZES = (0, 100, 4096, 60_000, 0, 70_000, 1 << 20, 17, 24 << 20)
_POOL = 24 << 20


@dataclass(frozen=True, slots=True)
class Soaked:
    """What a soak saw."""

    num_bytes: int
    num_messages: int
    seconds: float
    #: Resident memory after a tenth of it, and the most seen later.
    early_bytes: int
    late_bytes: int

    def __str__(self) -> str:
        rate = self.num_bytes / self.seconds / 1e9
        return (
            f"{self.num_bytes / 1e9:.1f} GB in {self.num_messages} messages, {rate:.2f} GB/s; "
            f"memory {self.early_bytes >> 20} MiB early, {self.late_bytes >> 20} MiB at most later"
        )


def resident_bytes() -> int:
    """Memory of this process that is in use; its peak where there is no /proc."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def soak(
    address: str,
    total_bytes: int,
    *,
    make: Callable[[str, SessionConfig], Transport] = make_transport,
    tell: Callable[[str], None] | None = None,
) -> Soaked:
    """Send `total_bytes` through a link to `address` and back, checking every message."""
    left = make(address, SessionConfig(node_id="left"))
    right = make(address, SessionConfig(node_id="right"))
    async with left.open(), right.open():
        listening = await right.listen(address)
        a, b = await meet(left, listening)
        seen = _Seen(total_bytes, tell)
        began = time.monotonic()
        await both(_one_way(a, b, seen, 1), _one_way(b, a, seen, 2))
        seconds = time.monotonic() - began
        await both(a.close(), b.close())
    return Soaked(seen.num_bytes, seen.num_messages, seconds, seen.early, seen.late)


class _Seen:
    def __init__(self, goal: int, tell: Callable[[str], None] | None) -> None:
        self.goal = goal
        self.num_bytes = self.num_messages = 0
        self.early = self.late = 0
        self._tell = tell
        self._next = goal // 10

    def count(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self.num_messages += 1
        if self.num_bytes < self._next:
            return
        self._next += self.goal // 10
        gc.collect()
        now = resident_bytes()
        if self.early:
            self.late = max(self.late, now)
        else:
            self.early = self.late = now
        if self._tell:
            self._tell(f"{self.num_bytes / 1e9:.1f} GB, memory {now >> 20} MiB")


async def _one_way(source: Link, target: Link, seen: _Seen, seed: int) -> None:
    """Messages until half the goal has passed this way."""
    pool, into = memoryview(noise(_POOL, seed)), bytearray(_POOL)
    landed = memoryview(into)
    passed, number = 0, 0
    while passed < seen.goal // 2:
        size = _SIZES[number % len(_SIZES)]
        _, head = await both(
            source.send(number % 256, b"%d" % number, [pool[:size]]),
            target.recv(lambda head: [landed[: head.body_bytes]]),
        )
        assert (head.meta, head.body_bytes) == (b"%d" % number, size)
        ends = slice(max(0, size - 16), size)  # cleared each time, so that old bytes don't pass
        assert landed[ends] == pool[ends], "wrong bytes"
        assert number % 97 or landed[:size] == pool[:size], "wrong bytes"
        into[ends] = bytes(min(16, size))
        passed += size
        number += 1
        seen.count(size)
        if number % 8 == 0:
            await asyncio.sleep(0)
