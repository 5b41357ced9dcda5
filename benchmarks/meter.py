"""What a transfer costs one process: CPU time, and how long its event loop stood still.

Owns:   the heartbeat, and what the main thread does meanwhile.
Knows nothing of: transports.
Units:  seconds.

The links' loop is in a second thread, as in an engine, whose main thread computes.
"""

import asyncio
import importlib
import os
import queue
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

#: Between two beats.
BEAT_S: Final = 0.001
_SIDE: Final = 512
#: Set for processes that are to go before others while they are timed; that needs root.
URGENT: Final = "TRANSPORTS_BENCHMARK_URGENT"


class MainThread:
    """Computes while it is asked to; `run` is the main thread's whole life."""

    def __init__(self) -> None:
        self.kind, self._work = _work()
        self._orders: queue.SimpleQueue[bool | None] = queue.SimpleQueue()
        self._on = False

    def compute(self, on: bool) -> None:
        """Begin or stop, from any thread; what is under way is finished."""
        if on is not self._on:
            self._on = on
            self._orders.put(on)

    def end(self) -> None:
        """`run` returns."""
        self._on = False
        self._orders.put(None)

    def run(self) -> None:
        """Obey until the end."""
        while self._orders.get() is not None:
            with first_in_line():
                while self._on:
                    self._work()


def _work() -> tuple[str, Callable[[], object]]:
    """A piece of a few milliseconds: the best model of a forward pass that there is here."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read once, when torch is loaded
    with suppress(ImportError):
        torch: Any = importlib.import_module("torch")
        torch.set_num_threads(1)
        tensor = torch.ones(_SIDE, _SIDE)
        return "torch", lambda: torch.relu(tensor @ tensor)
    with suppress(ImportError):
        numpy: Any = importlib.import_module("numpy")
        array = numpy.ones((_SIDE, _SIDE), numpy.float32)
        return "numpy", lambda: numpy.maximum(array @ array, 0)
    return "python", lambda: sum(range(100_000))


class Meter:
    """`begin`, then `end`: what went on in this process between them."""

    def __init__(self, main_thread: MainThread) -> None:
        self._main_thread = main_thread
        self._heart: asyncio.Task[None] | None = None
        self._late = 0.0
        self._cpu = 0.0

    def begin(self, *, heartbeat: bool = False, compute: bool = False) -> None:
        """A heartbeat costs the loop a few percent, so it is only there if asked for."""
        self._main_thread.compute(compute)
        self._late = 0.0
        if heartbeat:
            self._heart = asyncio.get_running_loop().create_task(self._beat(), name="heartbeat")
        hurry(True)
        self._cpu = _cpu_s()

    def end(self) -> dict[str, Any]:
        """CPU seconds of all threads, and the longest that the loop came too late."""
        cpu = _cpu_s() - self._cpu
        hurry(False)
        self._main_thread.compute(False)
        if self._heart is not None:
            self._heart.cancel()
            self._heart = None
        return {"cpu": cpu, "late": self._late}

    async def _beat(self) -> None:
        while True:
            due = time.perf_counter() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self._late = max(self._late, time.perf_counter() - due)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextmanager
def first_in_line() -> Iterator[None]:
    """The calling thread goes before all others, if the environment says so."""
    hurry(True)
    try:
        yield
    finally:
        hurry(False)


def hurry(on: bool) -> None:
    """Begin or end to go before others, for what is timed and no longer."""
    if URGENT in os.environ:
        policy = os.SCHED_RR if on else os.SCHED_OTHER
        os.sched_setscheduler(0, policy, os.sched_param(int(on)))


#: For processes that measure: one core for those who compute.
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
