"""`kvdist serve MODEL`: one node with an OpenAI-compatible API.

Owns:   the order in which the parts of a node begin and end.
Knows nothing of: how nodes work.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AsyncExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Literal

import structlog
import typer

from kvdist.cli.flags import grouped
from kvdist.cli.runners import STUB, build_runner, check_model, defaults_of, speech_of, tokenizer_of
from kvdist.cli.screen import Screen
from kvdist.cli.serve_flags import (
    ExchangeFlags,
    ListeningFlags,
    ModelFlags,
    SchedulingFlags,
    TellingFlags,
)
from kvdist.cli.worker import command
from kvdist.links.members import StaticMembers
from kvdist.links.socket_folder import clear
from kvdist.links.worker_thread import WorkerThread
from kvdist.node import logs
from kvdist.node.build import NodeSettings, build_config, build_engine
from kvdist.node.exchange import Exchange
from kvdist.node.in_process import InProcessWorker
from kvdist.node.neighbours import ExchangeSettings, open_neighbours, open_worker
from kvdist.node.registration import Registration
from kvdist.node.roles import Worker
from kvdist.node.server import serve as serve_node
from kvdist.node.worker_process import WorkerProcess
from kvdist.node.worker_wire import Capacity
from kvdist.trace.recorder import Sink
from kvdist.web.reserving import Reserved
from kvdist.worker.settings import WorkerSettings

_MODEL = (
    "A model's folder, OWNER/NAME on the hub, SmolLM2-135M-Instruct (fetched and converted once), "
    f"or '{STUB}' for no model."
)
_log = structlog.get_logger(__name__)


@grouped
def serve(
    model: Annotated[str, typer.Argument(help=_MODEL)],
    listening: ListeningFlags,
    of_model: ModelFlags,
    scheduling: SchedulingFlags,
    exchange: ExchangeFlags,
    telling: TellingFlags,
    distributed_executor_backend: Annotated[
        Literal["mp", "uni"], typer.Option(help="Worker in a process of its own, or in this one.")
    ] = "mp",
) -> None:
    """Serve MODEL over HTTP, as OpenAI does, until SIGTERM; then answer what is open, and end.

    Exit status 0 after that, 2 if it can't begin or its worker is lost.
    """
    logs.configure(telling.log_format, telling.log_level)
    check_model(model)
    asked = _Asked(
        _node_settings(model, listening, scheduling),
        of_model.settings(model),
        distributed_executor_backend == "uni",
        of_model.generation_config == "auto",
        exchange.settings(listening.host, scheduling.prefix_caching_hash_algo),
        exchange.members,
        telling,
    )
    trace = telling.open_trace(exchange.name)
    with nullcontext() if trace is None else closing(trace), suppress(asyncio.CancelledError):
        asyncio.run(_serve(asked, None if trace is None else trace.note))


def _node_settings(
    model: str, listening: ListeningFlags, scheduling: SchedulingFlags
) -> NodeSettings:
    return NodeSettings(
        names=tuple(listening.served_model_name or [model]),
        host=listening.host,
        port=listening.port,
        max_queued=listening.max_queued_requests,
        max_body_bytes=listening.max_body_bytes,
        api_key=listening.api_key,
        drain_s=listening.shutdown_timeout,
        **asdict(scheduling),
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the flags say."""

    node: NodeSettings
    worker: WorkerSettings
    in_process: bool
    #: Sampling is the model's makers' where requests are silent.
    reads_defaults: bool
    exchange: ExchangeSettings | None
    members: Registration | StaticMembers
    telling: TellingFlags


async def _serve(asked: _Asked, trace: Sink | None) -> None:
    async with AsyncExitStack() as stack:
        if not asked.in_process:  # where loading would hold up the loop, and so what a signal does
            stack.enter_context(_ends_when_asked())
        link = theirs = None
        http = stack.enter_context(Reserved(asked.node.host, asked.node.port, "--port"))
        if asked.exchange is not None:
            where = (asked.exchange.host, asked.exchange.control_port)
            control = stack.enter_context(Reserved(*where, "--kv-port"))
            stack.callback(clear)  # what a worker that was killed has left
            link, theirs = await open_worker(asked.exchange)
        worker, capacity = await stack.enter_async_context(_worker(asked, theirs))
        exchange = None
        if asked.exchange is not None and link is not None:
            control.release()
            neighbours = await stack.enter_async_context(open_neighbours(asked.exchange, link))
            config = build_config(asked.node, capacity)
            exchange = Exchange(asked.exchange, config, neighbours, asked.members)
        engine = build_engine(asked.node, capacity, worker, trace, exchange)
        registration = asked.members if isinstance(asked.members, Registration) else None
        node = asked.node
        if asked.reads_defaults:
            node = replace(node, defaults=defaults_of(capacity))
        tokenizer, speech = tokenizer_of(capacity), speech_of(capacity)
        http.release()
        await serve_node(node, engine, tokenizer, speech, registration)


@contextmanager
def _ends_when_asked() -> Iterator[None]:
    """A signal cancels the task, so that what has begun ends in order; see `signals` for later."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


@asynccontextmanager
async def _worker(
    asked: _Asked, links: socket.socket | None
) -> AsyncIterator[tuple[Worker, Capacity]]:
    """`links`: the end of a socket that the worker's links are to have."""
    worker: InProcessWorker | WorkerProcess
    with Screen().loading() as bar:

        def progress(what: str, share: float) -> None:
            _log.info("loading", what=what, share=share)
            bar(what, share)

        if asked.in_process:
            thread = None
            if links is not None:
                thread = WorkerThread(links)
                thread.start()
            runner, capacity = build_runner(asked.worker, progress, thread)
            worker = InProcessWorker(runner)
        else:
            worker = await _start(asked, links)
            try:
                capacity = await worker.ready(progress)
            except BaseException:
                await worker.close()
                raise
    try:
        yield worker, capacity
    finally:
        await worker.close()


async def _start(asked: _Asked, links: socket.socket | None) -> WorkerProcess:
    fds = [] if links is None else [links.fileno()]
    told = command(
        asked.worker,
        *fds,
        log_format=asked.telling.log_format,
        log_level=asked.telling.log_level,
    )
    try:
        return await WorkerProcess.start(told, fds)
    finally:
        if links is not None:
            links.close()
