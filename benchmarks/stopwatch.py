"""Time, measured so that other load on the machine disturbs it least.

Owns:   the clocks and the state of the garbage collector while one runs.
Knows nothing of: libraries, the work.
Units:  seconds.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Final

#: `cpu` is the CPU time of this thread, `wall` what a clock on the wall says.
CLOCKS: Final[dict[str, Callable[[], float]]] = {
    "cpu": time.thread_time,
    "wall": time.perf_counter,
}


class Stopwatch:
    """`now` reads the clock; what that reading itself takes is known and can be taken off."""

    def __init__(self, clock: str = "cpu") -> None:
        self.now = CLOCKS[clock]
        self.cost = median(-(self.now() - self.now()) for _ in range(2_001))

    def net(self, seconds: float, calls: int) -> float:
        """A sum of `calls` intervals, without the readings of the clock in it."""
        return max(0.0, seconds - calls * self.cost)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Garbage is collected before, and not while timing."""
        gc.collect()
        gc.disable()
        try:
            yield
        finally:
            gc.enable()
