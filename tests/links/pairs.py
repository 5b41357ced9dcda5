"""Nodes in this process that exchange K/V over real links; a stub stands in for the model."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from kvdist.cli.runners import build_runner
from kvdist.connector.params import Lend, write_params
from kvdist.connector.settings import Settings
from kvdist.ids import NodeId
from kvdist.links.local_link import LocalLink
from kvdist.links.worker_thread import WorkerThread
from kvdist.node.build import NodeSettings, build_config, build_engine
from kvdist.node.engine import Engine
from kvdist.node.exchange import Exchange
from kvdist.node.in_process import InProcessWorker
from kvdist.node.job import Job
from kvdist.node.neighbours import ExchangeSettings, open_neighbours, open_worker
from kvdist.node.worker_wire import Capacity
from kvdist.sched.audio import Audio
from kvdist.sched.sequence import SamplingParams
from kvdist.worker.settings import WorkerSettings
from tests.node.running import TOKENIZER, perfect

TRANSPORTS = ("tcp", "shm", "ucx")


@dataclass
class Book:
    """Who is where; as a registry would know it."""

    addresses: dict[NodeId, str] = field(default_factory=dict)

    def control_address(self, node: NodeId) -> str | None:
        return self.addresses.get(node)


@dataclass
class Node:
    """One that runs."""

    engine: Engine
    exchange: Exchange

    async def ask(
        self,
        prompt: str,
        num_tokens: int = 8,
        params: Mapping[str, Any] | None = None,
        *,
        n: int = 1,
    ) -> list[str]:
        """The texts of `n` answers."""
        return (await self.ask_more(prompt, num_tokens, params, n=n))[0]

    async def ask_more(
        self,
        prompt: str,
        num_tokens: int = 8,
        params: Mapping[str, Any] | None = None,
        *,
        n: int = 1,
    ) -> tuple[list[str], Job]:
        """Texts, and the job that they came of."""
        job = a_job(TOKENIZER.encode(prompt), num_tokens, params, n=n)
        return [TOKENIZER.decode(one) for one in await self.tokens(job)], job

    async def tokens(self, job: Job) -> list[list[int]]:
        """All that is said."""
        said: list[list[int]] = [[] for _ in range(job.num_choices)]
        async for news in self.engine.generate(job):
            said[news.index] += news.output.token_ids
        return said

    async def prefill(
        self,
        prompt: str | Sequence[int],
        transfer: str | None = None,
        audio: Audio | None = None,
    ) -> Mapping[str, Any] | None:
        """What its K/V can be had for."""
        return (await self.prefill_more(prompt, transfer, audio=audio))[0]

    async def prefill_more(
        self,
        prompt: str | Sequence[int],
        transfer: str | None = None,
        hint: NodeId | None = None,
        audio: Audio | None = None,
    ) -> tuple[Mapping[str, Any] | None, Job]:
        """That, and the job that it came of; `hint` has what it begins with."""
        tokens = TOKENIZER.encode(prompt) if isinstance(prompt, str) else prompt
        job = a_job(tokens, 1, write_params(Lend(transfer, hint=hint)))
        job.is_prefill, job.is_streamed = True, transfer is not None
        job.audio = () if audio is None else [audio]
        async for _ in self.engine.generate(job):
            pass
        ticket = await self.engine.ticket(job)
        return None if ticket is None else write_params(ticket), job

    @property
    def is_at_rest(self) -> bool:
        """Nothing is held, lent or wanted."""
        manager = self.engine.scheduler.manager
        free = manager.block_pool.get_num_free_blocks()
        all_free = free == manager.config.num_blocks - 1
        return self.engine.scheduler.idle and self.exchange.is_idle and all_free

    async def rest(self) -> None:
        """Wait for that."""
        async with asyncio.timeout(20):
            while not self.is_at_rest:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        self.engine.scheduler.manager.check()


def a_job(
    tokens: Sequence[int],
    num_tokens: int,
    params: Mapping[str, Any] | None = None,
    *,
    n: int = 1,
) -> Job:
    sampling = SamplingParams(n=n, max_new_tokens=num_tokens)
    return Job("r", [tokens], sampling, 0.0, kv_transfer_params=params)


@asynccontextmanager
async def a_node(
    name: NodeId,
    book: Book,
    transport: str = "tcp",
    *,
    block_size: int = 16,
    num_blocks: int = 400,
    model: str = "stub",
    max_model_len: int = 1024,
    is_checked: bool = False,
    faults: str = "",
    token: bytes = b"0123456789abcdef",
    **settings: Any,
) -> AsyncIterator[Node]:
    """A node that others find in `book` while it runs."""
    asked = ExchangeSettings(
        node_id=name,
        transport=transport,  # type: ignore[arg-type]
        token=token,
        connector=Settings(**settings),
        is_checked=is_checked,
        faults=faults,
    )
    async with AsyncExitStack() as stack:
        link, theirs = await open_worker(asked)
        thread = WorkerThread(theirs)
        thread.start()
        runner_settings = WorkerSettings(
            model=model,
            block_size=block_size,
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            dtype="auto" if model == "stub" else "float32",
        )
        runner, capacity = build_runner(runner_settings, lambda *_: None, thread)
        worker = InProcessWorker(runner)
        stack.push_async_callback(worker.close)
        node = await stack.enter_async_context(a_process(asked, book, worker, capacity, link))
        yield node


@asynccontextmanager
async def a_process(
    asked: ExchangeSettings,
    book: Book,
    worker: InProcessWorker,
    capacity: Capacity,
    *links: LocalLink,
) -> AsyncIterator[Node]:
    """What a node's process is, over workers whose ends of `links` are taken already."""
    settings = NodeSettings(names=("stub",))
    async with open_neighbours(asked, *links) as neighbours:
        exchange = Exchange(asked, build_config(settings, capacity), neighbours, book)
        engine = build_engine(settings, capacity, worker, exchange=exchange)
        book.addresses[asked.node_id] = exchange.control_address
        async with asyncio.TaskGroup() as group:
            running = group.create_task(engine.run())
            await asyncio.sleep(0)
            try:
                yield Node(engine, exchange)
            finally:
                running.cancel()


@asynccontextmanager
async def a_pair(transport: str = "tcp", **settings: Any) -> AsyncIterator[tuple[Node, Node]]:
    """`p0` and `d0`."""
    book = Book()
    async with (
        a_node("p0", book, transport, **settings) as prefill,
        a_node("d0", book, transport, **settings) as decode,
    ):
        yield prefill, decode


def some_prompts(count: int) -> Sequence[str]:
    """Of several lengths, some with a common beginning."""
    shared = "A beginning that many have. " * 4
    return [f"{shared if i % 3 else ''}{i} " + "words " * (i % 17 * 5) + "?" for i in range(count)]


__all__ = ["TRANSPORTS", "Book", "Node", "a_job", "a_node", "a_pair", "perfect", "some_prompts"]
