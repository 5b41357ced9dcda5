"""`kvdist serve MODEL`: one node with an OpenAI-compatible API.

Owns:   the flags, named as vLLM's are.
Knows nothing of: how nodes work.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, nullcontext
from pathlib import Path
from typing import Annotated, Literal

import structlog
import typer

from kvdist.cli.runners import STUB, RunnerSettings, build_runner, speech_of, tokenizer_of
from kvdist.cli.screen import Screen
from kvdist.cli.worker import command
from kvdist.node import logs
from kvdist.node.build import NodeSettings, build_engine
from kvdist.node.in_process import InProcessWorker
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
    in_process = distributed_executor_backend == "uni"
    opened = closing(TraceFile(trace_file, trace_max_bytes)) if trace_file else nullcontext()
    with opened as trace:
        sink = trace.note if trace is not None else None
        asyncio.run(_serve(settings, worker_settings, sink, in_process=in_process))


async def _serve(
    settings: NodeSettings,
    worker_settings: RunnerSettings,
    trace: Sink | None,
    *,
    in_process: bool,
) -> None:
    async with _worker(worker_settings, in_process=in_process) as (worker, capacity):
        engine = build_engine(settings, capacity, worker, trace)
        await serve_node(settings, engine, tokenizer_of(capacity), speech_of(capacity))


@asynccontextmanager
async def _worker(
    settings: RunnerSettings, *, in_process: bool
) -> AsyncIterator[tuple[Worker, Capacity]]:
    worker: InProcessWorker | WorkerProcess
    with Screen().loading() as bar:

        def progress(what: str, share: float) -> None:
            _log.info("loading", what=what, share=share)
            bar(what, share)

        if in_process:
            runner, capacity = build_runner(settings, progress)
            worker = InProcessWorker(runner)
        else:
            worker = await WorkerProcess.start(command(settings))
            try:
                capacity = await worker.ready(progress)
            except BaseException:
                await worker.close()
                raise
    try:
        yield worker, capacity
    finally:
        await worker.close()
