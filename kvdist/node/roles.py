"""What a node asks of its worker, and what a worker asks of whoever runs the model.

Owns:   nothing.
Knows nothing of: processes, sockets, tensors.
"""

from typing import Protocol

from kvdist.sched.plan import StepPlan, StepResult


class Runner(Protocol):
    """Runs plans, one after the other, and takes its time: a model, or a stub."""

    def execute(self, plan: StepPlan, /) -> StepResult:
        """Run one step. Whatever it raises costs that step, and no more."""
        ...


class Worker(Protocol):
    """Runs plans while others wait."""

    async def execute(self, plan: StepPlan, /) -> StepResult:
        """The result of a step; plans are run in the order of the calls.

        Raises: StepFailed: what the step wrote is worthless. WorkerLost: there is no worker any
        more, and never will be.
        """
        ...

    async def watch(self) -> None:
        """Wait until the worker is lost. Raises: WorkerLost, and never returns."""

    async def close(self) -> None:
        """It has ended, and nothing of it is left."""
