"""The order of the chapters, on a node whose parts write down what is asked of them."""

import asyncio
from typing import Any

import pytest

from kvdist.errors import WorkerLost
from kvdist.node.compute import Ended
from kvdist.node.step import step
from kvdist.sched.plan import StepPlan, StepResult

PLAN = StepPlan(1, (), (), (), (), ())


class Writing:
    """All parts of a node at once: each call is written down, with the answer that it gets."""

    def __init__(self, **answers: list[Any]) -> None:
        self.calls: list[str] = []
        self._answers = answers
        self.inbox = self.scheduler = self.compute = self.outbox = self.exchange = self

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            answers = self._answers.get(name)
            return answers.pop(0) if answers else None

        return call

    async def over(self) -> list[Ended]:
        self.calls.append("over")
        (answer,) = self._answers["over"]
        if isinstance(answer, Exception):
            raise answer
        return list(answer)


def test_one_step_names_its_chapters_in_order() -> None:
    ended = [Ended(1, StepResult(1)), Ended(2, None)]
    node: Any = Writing(schedule=[PLAN, PLAN, None], over=[ended])
    asyncio.run(step(node))
    assert node.calls == [
        *("admit", "carry_out"),
        *("schedule", "start"),
        *("schedule", "start"),
        "schedule",
        "carry_out",
        *("take_outputs", "tell"),
        "over",
        *("settle", "tell"),
        *("fail_step", "tell"),
    ]


def test_a_lost_worker_is_for_the_loop_around_it() -> None:
    node: Any = Writing(schedule=[None], over=[WorkerLost("gone")])
    with pytest.raises(WorkerLost, match="gone"):
        asyncio.run(step(node))
