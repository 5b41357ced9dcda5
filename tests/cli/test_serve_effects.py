"""`kvdist serve`: what flags change of the steps that a worker gets, not of settings alone."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from kvdist.cli import serve as command
from kvdist.cli.runners import build_runner
from kvdist.node.roles import Runner
from kvdist.sched.plan import StepPlan, StepResult
from kvdist.worker.settings import WorkerSettings
from tests.cli.conftest import Talk
from tests.node.running import TOKENIZER, Running, until

TEXT = "/v1/completions"


class Spy:
    """A runner that notes its plans, and waits where it is told to."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.plans: list[StepPlan] = []
        self.may_run = threading.Event()
        self.may_run.set()
        #: Steps under way while a step runs, this one included.
        self.num_under_way: list[int] = []
        self.node: Running | None = None

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        assert self.may_run.wait(30)
        if self.node is not None:
            time.sleep(0.02)
            self.num_under_way.append(self.node.engine.scheduler.steps.num_running)
        return self._runner.execute(plan)

    @property
    def most_together(self) -> int:
        """Sequences of the largest step."""
        return max(len(plan.scheduled) for plan in self.plans)

    @property
    def begun(self) -> list[str]:
        """Prompts in the order in which they began."""
        news = [new for plan in self.plans for new in plan.new_sequences]
        return [TOKENIZER.decode(new.token_ids[: new.num_prompt_tokens]) for new in news]


@pytest.fixture
def spied(serve: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Spy]:
    """Runs a conversation, and gives back who has listened to the worker."""

    def run(talk: Callable[[Running, Spy], Any], *flags: str) -> Spy:
        spies: list[Spy] = []

        def build_spy(*arguments: Any) -> Any:
            runner, capacity = build_runner(*arguments)
            spies.append(Spy(runner))
            return spies[0], capacity

        async def with_spy(node: Running) -> None:
            await talk(node, spies[0])

        monkeypatch.setattr(command, "build_runner", build_spy)
        conversation: Talk = with_spy
        serve(conversation, *flags)
        return spies[0]

    return run


async def three(node: Running, spy: Spy) -> None:
    status, _ = await node.post(TEXT, {"prompt": ["a", "b", "c"], "max_tokens": 3})
    assert status == 200


@pytest.mark.parametrize(("flags", "most"), [((), 3), (("--max-num-seqs", "2"), 2)])
def test_how_many_run_at_a_time(
    spied: Callable[..., Spy], flags: tuple[str, ...], most: int
) -> None:
    assert spied(three, *flags).most_together == most


@pytest.mark.parametrize(("flags", "most"), [((), 2), (("--no-async-scheduling",), 1)])
def test_whether_a_step_is_planned_while_another_runs(
    spied: Callable[..., Spy], flags: tuple[str, ...], most: int
) -> None:
    async def talk(node: Running, spy: Spy) -> None:
        spy.node = node
        await three(node, spy)

    assert max(spied(talk, *flags).num_under_way) == most


@pytest.mark.parametrize(
    ("policy", "begun"),
    [("fcfs", ["first", "late", "urgent"]), ("priority", ["first", "urgent", "late"])],
)
def test_who_is_first(spied: Callable[..., Spy], policy: str, begun: list[str]) -> None:
    async def talk(node: Running, spy: Spy) -> None:
        spy.may_run.clear()
        async with asyncio.TaskGroup() as tasks:
            for i, (prompt, priority) in enumerate([("first", 0), ("late", 9), ("urgent", 1)]):
                body = {"prompt": prompt, "max_tokens": 2, "priority": priority}
                tasks.create_task(node.post(TEXT, body))
                await until(lambda i=i: len(node.engine.scheduler.roster.sequences) == i + 1)
            spy.may_run.set()

    assert spied(talk, "--max-num-seqs", "1", "--scheduling-policy", policy).begun == begun


@pytest.mark.parametrize(("watermark", "most"), [("0", 2), ("0.5", 1)])
def test_room_that_is_kept_free(spied: Callable[..., Spy], watermark: str, most: int) -> None:
    """The second prompt would leave less than half of the pool."""

    async def talk(node: Running, spy: Spy) -> None:
        body = {"prompt": ["x" * 480, "y" * 480], "max_tokens": 2}
        assert (await node.post(TEXT, body))[0] == 200

    flags = ("--num-gpu-blocks-override", "100", "--watermark", watermark)
    assert spied(talk, *flags).most_together == most


def test_what_is_for_the_worker_reaches_it(
    serve: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it makes of them is tested with `worker.build`."""
    told: list[WorkerSettings] = []

    def build_noting(settings: WorkerSettings, *more: Any) -> Any:
        told.append(settings)
        return build_runner(settings, *more)

    monkeypatch.setattr(command, "build_runner", build_noting)

    async def talk(node: Running) -> None:
        pass

    flags = "--dtype bfloat16 --device cuda:3 --kv-cache-memory-bytes 99 --max-model-len 77"
    serve(talk, *flags.split(), "--block-size", "8", "--num-gpu-blocks-override", "33")
    assert told == [
        WorkerSettings(
            model="stub",
            dtype="bfloat16",
            device="cuda:3",
            max_model_len=77,
            block_size=8,
            num_blocks=33,
            kv_cache_memory_bytes=99,
        )
    ]
