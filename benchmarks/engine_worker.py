"""kvdist's worker process, with a clock around the model.

    python -m benchmarks.engine_worker FOLDER DTYPE FILE DESCRIPTOR

Owns:   the file's lines, one a step: begin, seconds in the model, end, sequences, tokens.
Knows nothing of: the node.
Units:  seconds of the machine's monotonic clock.
"""

import socket
import sys
import time
from typing import Any, TextIO

from kvdist.cli.runners import build_runner
from kvdist.node.roles import Runner
from kvdist.node.worker_host import serve
from kvdist.sched.plan import StepPlan, StepResult
from kvdist.worker.settings import WorkerSettings


class Clocked:
    """A runner whose steps are noted."""

    def __init__(self, runner: Any, notes: TextIO) -> None:
        self._runner: Runner = runner
        self._notes = notes
        self._model = self._began = 0.0
        network = runner.model.network
        network.register_forward_pre_hook(self._begin)
        network.register_forward_hook(self._end)

    def execute(self, plan: StepPlan) -> StepResult:
        """See `Runner.execute`."""
        self._model = 0.0
        begin = time.perf_counter()
        result = self._runner.execute(plan)
        end = time.perf_counter()
        num_tokens = sum(turn.num_tokens for turn in plan.scheduled)
        print(begin, self._model, end, len(plan.scheduled), num_tokens, file=self._notes)
        return result

    def _begin(self, *_: Any) -> None:
        self._began = time.perf_counter()

    def _end(self, *_: Any) -> None:
        self._model += time.perf_counter() - self._began


def main(folder: str, dtype: str, file: str, descriptor: str) -> None:
    """Run plans until the node closes the socket."""
    settings = WorkerSettings(model=folder, dtype=dtype)
    with open(file, "a", buffering=1) as notes:

        def build(progress: Any) -> tuple[Runner, Any]:
            runner, capacity = build_runner(settings, progress)
            return Clocked(runner, notes), capacity

        serve(socket.socket(fileno=int(descriptor)), build)


if __name__ == "__main__":
    main(*sys.argv[1:])
