"""A node in this process: engine, HTTP server, and a stub instead of a model."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp.test_utils import TestClient, TestServer
from openai import AsyncOpenAI

from kvdist.cache import KVCacheConfig
from kvdist.node.build import NodeSettings, build_api, build_engine
from kvdist.node.engine import Engine
from kvdist.node.in_process import InProcessWorker
from kvdist.node.roles import Runner, Worker
from kvdist.node.speech import Speech
from kvdist.node.tokenizer import Tokenizer
from kvdist.node.worker_wire import Capacity
from kvdist.sched.plan import StepPlan, StepResult
from tests.node.small import CONFIG, stub

TOKENIZER = Tokenizer.of_bytes()


def perfect(prompt: str | list[int], num_tokens: int) -> str:
    """What the stub says after `prompt`."""
    tokens = TOKENIZER.encode(prompt) if isinstance(prompt, str) else prompt
    return TOKENIZER.decode(stub().worker.model.perfect_tokens(tokens, num_tokens))


class Gate:
    """A runner whose steps wait until they may go on."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.may_run = threading.Event()
        self.num_steps = 0

    def execute(self, plan: StepPlan) -> StepResult:
        self.num_steps += 1
        assert self.may_run.wait(30)
        return self._runner.execute(plan)


@dataclass
class Running:
    engine: Engine
    http: "TestClient[Any, Any]"
    openai: AsyncOpenAI

    @property
    def url(self) -> str:
        return str(self.http.make_url("/"))

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and JSON body."""
        async with self.http.post(path, json=body) as response:
            return response.status, await response.json()

    async def numbers(self) -> dict[str, float]:
        """/metrics, by name and labels."""
        async with self.http.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        own = re.compile(r'{model_name="tiny"}|,model_name="tiny"|model_name="tiny",')
        return {own.sub("", name): float(value) for name, value in pairs}

    def assert_nothing_held(self) -> None:
        assert self.engine.scheduler.idle
        assert self.engine.scheduler.manager.usage == 0
        assert not len(self.engine.outbox)
        self.engine.scheduler.manager.check()


@asynccontextmanager
async def running(
    *,
    config: KVCacheConfig = CONFIG,
    runner: Runner | None = None,
    worker: Worker | None = None,
    engine: Engine | None = None,
    tokenizer: Tokenizer = TOKENIZER,
    speech: Speech | None = None,
    trace: Any = None,
    **settings: Any,
) -> AsyncIterator[Running]:
    """A node that listens, until the block ends; then it drains."""
    told = NodeSettings(**{"names": ("tiny",), **settings})
    if engine is None:
        worker = worker or InProcessWorker(runner or stub(config))
        engine = build_engine(told, Capacity.of(config), worker, trace)
    server = TestServer(build_api(told, engine, tokenizer, speech).app)
    await server.start_server()
    try:
        async with (
            asyncio.timeout(50),
            asyncio.TaskGroup() as tasks,
            TestClient(server) as http,
            AsyncOpenAI(
                base_url=str(http.make_url("/v1")), api_key=told.api_key or "none", max_retries=0
            ) as client,
        ):
            task = tasks.create_task(engine.run())
            await asyncio.sleep(0)
            try:
                yield Running(engine, http, client)
                engine.drain()
                await task
            finally:
                task.cancel()
    finally:
        if worker is not None:
            await worker.close()
        await server.close()


async def until(condition: Any) -> None:
    """Wait for something that is about to be so."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
