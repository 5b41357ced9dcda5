"""What befalls nodes while clients are served.

Owns:   the order of deeds, by chance.
Knows nothing of: what clients ask; `storm` is told how many come and leave.
"""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from typing import Final

from tests.chaos.process import NotThere, Process
from tests.chaos.report import Report
from tests.chaos.scene import Deed, Scene

#: Processes that stand still do so for so long.
_STILL_S: Final = (0.3, 7.0)
#: A play ends with all at rest: nothing is done to anybody shortly before.
QUIET_S: Final = 5.0


class Deeds:
    """See `run`."""

    def __init__(
        self,
        scene: Scene,
        processes: dict[str, Process],
        report: Report,
        storm: Callable[[], Awaitable[None]],
    ) -> None:
        self._scene, self._processes, self._report = scene, processes, report
        self._chance = random.Random(f"deeds {scene.seed}")
        self._storm = storm

    async def run(self, until_s: float) -> None:
        """One after the other, while there is time."""
        loop = asyncio.get_running_loop()
        while loop.time() < until_s:
            await asyncio.sleep(self._chance.uniform(*self._scene.pause_s))
            victim = self._processes[self._chance.choice(self._scene.victims)]
            deed = self._chance.choice(self._scene.deeds)
            self._report.count(deed if deed == "storm" else f"{deed} of {victim.name}")
            try:
                await self._do(deed, victim)
            except NotThere as error:
                self._report.find(f"after {deed} of {victim.name}: {error}")
                if victim.has_ended:
                    await victim.start()
                    await victim.ready()

    async def _do(self, deed: Deed, victim: Process) -> None:
        """Raises: NotThere."""
        match deed:
            case "kill node":
                victim.send(signal.SIGKILL)
            case "kill worker":
                victim.send(signal.SIGKILL, to_worker=True)
            case "kill both":
                victim.send(signal.SIGKILL, to_worker=True)
                victim.send(signal.SIGKILL)
            case "end":
                victim.send(signal.SIGTERM)
            case "stop node" | "stop worker":
                await self._stop(victim, self._chance.uniform(*_STILL_S), deed == "stop worker")
                return
            case "outlive lease":
                await self._stop(victim, self._scene.lease_s * self._chance.uniform(1, 2.5), False)
                return
            case "storm":
                await self._storm()
                return
        await victim.ended()
        await victim.start()
        await victim.ready()

    async def _stop(self, victim: Process, seconds: float, is_worker: bool) -> None:
        """It stands still, and goes on; its other process may have taken it for lost (T5)."""
        victim.send(signal.SIGSTOP, to_worker=is_worker)
        await asyncio.sleep(seconds)
        victim.send(signal.SIGCONT, to_worker=is_worker)
        await asyncio.sleep(0.3)
        try:
            await victim.ready()
        except NotThere:
            if not victim.has_ended:
                raise
            self._report.count(f"{victim.name} ended, since its worker stood still")
            await victim.start()
            await victim.ready()
