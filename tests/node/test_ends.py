"""How requests end before their time: clients that leave, full queues, drains, failed steps."""

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

from aiohttp import ClientError

from kvdist.sched.plan import StepPlan, StepResult
from kvdist.sim.stub_runner import StubRunner
from tests.node.running import TOKENIZER, Gate, Running, perfect, running, until
from tests.node.small import CONFIG, stub


def test_a_client_that_leaves_a_stream_aborts_it() -> None:
    async def main() -> None:
        gate = Gate(stub())
        gate.may_run.set()
        async with running(runner=gate) as node:
            body = {"prompt": "x", "max_tokens": 250, "stream": True, "n": 2}
            response = await node.http.post("/v1/completions", json=body)
            await response.content.readline()
            gate.may_run.clear()
            response.close()
            await until(lambda: not node.engine.scheduler.roster.sequences)
            gate.may_run.set()
            await until(lambda: node.engine.scheduler.idle)
            node.assert_nothing_held()
            numbers = await node.numbers()
            assert numbers['vllm:request_success_total{finished_reason="abort"}'] == 2

    asyncio.run(main())


def test_a_client_that_leaves_before_its_answer_aborts_it() -> None:
    async def main() -> None:
        gate = Gate(stub())
        async with running(runner=gate) as node:
            body = {"prompt": "x", "max_tokens": 250}
            asking = asyncio.create_task(node.post("/v1/completions", body))
            await until(lambda: node.engine.scheduler.roster.sequences)
            asking.cancel()
            await until(lambda: not node.engine.scheduler.roster.sequences)
            gate.may_run.set()
            await until(lambda: node.engine.scheduler.idle)
            node.assert_nothing_held()

    asyncio.run(main())


def test_a_full_queue_sends_clients_elsewhere() -> None:
    async def main() -> None:
        gate = Gate(stub())
        async with running(runner=gate, max_num_seqs=1, max_queued=2) as node:
            body = {"prompt": "x", "max_tokens": 2}
            async with asyncio.TaskGroup() as tasks:
                first = tasks.create_task(node.post("/v1/completions", body))
                await until(lambda: node.engine.scheduler.roster.running)
                waiting = tasks.create_task(node.post("/v1/completions", {**body, "n": 2}))
                await until(lambda: len(node.engine.scheduler.roster.waiting) == 2)
                async with node.http.post("/v1/completions", json=body) as response:
                    assert response.status == 503
                    assert response.headers["Retry-After"] == "1"
                    error = (await response.json())["error"]
                    assert error["type"] == "overloaded_error"
                gate.may_run.set()
            assert first.result()[0] == waiting.result()[0] == 200

    asyncio.run(main())


def test_a_drain_answers_what_is_open_and_takes_nothing_new() -> None:
    async def main() -> None:
        gate = Gate(stub())
        async with running(runner=gate) as node:
            body = {"prompt": "x", "max_tokens": 9}
            async with asyncio.TaskGroup() as tasks:
                open_ = tasks.create_task(node.post("/v1/completions", body))
                await until(lambda: node.engine.scheduler.roster.running)
                assert await status(node, "/ready") == 200
                node.engine.drain()
                assert await status(node, "/ready") == 503
                assert await status(node, "/health") == 200
                late, answer = await node.post("/v1/completions", body)
                assert late == 503 and "draining" in answer["error"]["message"]
                gate.may_run.set()
            done, answer = open_.result()
            assert done == 200 and answer["choices"][0]["text"] == perfect("x", 9)

    asyncio.run(main())


async def status(node: Running, path: str) -> int:
    async with node.http.get(path) as response:
        return response.status


class _Failing:
    """A runner of which some steps fail."""

    def __init__(self, runner: StubRunner, failing: range) -> None:
        self._runner, self._failing = runner, failing

    def execute(self, plan: StepPlan) -> StepResult:
        if plan.step in self._failing:
            raise RuntimeError("out of luck")
        return self._runner.execute(plan)


def test_a_step_that_fails_is_computed_anew() -> None:
    async def main() -> None:
        async with running(runner=_Failing(stub(), range(3, 4))) as node:
            status, answer = await node.post("/v1/completions", {"prompt": "abc", "max_tokens": 9})
            assert status == 200 and answer["choices"][0]["text"] == perfect("abc", 9)
            assert (await node.numbers())["kvdist:failed_steps_total"] >= 1

    asyncio.run(main())


def test_steps_that_go_on_failing_are_an_error_and_no_text() -> None:
    async def main() -> None:
        async with running(runner=_Failing(stub(), range(1, 1000))) as node:
            status, answer = await node.post("/v1/completions", {"prompt": "abc"})
            assert status == 500 and answer["error"]["type"] == "server_error"
            node.assert_nothing_held()
        async with running(runner=_Failing(stub(), range(4, 1000))) as node:
            body = {"prompt": "abc", "stream": True}
            async with node.http.post("/v1/completions", json=body) as response:
                assert response.status == 200  # it was sent with the first piece
                events = await events_of(response)
            assert "error" in events[-1] and events[-1]["error"]["code"] == 500
            node.assert_nothing_held()

    asyncio.run(main())


class _Poisoned:
    """A runner whose steps fail if a sequence with a certain token takes part."""

    def __init__(self, runner: StubRunner, token: int) -> None:
        self._runner, self._token = runner, token
        self._guilty: set[str] = set()

    def execute(self, plan: StepPlan) -> StepResult:
        self._guilty |= {s.request_id for s in plan.new_sequences if self._token in s.token_ids}
        if self._guilty & {turn.request_id for turn in plan.scheduled}:
            raise RuntimeError("what a token")
        return self._runner.execute(plan)


def test_a_request_that_breaks_its_steps_ends_alone() -> None:
    async def main() -> None:
        (poison,) = TOKENIZER.encode("Z")
        gate = Gate(_Poisoned(stub(), poison))
        async with running(runner=gate) as node:
            prompts = ["abcde", "fgZhi", "jkl", "abcdef"]
            async with asyncio.TaskGroup() as tasks:
                asked = [
                    tasks.create_task(
                        node.post("/v1/completions", {"prompt": prompt, "max_tokens": 20})
                    )
                    for prompt in prompts
                ]
                await until(lambda: len(node.engine.scheduler.roster.sequences) == 4)
                gate.may_run.set()
            for prompt, task in zip(prompts, asked, strict=True):
                status, answer = task.result()
                if "Z" in prompt:
                    assert status == 500, answer
                else:
                    assert status == 200 and answer["choices"][0]["text"] == perfect(prompt, 20)
            node.assert_nothing_held()

    asyncio.run(main())


async def events_of(response: Any) -> list[Any]:
    """The JSON of all events, up to the end of the stream."""
    lines: list[bytes] = []
    with suppress(ClientError):
        lines += [line async for line in response.content]
    told = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]
    return [json.loads(line) for line in told if not line.startswith(b"[DONE]")]


def test_numbers_of_requests_that_are_gone_take_no_room() -> None:
    async def main() -> None:
        async with running() as node:
            before = len((await node.numbers()).items())
            for _ in range(3):
                await node.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
            assert len(await node.numbers()) == before
            assert not node.engine.outbox and not node.engine.inbox

    asyncio.run(main())


def test_each_token_is_counted_once_though_sequences_are_preempted() -> None:
    async def main() -> None:
        config = replace(CONFIG, num_blocks=40)
        async with running(config=config) as node:
            body = {"prompt": ["abc", "defg"], "n": 4, "max_tokens": 30}
            status, _ = await node.post("/v1/completions", body)
            assert status == 200
            numbers = await node.numbers()
            assert numbers["vllm:num_preemptions_total"] > 0
            assert numbers["vllm:generation_tokens_total"] == 8 * 30
            assert numbers["vllm:prompt_tokens_total"] == 4 * (3 + 4)
            sources = ("local_compute", "local_cache_hit")
            told = [numbers[f'vllm:prompt_tokens_by_source_total{{source="{s}"}}'] for s in sources]
            assert sum(told) == 4 * (3 + 4)
            assert numbers["vllm:prefix_cache_queries_total"] == 4 * (3 + 4)
            assert numbers["vllm:kv_cache_usage_perc"] == 0

    asyncio.run(main())
