"""The loop: overlapping steps, cancelling at each await, nothing left behind."""

import asyncio
from typing import Any

import pytest

from kvdist.errors import GenerationFailed, InvalidRequest, Unavailable
from kvdist.node.build import NodeSettings, build_engine
from kvdist.node.engine import Engine
from kvdist.node.in_process import InProcessWorker
from kvdist.node.job import Job
from kvdist.node.roles import Runner
from kvdist.node.worker_wire import Capacity
from kvdist.sched.plan import StepPlan, StepResult
from kvdist.sched.sequence import SamplingParams
from tests.node.running import TOKENIZER, Gate, perfect, until
from tests.node.small import CONFIG, stub


def make(runner: Runner, **settings: Any) -> tuple[Engine, InProcessWorker]:
    worker = InProcessWorker(runner)
    told = NodeSettings(names=("tiny",), **settings)
    return build_engine(told, Capacity.of(CONFIG), worker), worker


def job(prompt: str = "abc", max_new_tokens: int = 9, **more: Any) -> Job:
    params = SamplingParams(max_new_tokens=max_new_tokens, **more)
    return Job("mine", [TOKENIZER.encode(prompt)], params, 0.0)


async def tokens(engine: Engine, asked: Job) -> list[int]:
    return [token async for news in engine.generate(asked) for token in news.output.token_ids]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_step_is_planned_while_the_one_before_it_runs(overlap: bool) -> None:
    async def main() -> None:
        gate = Gate(stub())
        engine, worker = make(gate, async_scheduling=overlap)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(engine.run())
            await asyncio.sleep(0)
            asking = tasks.create_task(tokens(engine, job()))
            await until(lambda: gate.num_steps)
            assert engine.scheduler.steps.num_running == 1 + overlap
            gate.may_run.set()
            assert TOKENIZER.decode(await asking) == perfect("abc", 9)
            engine.drain()
            await running
        await worker.close()

    asyncio.run(main())


@pytest.mark.parametrize("beats", range(0, 24, 2))
def test_who_asks_may_be_cancelled_at_any_time(beats: int) -> None:
    async def main() -> None:
        engine, worker = make(stub())
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(engine.run())
            await asyncio.sleep(0)
            asking = tasks.create_task(tokens(engine, job(max_new_tokens=200, n=2)))
            for _ in range(beats):
                await asyncio.sleep(0)
            asking.cancel()
            await until(lambda: asking.done())
            assert TOKENIZER.decode(await tokens(engine, job())) == perfect("abc", 9)
            engine.drain()
            await running
        assert engine.scheduler.manager.usage == 0 and not engine.outbox
        await worker.close()

    asyncio.run(main())


@pytest.mark.parametrize("beats", range(0, 24, 2))
def test_the_loop_may_be_cancelled_at_any_time(beats: int) -> None:
    async def main() -> None:
        engine, worker = make(stub())
        running = asyncio.create_task(engine.run())
        await asyncio.sleep(0)
        asking = asyncio.create_task(tokens(engine, job(max_new_tokens=200)))
        for _ in range(beats):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        with pytest.raises(Unavailable):
            await asking
        with pytest.raises(Unavailable):
            await tokens(engine, job())
        await worker.close()

    asyncio.run(main())


def test_a_prompt_that_is_refused_takes_the_others_of_its_job_with_it() -> None:
    async def main() -> None:
        engine, worker = make(stub())
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(engine.run())
            await asyncio.sleep(0)
            bad = Job("mine", [[1, 2, 3], []], SamplingParams(), 0.0)
            with pytest.raises(InvalidRequest, match="empty"):
                await tokens(engine, bad)
            assert engine.scheduler.idle and not engine.outbox
            engine.drain()
            await running
        await worker.close()

    asyncio.run(main())


def test_before_it_runs_nothing_is_taken() -> None:
    async def main() -> None:
        engine, worker = make(stub())
        assert not engine.ready
        with pytest.raises(Unavailable, match="not begun"):
            await tokens(engine, job())
        await worker.close()

    asyncio.run(main())


def test_an_error_of_one_sequence_ends_its_job_alone() -> None:
    class Wrong:
        """Forgets to answer for sequences whose prompt is one token."""

        def __init__(self) -> None:
            self._runner = stub()
            self._mute: set[str] = set()

        def execute(self, plan: StepPlan) -> StepResult:
            self._mute |= {new.request_id for new in plan.new_sequences if len(new.token_ids) == 1}
            result = self._runner.execute(plan)
            said = {name: said for name, said in result.sampled.items() if name not in self._mute}
            return StepResult(plan.step, said)

    async def main() -> None:
        engine, worker = make(Wrong())
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(engine.run())
            await asyncio.sleep(0)
            good = tasks.create_task(tokens(engine, job()))
            with pytest.raises(GenerationFailed):
                await tokens(engine, job("x"))
            assert TOKENIZER.decode(await good) == perfect("abc", 9)
            engine.drain()
            await running
        await worker.close()

    asyncio.run(main())
