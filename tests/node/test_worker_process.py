"""A worker in a process of its own: it works, it fails, it lies, it is killed."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kvdist.cache import KVCacheManager
from kvdist.errors import ConfigError, FormatError, StepFailed, WorkerLost
from kvdist.node.worker_process import WorkerProcess
from kvdist.node.worker_wire import Capacity
from kvdist.sched.plan import StepPlan
from kvdist.sched.scheduler import Scheduler
from kvdist.sched.sequence import SamplingParams
from tests.node.running import perfect, running, until
from tests.node.small import CONFIG
from tests.node.test_ends import events_of

HOST = "tests.node.odd_workers"


@asynccontextmanager
async def worker(kind: str) -> AsyncIterator[WorkerProcess]:
    """A process of the given kind, of `odd_workers`."""
    process = await WorkerProcess.start([sys.executable, "-m", HOST, kind])
    try:
        yield process
    finally:
        await process.close()


def no_progress(what: str, share: float) -> None:
    pass


def a_plan() -> StepPlan:
    scheduler = Scheduler(KVCacheManager(CONFIG))
    scheduler.add("r", [1, 2, 3], SamplingParams(max_new_tokens=5))
    plan = scheduler.schedule()
    assert plan is not None
    return plan


def test_it_answers_as_one_in_process_does() -> None:
    async def main() -> None:
        told: list[tuple[str, float]] = []
        async with worker("good") as process:
            capacity = await process.ready(lambda *how_far: told.append(how_far))
            assert capacity == Capacity.of(CONFIG)
            assert told == [("weights", 0.5), ("weights", 1.0)]
            async with running(worker=process) as node:
                for prompt in ("one", "another one"):
                    body = {"prompt": prompt, "max_tokens": 9, "n": 2}
                    status, answer = await node.post("/v1/completions", body)
                    assert status == 200
                    assert [c["text"] for c in answer["choices"]] == [perfect(prompt, 9)] * 2
                node.assert_nothing_held()

    asyncio.run(main())


def test_killed_while_it_works_everybody_hears_it_at_once() -> None:
    async def main() -> None:
        async with worker("slow") as process:
            await process.ready(no_progress)
            async with running(worker=process) as node:
                stream = {"prompt": "x", "max_tokens": 200, "stream": True}
                async with node.http.post("/v1/completions", json=stream) as response:
                    await response.content.readline()
                    whole = asyncio.create_task(
                        node.post("/v1/completions", {"prompt": "y", "max_tokens": 200})
                    )
                    await until(lambda: len(node.engine.scheduler.roster.running) == 2)
                    os.kill(process.pid, signal.SIGKILL)
                    status, answer = await whole
                    assert status == 503
                    assert "ended by signal 9" in answer["error"]["message"]
                    assert (await events_of(response))[-1]["error"]["code"] == 503
                async with node.http.get("/health") as health:
                    assert health.status == 503
                status, answer = await node.post("/v1/completions", {"prompt": "z"})
                assert status == 503

    asyncio.run(main())


def test_killed_while_it_is_idle_the_node_is_not_healthy_any_more() -> None:
    async def main() -> None:
        async with worker("good") as process:
            await process.ready(no_progress)
            async with running(worker=process) as node:
                os.kill(process.pid, signal.SIGKILL)
                await until(lambda: node.engine.lost is not None)

    asyncio.run(main())


def test_a_step_that_fails_there() -> None:
    async def main() -> None:
        async with worker("failing") as process:
            await process.ready(no_progress)
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(process.watch())
                with pytest.raises(StepFailed, match="RuntimeError: out of luck"):
                    await process.execute(a_plan())
                watching.cancel()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("broken", "no such model"),
        ("mute", "ended with status 3"),
        ("garbage", "no answer of a worker"),
        ("huge", "at most"),
        ("hasty", "not asked"),
    ],
)
def test_it_can_not_begin(kind: str, reason: str) -> None:
    async def main() -> None:
        async with worker(kind) as process:
            with pytest.raises(WorkerLost, match=reason):
                await process.ready(no_progress)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["unknown-group", "bad-group"])
def test_it_says_what_no_node_understands(kind: str) -> None:
    async def main() -> None:
        async with worker(kind) as process:
            with pytest.raises((FormatError, ConfigError)):
                await process.ready(no_progress)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["other-step", "extra-answer"])
def test_answers_to_no_question(kind: str) -> None:
    async def main() -> None:
        async with worker(kind) as process:
            await process.ready(no_progress)
            async with running(worker=process) as node:
                body: dict[str, Any] = {"prompt": "x", "max_tokens": 2}
                await node.post("/v1/completions", body)
                await until(lambda: node.engine.lost is not None)
                assert (await node.post("/v1/completions", body))[0] == 503

    asyncio.run(main())


def test_closing_ends_it_even_in_the_middle_of_a_step() -> None:
    async def main() -> None:
        async with worker("slow") as process:
            await process.ready(no_progress)
            step = asyncio.create_task(process.execute(a_plan()))
            await asyncio.sleep(0)
            await process.close()
            with pytest.raises(WorkerLost):
                await step
            with pytest.raises(ProcessLookupError):
                os.kill(process.pid, 0)

    asyncio.run(main())


def test_a_command_that_is_none_leaves_nothing() -> None:
    async def main() -> None:
        with pytest.raises(OSError, match="No such file"):
            await WorkerProcess.start(["/nowhere/at/all"])

    asyncio.run(main())
