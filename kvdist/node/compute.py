"""Chapter 5, "compute": steps under way, and those that are over.

Owns:   one task for each step that runs; what wakes the loop.
Knows nothing of: what a plan says, what a result means.

A task a step, so that the plan of the next one is with the worker before the result of this one is
back. The worker keeps the order.
"""

import asyncio
from collections.abc import Sequence as Listing
from dataclasses import dataclass

import structlog

from kvdist.errors import StepFailed, WorkerLost
from kvdist.node.roles import Worker
from kvdist.sched.output import Output
from kvdist.sched.plan import StepPlan, StepResult
from kvdist.sched.scheduler import Scheduler

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ended:
    """A step that is over; without a result, it failed."""

    step: int
    result: StepResult | None

    def settle(self, scheduler: Scheduler) -> list[Output]:
        """The scheduler knows; returns the news."""
        if self.result is None:
            return scheduler.fail_step(self.step)
        return scheduler.settle(self.result)


class Compute:
    """Steps of one worker."""

    def __init__(self, worker: Worker, tasks: asyncio.TaskGroup) -> None:
        self._worker = worker
        self._tasks = tasks
        self._running: set[asyncio.Task[None]] = set()
        self._ended: list[Ended] = []
        self._lost: WorkerLost | None = None
        self._woken = asyncio.Event()

    def start(self, plan: StepPlan) -> None:
        """The worker runs this plan, after all before it."""
        task = self._tasks.create_task(self._run(plan), name=f"step {plan.step}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def give_up(self) -> None:
        """Nobody waits for any step any more: a lost worker may never answer."""
        for task in self._running:
            task.cancel()

    def wake(self) -> None:
        """There is something to do beside results."""
        self._woken.set()

    async def over(self) -> Listing[Ended]:
        """Steps that are over, in the order in which they ended; none if somebody else woke us.

        Raises: WorkerLost.
        """
        await self._woken.wait()
        self._woken.clear()
        if self._lost is not None:
            raise self._lost
        ended, self._ended = self._ended, []
        return ended

    async def watch(self) -> None:
        """Notice at once when the worker is lost, whether or not a step runs."""
        try:
            await self._worker.watch()
        except WorkerLost as lost:
            self.lose(lost)

    def lose(self, lost: WorkerLost) -> None:
        """There is no worker any more, as somebody else has found out."""
        self._lost = lost
        self.wake()

    async def _run(self, plan: StepPlan) -> None:
        result = None
        try:
            result = await self._worker.execute(plan)
        except StepFailed as failed:
            _log.warning("step failed", step=plan.step, reason=str(failed))
        except WorkerLost as lost:
            self._lost = lost
        self._ended.append(Ended(plan.step, result))
        self.wake()
