"""kvdist's engine and its worker process, as `kvdist serve` has them, without HTTP.

Owns:   the event loop, and the file in which the worker notes its steps.
Knows nothing of: works, other engines.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.engine_work import Answer, Ask, Step
from kvdist.node.build import NodeSettings, build_engine
from kvdist.node.engine import Engine
from kvdist.node.job import Job
from kvdist.node.worker_process import WorkerProcess
from kvdist.sched.sequence import SamplingParams


class KvdistEngine:
    """See `benchmarks.engine_work.Engine`."""

    def __init__(self, folder: str, dtype: str) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        self._steps = Path(self._scratch.name) / "steps"
        self._steps.touch()
        self._num_read = 0
        self._num_jobs = 0
        self._loop = asyncio.Runner()
        self._loop.run(self._start(folder, dtype))

    async def _start(self, folder: str, dtype: str) -> None:
        told = ["-m", "benchmarks.engine_worker", folder, dtype, str(self._steps)]
        self._worker = await WorkerProcess.start([sys.executable, *told])
        capacity = await self._worker.ready(lambda what, share: None)
        self._engine: Engine = build_engine(NodeSettings(names=("m",)), capacity, self._worker)
        self._running = asyncio.get_running_loop().create_task(self._engine.run(), name="engine")
        await asyncio.sleep(0)

    def describe(self) -> dict[str, str]:
        """Name and version."""
        return {"engine": "kvdist", "version": version("kvdist")}

    def serve(self, wave: Sequence[Ask]) -> Sequence[Answer]:
        """All of them, begun together."""
        return self._loop.run(self._serve(wave))

    async def _serve(self, wave: Sequence[Ask]) -> Sequence[Answer]:
        began = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(self._answer(ask, began)) for ask in wave]
        return [answer.result() for answer in answers]

    async def _answer(self, ask: Ask, began: float) -> Answer:
        self._num_jobs += 1
        params = SamplingParams(max_new_tokens=ask.num_tokens)
        job = Job(f"r{self._num_jobs}", [ask.prompt], params, time.monotonic())
        tokens: list[int] = []
        times: list[float] = []
        async for news in self._engine.generate(job):
            now = time.perf_counter() - began
            tokens += news.output.token_ids
            times += [now] * len(news.output.token_ids)
        return Answer(tokens, times)

    def cpu_s(self) -> float:
        """Of the node and its worker."""
        stat = Path(f"/proc/{self._worker.pid}/stat").read_text()
        user, system = stat.rpartition(")")[2].split()[11:13]
        return time.process_time() + (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def take_steps(self) -> Sequence[Step]:
        """As the worker has noted them."""
        lines = self._steps.read_text().splitlines()
        new, self._num_read = lines[self._num_read :], len(lines)
        return [_step(line) for line in new]

    def close(self) -> None:
        """The worker has ended."""
        with self._scratch:
            self._loop.run(self._end())
            self._loop.close()

    async def _end(self) -> None:
        self._engine.drain()
        await self._running
        await self._worker.close()


def _step(line: str) -> Step:
    begin, model, end, sequences, tokens = line.split()
    return Step(float(begin), float(model), float(end), int(sequences), int(tokens))
