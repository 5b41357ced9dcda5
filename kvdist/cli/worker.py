"""`kvdist worker`: a worker's process, which a node starts; nobody calls it by hand.

Owns:   nothing.
Knows nothing of: what it is told to do.
"""

import os
import signal
import socket
import sys
from collections.abc import Sequence as Listing
from dataclasses import fields
from typing import Annotated, Literal

import structlog
import typer

from kvdist.cli.runners import build_runner
from kvdist.links.worker_thread import WorkerThread
from kvdist.node import logs
from kvdist.node.worker_host import serve
from kvdist.worker.settings import WorkerSettings

_log = structlog.get_logger(__name__)


def worker(
    model: str,
    descriptor: Annotated[int, typer.Argument(help="The socket to the node.")],
    dtype: Annotated[str, typer.Option()] = "auto",
    device: Annotated[str, typer.Option()] = "auto",
    max_model_len: Annotated[int | None, typer.Option()] = None,
    block_size: Annotated[int | None, typer.Option()] = None,
    num_blocks: Annotated[int | None, typer.Option()] = None,
    kv_cache_memory_bytes: Annotated[int | None, typer.Option()] = None,
    links_descriptor: Annotated[int | None, typer.Option()] = None,
    log_format: Annotated[Literal["auto", "console", "json"], typer.Option()] = "auto",
    log_level: Annotated[str, typer.Option()] = "info",
) -> None:
    """Run plans that come over an inherited socket, until it is closed."""
    logs.configure(log_format, log_level)
    # The node says when, though a terminal or a supervisor tells all processes at once.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    settings = WorkerSettings(
        model=model,
        dtype=dtype,
        device=device,
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=num_blocks,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
    )
    links = None
    if links_descriptor is not None:
        links = WorkerThread(socket.socket(fileno=links_descriptor))
        links.start()
    serve(
        socket.socket(fileno=descriptor), lambda progress: build_runner(settings, progress, links)
    )
    if links is not None and not links.join():
        # An interpreter that ends kills the thread wherever it is, and with it what it calls.
        _log.warning("links didn't end in time")
        os._exit(0)


def command(
    settings: WorkerSettings,
    links_descriptor: int | None = None,
    *,
    log_format: str = "auto",
    log_level: str = "info",
) -> Listing[str]:
    """What starts such a process; the descriptor of the socket for plans comes last."""
    told = [sys.executable, "-m", "kvdist", "worker", settings.model]
    told += [f"--log-format={log_format}", f"--log-level={log_level}"]
    if links_descriptor is not None:
        told.append(f"--links-descriptor={links_descriptor}")
    for one in fields(settings):
        value = getattr(settings, one.name)
        if one.name != "model" and value is not None:
            told.append(f"--{one.name.replace('_', '-')}={value}")
    return told
