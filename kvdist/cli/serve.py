"""`kvdist serve MODEL`: one node with an OpenAI-compatible API.

Owns:   the flags, named as vLLM's are.
Knows nothing of: how nodes work.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import structlog
import typer

from kvdist.cli.runners import STUB, RunnerSettings, build_runner, speech_of, tokenizer_of
from kvdist.cli.screen import Screen
from kvdist.cli.worker import command
from kvdist.connector.settings import Settings
from kvdist.links.members import StaticMembers, read_peers
from kvdist.links.worker_thread import WorkerThread
from kvdist.node import logs
from kvdist.node.build import NodeSettings, build_config, build_engine
from kvdist.node.exchange import Exchange
from kvdist.node.in_process import InProcessWorker
from kvdist.node.neighbours import ExchangeSettings, open_neighbours, open_worker
from kvdist.node.registration import Registration
from kvdist.node.roles import Worker
from kvdist.node.server import serve as serve_node
from kvdist.node.tracing import TraceFile
from kvdist.node.worker_process import WorkerProcess
from kvdist.node.worker_wire import Capacity
from kvdist.trace.recorder import Sink

_MODEL = (
    "A model's folder, OWNER/NAME on the hub, SmolLM2-135M-Instruct (fetched and converted once), "
    f"or '{STUB}' for no model."
)
_log = structlog.get_logger(__name__)


def serve(
    model: Annotated[str, typer.Argument(help=_MODEL)],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="What clients call the model; may be repeated.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Longest sequence, in tokens.")
    ] = None,
    block_size: Annotated[int | None, typer.Option(min=1, help="Tokens in one block.")] = None,
    num_gpu_blocks_override: Annotated[
        int | None, typer.Option(min=2, help="Blocks of the pool.")
    ] = None,
    kv_cache_memory_bytes: Annotated[
        int | None, typer.Option(min=1, help="Memory for K/V, unless blocks are given.")
    ] = None,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        typer.Option(help="Of weights and K/V; auto: as the model says."),
    ] = "auto",
    device: Annotated[
        str, typer.Option(help="cpu, cuda, cuda:1 ...; auto: a GPU if there is one.")
    ] = "auto",
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Sequences that run at a time.")] = 128,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one step.")] = 2048,
    enable_prefix_caching: Annotated[
        bool, typer.Option(help="Find prefixes that were computed before.")
    ] = True,
    prefix_caching_hash_algo: Annotated[
        Literal["sha256", "xxh3_128"], typer.Option(help="What names the content of a block.")
    ] = "sha256",
    enable_chunked_prefill: Annotated[
        bool, typer.Option(help="Compute long prompts in several steps.")
    ] = True,
    async_scheduling: Annotated[
        bool, typer.Option(help="Plan a step while the one before it runs.")
    ] = True,
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"], typer.Option(help="By arrival, or by priority first.")
    ] = "fcfs",
    watermark: Annotated[
        float, typer.Option(min=0, max=0.99, help="Share of the pool kept free at admissions.")
    ] = 0.0,
    distributed_executor_backend: Annotated[
        Literal["mp", "uni"], typer.Option(help="Worker in a process of its own, or in this one.")
    ] = "mp",
    max_queued_requests: Annotated[
        int, typer.Option(min=1, help="Sequences that may wait; more are sent away with 503.")
    ] = 1024,
    max_body_bytes: Annotated[
        int, typer.Option(min=1, help="Largest body of a request; larger ones get 413.")
    ] = 32 << 20,
    api_key: Annotated[
        str | None, typer.Option(envvar="KVDIST_API_KEY", help="What clients have to show.")
    ] = None,
    shutdown_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to answer what is open, after SIGTERM.")
    ] = 30.0,
    trace_file: Annotated[
        Path | None,
        typer.Option(
            "--trace-file",
            "--trace",
            envvar="KVDIST_TRACE_FILE",
            help="All that happens to requests and blocks goes there; see kvdist trace.",
        ),
    ] = None,
    trace_max_bytes: Annotated[
        int, typer.Option(min=1 << 12, help="At that size the file becomes FILE.1.")
    ] = 64 << 20,
    role: Annotated[
        Literal["prefill", "decode", "both"] | None,
        typer.Option(help="Exchange K/V with other nodes, as this; not given: none."),
    ] = None,
    node_id: Annotated[
        str | None, typer.Option(help="Name among the nodes, the same after a restart.")
    ] = None,
    transport: Annotated[
        Literal["tcp", "shm", "ucx"], typer.Option(help="What K/V travel by.")
    ] = "tcp",
    kv_host: Annotated[
        str | None, typer.Option(help="Where other nodes reach this one; like --host if not given.")
    ] = None,
    kv_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where other nodes reach this one; 0: any.")
    ] = 0,
    registry: Annotated[
        str | None, typer.Option(help="http://HOST:PORT of a router, which knows all nodes.")
    ] = None,
    registry_token: Annotated[
        str | None, typer.Option(envvar="KVDIST_REGISTRY_TOKEN", help="What it wants to be shown.")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="NAME=tcp://HOST:PORT of another node; without a registry."),
    ] = None,
    cluster_token: Annotated[
        str | None,
        typer.Option(envvar="KVDIST_CLUSTER_TOKEN", help="What nodes prove to each other."),
    ] = None,
    kv_load_failure_policy: Annotated[
        Literal["recompute", "fail"], typer.Option(help="When K/V don't come from another node.")
    ] = "recompute",
    log_format: Annotated[
        Literal["auto", "console", "json"], typer.Option(help="auto: console on a terminal.")
    ] = "auto",
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="The least to be logged.")
    ] = "info",
) -> None:
    """Serve MODEL over HTTP, as OpenAI does, until SIGTERM; then answer what is open, and end.

    Exit status 0 after that, 2 if it can't begin or its worker is lost.
    """
    logs.configure(log_format, log_level)
    settings = NodeSettings(
        names=tuple(served_model_name or [model]),
        host=host,
        port=port,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        enable_prefix_caching=enable_prefix_caching,
        prefix_caching_hash_algo=prefix_caching_hash_algo,
        enable_chunked_prefill=enable_chunked_prefill,
        async_scheduling=async_scheduling,
        scheduling_policy=scheduling_policy,
        watermark=watermark,
        max_queued=max_queued_requests,
        max_body_bytes=max_body_bytes,
        api_key=api_key,
        drain_s=shutdown_timeout,
    )
    worker_settings = RunnerSettings(
        model=model,
        dtype=dtype,
        device=device,
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=num_gpu_blocks_override,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
    )
    exchange_settings = None
    if role is not None:
        exchange_settings = ExchangeSettings(
            node_id=node_id or f"{socket.gethostname()}-{os.getpid()}",
            role=role,
            transport=transport,
            host=kv_host or host,
            control_port=kv_port,
            token=None if cluster_token is None else cluster_token.encode(),
            hash_algorithm=prefix_caching_hash_algo,
            connector=Settings(on_failure=kv_load_failure_policy),
        )
    registration = None if registry is None else Registration(registry, registry_token)
    asked = _Asked(
        settings,
        worker_settings,
        distributed_executor_backend == "uni",
        exchange_settings,
        registration or StaticMembers(read_peers(peer or [])),
    )
    opened = closing(TraceFile(trace_file, trace_max_bytes)) if trace_file else nullcontext()
    with opened as trace:
        asyncio.run(_serve(asked, trace.note if trace is not None else None))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the flags say."""

    node: NodeSettings
    worker: RunnerSettings
    in_process: bool
    exchange: ExchangeSettings | None
    members: Registration | StaticMembers


async def _serve(asked: _Asked, trace: Sink | None) -> None:
    async with AsyncExitStack() as stack:
        link = theirs = None
        if asked.exchange is not None:
            link, theirs = await open_worker(asked.exchange)
        worker, capacity = await stack.enter_async_context(
            _worker(asked.worker, theirs, in_process=asked.in_process)
        )
        exchange = None
        if asked.exchange is not None and link is not None:
            neighbours = await stack.enter_async_context(open_neighbours(asked.exchange, link))
            config = build_config(asked.node, capacity)
            exchange = Exchange(asked.exchange, config, neighbours, asked.members)
        engine = build_engine(asked.node, capacity, worker, trace, exchange)
        registration = asked.members if isinstance(asked.members, Registration) else None
        await serve_node(
            asked.node, engine, tokenizer_of(capacity), speech_of(capacity), registration
        )


@asynccontextmanager
async def _worker(
    settings: RunnerSettings, links: socket.socket | None, *, in_process: bool
) -> AsyncIterator[tuple[Worker, Capacity]]:
    """`links`: the end of a socket that the worker's links are to have."""
    worker: InProcessWorker | WorkerProcess
    with Screen().loading() as bar:

        def progress(what: str, share: float) -> None:
            _log.info("loading", what=what, share=share)
            bar(what, share)

        if in_process:
            thread = None
            if links is not None:
                thread = WorkerThread(links)
                thread.start()
            runner, capacity = build_runner(settings, progress, thread)
            worker = InProcessWorker(runner)
        else:
            worker = await _start(settings, links)
            try:
                capacity = await worker.ready(progress)
            except BaseException:
                await worker.close()
                raise
    try:
        yield worker, capacity
    finally:
        await worker.close()


async def _start(settings: RunnerSettings, links: socket.socket | None) -> WorkerProcess:
    if links is None:
        return await WorkerProcess.start(command(settings))
    with links:
        descriptor = links.fileno()
        return await WorkerProcess.start(command(settings, descriptor), [descriptor])
