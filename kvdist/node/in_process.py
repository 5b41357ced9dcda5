"""A worker in the node's own process, in one thread: for tests, and for small examples.

Owns:   the thread.
Knows nothing of: what a plan says.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from kvdist.errors import StepFailed, WorkerLost
from kvdist.node.roles import Runner
from kvdist.sched.plan import StepPlan, StepResult


class InProcessWorker:
    """Runs plans on `runner`; it is lost only when it is closed."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._thread = ThreadPoolExecutor(1, "worker")
        self._closed = asyncio.Event()

    async def execute(self, plan: StepPlan) -> StepResult:
        """See `Worker.execute`."""
        if self._closed.is_set():
            raise WorkerLost("it is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, plan)

    async def watch(self) -> None:
        """See `Worker.watch`."""
        await self._closed.wait()
        raise WorkerLost("it is closed")

    async def close(self) -> None:
        """See `Worker.close`."""
        self._closed.set()
        self._thread.shutdown(wait=True)

    def _run(self, plan: StepPlan) -> StepResult:
        try:
            return self._runner.execute(plan)
        except Exception as error:
            raise StepFailed(f"{type(error).__name__}: {error}") from error
