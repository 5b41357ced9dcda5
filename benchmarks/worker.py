"""One library in a process of its own: a job a line on stdin, an answer a line on stdout.

Owns:   the process and its lines.
Knows nothing of: the other library, repeats, tables.

    python -m benchmarks.worker kvdist
    -> {"library": "kvdist", "version": "0.1.0", "python": "3.11.7"}
    <- {"work": "W1", "clock": "cpu", "small": false}
    -> {"figures": {"lookup": 9.1, ...}, "numbers": {"hit tokens": 491520, ...}}

An empty line, or the end of stdin, ends it. An error is a traceback on stderr and an end.
"""

import json
import os
import platform
import sys
from typing import Any

from benchmarks.library import Engine
from benchmarks.size import FULL, SMALL
from benchmarks.stopwatch import Stopwatch
from benchmarks.work import WORKS


def load(library: str) -> Engine[Any, Any]:
    """The engine of `library`; nothing of another library is imported."""
    if library == "kvdist":
        from benchmarks.library_kvdist import KvdistEngine

        return KvdistEngine()
    if library == "vllm":
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read once, when torch is loaded
        from benchmarks.library_vllm import VllmEngine

        return VllmEngine()
    raise SystemExit(f"no engine for {library}")


def serve(library: str) -> None:
    """Answer jobs until there are no more."""
    # What a library prints must not become an answer: its stdout is our stderr from here on.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine = load(library)
    with answers:
        hello = engine.describe() | {"python": platform.python_version()}
        print(json.dumps(hello), file=answers)
        for line in iter(sys.stdin.readline, ""):
            if not line.strip():
                break
            job = json.loads(line)
            watch = Stopwatch(job["clock"])
            outcome = WORKS[job["work"]](engine, SMALL if job["small"] else FULL, watch)
            answer = {"figures": outcome.figures, "numbers": outcome.numbers}
            print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    serve(sys.argv[1])
