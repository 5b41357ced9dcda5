"""What befalls nodes when they pass a mark: every deed at every mark, in the order of the seed.

Owns:   which node is started with which mark; it stands still there, so that the deed can be done.
Knows nothing of: what clients ask.
"""

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from itertools import zip_longest
from math import inf
from typing import Final, Literal, TypeAlias, get_args

from kvdist.links.marks import MARKS
from tests.chaos.process import NotThere, Process, state_of
from tests.chaos.report import Report
from tests.chaos.scene import Scene

#: To whoever stands at the mark: a node's process, or its worker; `other` is that node's other one.
AtMark: TypeAlias = Literal["kill", "kill the other", "kill both", "stand still"]
#: A mark that isn't passed so long after the node is ready isn't on anybody's way.
_PASSES_S: Final = 4.0
_STILL_S: Final = (0.2, 7.0)
#: After its node, or after it was let go.
_WORKER_ENDS_S: Final = 10.0
#: One node after the other has so many, since the other has to be started anew, too.
_IN_A_ROW: Final = 4


class AtMarks:
    """See `run`."""

    def __init__(self, scene: Scene, processes: dict[str, Process], report: Report) -> None:
        self._scene, self._processes, self._report = scene, processes, report
        self._chance = random.Random(f"marks {scene.seed}")

    async def run(self, until_s: float) -> None:
        """One after the other, while there is time."""
        loop, last = asyncio.get_running_loop(), None
        for name, mark, deed in self._cells():
            if loop.time() > until_s:
                break
            if last is not None and last is not self._processes[name]:
                await self._start(last)
            last = self._processes[name]
            try:
                await self._one(last, mark, deed)
            except NotThere as error:
                self._report.find(f"after {deed} at {mark} of {name}: {error}")
        if last is not None:
            await self._start(last)

    def _cells(self) -> Iterator[tuple[str, str, AtMark]]:
        by_victim: dict[str, list[tuple[str, str, AtMark]]] = {"p0": [], "d0": []}
        for mark in self._scene.marks:
            owner = {"owner": "p0", "reader": "d0"}.get(MARKS[mark].side or "")
            name = owner or self._chance.choice(["p0", "d0"])
            by_victim[name] += [(name, mark, deed) for deed in get_args(AtMark)]
        for cells in by_victim.values():
            self._chance.shuffle(cells)
        for row in zip_longest(*(_rows(cells) for cells in by_victim.values()), fillvalue=[]):
            for cells in row:
                yield from cells

    async def _start(self, victim: Process, *words: str) -> None:
        """Anew, whatever it was. Raises: NotThere."""
        if not victim.has_ended:
            victim.send(signal.SIGTERM)
        await victim.ended()
        await victim.start(*words)
        if not words:
            await victim.ready()

    async def _one(self, victim: Process, mark: str, deed: AtMark) -> None:
        """Raises: NotThere."""
        nth = self._chance.choice([1, 1, 2, 5])
        await self._start(victim, f"--kv-faults=0:stop@{mark}={nth}")
        standing = await self._standing(victim)
        if standing is None:
            self._report.count(f"not passed: {mark}")
            return
        self._report.count(f"{deed} at {mark}")
        both = [pid for pid in (victim.pid, victim.worker) if pid is not None]
        if deed == "stand still":
            await asyncio.sleep(self._chance.uniform(*_STILL_S))
        killed = {"kill": [standing], "kill both": both, "stand still": []}.get(
            deed, [pid for pid in both if pid != standing]
        )
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(standing, signal.SIGCONT)
        if killed:
            await victim.ended()
            await self._gone(victim, both[1:])

    async def _standing(self, victim: Process) -> int | None:
        """Whoever of it stands still, once it does; perhaps before it is ready."""
        getting_ready, loop = asyncio.create_task(victim.ready()), asyncio.get_running_loop()
        until_s = inf
        try:
            while (pid := victim.standing) is None and loop.time() < until_s:
                if getting_ready.done():
                    until_s = min(until_s, loop.time() + _PASSES_S)
                await asyncio.sleep(0.01)
            return pid
        finally:
            getting_ready.cancel()
            await asyncio.wait([getting_ready])
            if not getting_ready.cancelled():
                getting_ready.exception()

    async def _gone(self, victim: Process, workers: list[int]) -> None:
        """A worker goes when its node has gone."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_WORKER_ENDS_S):
                while any(map(_lives, workers)):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                return
        self._report.find(f"a worker of {victim.name} has outlived it for {_WORKER_ENDS_S:g} s")


def _rows(cells: list[tuple[str, str, AtMark]]) -> list[list[tuple[str, str, AtMark]]]:
    return [cells[i : i + _IN_A_ROW] for i in range(0, len(cells), _IN_A_ROW)]


def _lives(pid: int) -> bool:
    return state_of(pid) not in ("", "Z", "X")
