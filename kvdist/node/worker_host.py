"""The worker's end of the socket: plans in, results out, one after the other.

Owns:   the socket, in the worker's process.
Knows nothing of: asyncio, what a plan says, what runs it.

Plain blocking calls: whatever runs the model has the main thread (torch wants it), and reads the
next plan, which the node has sent already, when it has answered the last one.
"""

import socket
from collections.abc import Callable
from typing import TypeAlias

from kvdist.errors import KvdistError
from kvdist.node.roles import Runner
from kvdist.node.worker_wire import (
    HEAD,
    Broken,
    Capacity,
    Done,
    Failed,
    FromWorker,
    Loading,
    frame,
    read_head,
    read_plan,
)
from kvdist.sched.plan import StepPlan

#: Told what is being done while a model is loaded, and which share of all is done, 0 .. 1.
Progress: TypeAlias = Callable[[str, float], None]
#: Makes a runner, and says what it has room for.
Build: TypeAlias = Callable[[Progress], tuple[Runner, Capacity]]


def serve(link: socket.socket, build: Build) -> None:
    """Until the node closes the socket; a node that dies does that too.

    Raises: whatever `build` does, after the node has heard it.
    """

    def progress(what: str, share: float) -> None:
        link.sendall(frame(Loading(what, share)))

    with link:
        try:
            runner, capacity = build(progress)
        except Exception as error:
            link.sendall(frame(Broken(_reason(error))))
            raise
        try:
            link.sendall(frame(capacity.ready()))
            while body := _receive(link):
                link.sendall(frame(_run(runner, read_plan(body))))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the node has gone: so do we


def _run(runner: Runner, plan: StepPlan) -> FromWorker:
    try:
        return Done(runner.execute(plan))
    except Exception as error:  # noqa: BLE001
        return Failed(plan.step, _reason(error))


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, KvdistError) else f"{type(error).__name__}: {error}"


def _receive(link: socket.socket) -> bytes:
    """The next message; empty if there is none any more. Raises: FormatError."""
    head = _exactly(link, HEAD.size)
    return _exactly(link, read_head(head)) if head else b""


def _exactly(link: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        got = link.recv_into(view[filled:])
        if not got:
            return b""
        filled += got
    return bytes(data)
