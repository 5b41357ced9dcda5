"""How nodes that exchange K/V end."""

import asyncio
import os
import socket
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from kvdist.cli import worker
from kvdist.connector.local import Fetch
from kvdist.connector.messages import Hello, PartId
from kvdist.connector.params import ByTransfer, write_params
from kvdist.connector.settings import Settings
from kvdist.connector.worker_half import WorkerHalf
from kvdist.errors import Unavailable, WorkerLost
from kvdist.ids import BlockId, Incarnation, LeaseId, PullId, Rank
from kvdist.links.marks import Marks
from kvdist.links.memory import HostPool, Memory
from kvdist.links.worker_links import WorkerLinks
from kvdist.links.worker_thread import WorkerThread
from kvdist.node.compute import Compute
from kvdist.node.engine import Engine
from kvdist.sched.plan import StepPlan, StepResult
from tests.links.pairs import a_pair
from tests.links.ranks import Shape
from tests.node.running import running, until


class Silent:
    """A worker that never answers, and whose end somebody else notices first."""

    async def execute(self, plan: StepPlan) -> StepResult:
        await asyncio.Event().wait()
        raise AssertionError(plan)

    async def watch(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        """It has none."""


def test_a_node_whose_links_are_lost_ends_though_a_step_runs() -> None:
    async def main() -> None:
        async with running(worker=Silent()) as node:
            engine: Engine = node.engine
            asking = asyncio.create_task(node.post("/v1/completions", {"prompt": "x"}))
            await until(lambda: engine.scheduler.steps)
            compute: Compute = engine.compute
            compute.lose(WorkerLost("its links have ended"))
            status, _ = await asking
            assert status == 503
            assert isinstance(engine.lost, WorkerLost)

    async def all_within(seconds: float) -> None:
        async with asyncio.timeout(seconds):
            await main()

    asyncio.run(all_within(20))


def test_the_worker_goes_while_others_wait() -> None:
    """Its thread ends as a process that was killed does: all who wait hear of it."""

    async def main() -> None:
        async with a_pair() as (prefill, decode):
            params = await prefill.prefill("A prompt of some length, so that there is something.")
            decode.exchange._neighbours.workers[0].close()
            await until(lambda: decode.engine.lost)
            with pytest.raises(Unavailable):
                await decode.ask("A prompt of some length, so that there is", 4, params)
            assert isinstance(decode.engine.lost, WorkerLost)
            await prefill.ask("And this one is still there.")

    asyncio.run(main())


def test_what_is_heard_while_links_end_is_left_undone() -> None:
    """A link that ends makes the half stop what moves over it, when no task can begin any more."""

    async def nobody() -> Any:
        await asyncio.Event().wait()

    async def main() -> None:
        shape = Shape()
        half = WorkerHalf(
            Hello("d0", Incarnation(1), shape.fingerprint("sha256")),
            Rank(0),
            shape.geometry,
            Settings(),
            sends=lambda _: True,
        )
        memory = Memory(HostPool(memoryview(bytearray(8))), shape.layout(0))
        said: list[object] = []
        transport: Any = None
        links = WorkerLinks(half, memory, Settings(), transport, said.append, print, Marks())
        listener: Any = SimpleNamespace(accept=nobody)
        running = asyncio.create_task(links.run(listener))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        part = PartId(PullId(1), Rank(0), Rank(0))
        heads, spans = (0, 4), ((0, 16),)
        lease = LeaseId(bytes(16))
        links.hear(Fetch(part, lease, "p0", Incarnation(1), spans, heads, ((BlockId(1),),), b""))
        assert not said

    asyncio.run(main())


def test_a_node_that_drains_ends_when_its_last_word_is_said() -> None:
    """That is to a peer, and nothing happens any more after it."""

    async def main() -> None:
        async with a_pair(parked_s=0.3) as (prefill, decode):
            await decode.ask("Both have met.", 1, await prefill.prefill("Both have met."))
            along = write_params(ByTransfer("p0", "a transfer that nobody prefills"))
            asking = asyncio.create_task(decode.ask("A prompt of some length", 1, along))
            await until(lambda: prefill.exchange.half.lender.transfers)
            prefill.engine.drain()
            await until(lambda: not prefill.engine._is_running)
            await asking

    asyncio.run(main())


def test_a_worker_whose_links_do_not_end_goes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that ends would take its thread down within the calls that it makes."""

    class Gone(BaseException):
        pass

    def leave(status: int) -> None:
        raise Gone(status)

    def hang(thread: WorkerThread) -> None:
        with thread._link:
            stuck.wait()

    ours, theirs = socket.socketpair()
    plans, _ours = socket.socketpair()
    stuck = threading.Event()
    monkeypatch.setattr(WorkerThread, "_main", hang)
    monkeypatch.setattr("kvdist.links.worker_thread._ENDS_S", 0.01)
    monkeypatch.setattr(worker, "serve", lambda link, _: link.close())
    monkeypatch.setattr(worker, "logs", Mock())
    monkeypatch.setattr("signal.signal", Mock())
    monkeypatch.setattr(os, "_exit", leave)
    with ours, _ours, pytest.raises(Gone, match="0"):
        worker.worker("stub", plans.detach(), links_descriptor=theirs.detach())
    stuck.set()
