"""One engine in a process of its own: a job a line on stdin, an answer a line on stdout.

Owns:   the process and its lines.
Knows nothing of: the other engines, rounds, tables.

    python -m benchmarks.engine_process vllm FOLDER float32
    -> {"engine": "vLLM", "version": "0.32.0"}
    <- {"work": "batch 4", "stream": 64, "small": false}
    -> {"waves": [[{"tokens": [..], "times": [..]}, ..]], "cpu": 1.2, "steps": []}

An empty line, or the end of stdin, ends it. An error is a traceback on stderr and an end.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Final

from benchmarks.engine_work import FULL, SMALL, Engine, Outcome

#: Module and class of each; nothing of another engine is imported.
ENGINES: Final[Mapping[str, tuple[str, str]]] = {
    "kvdist": ("engine_kvdist", "KvdistEngine"),
    "generate": ("engine_transformers", "Generate"),
    "continuous": ("engine_transformers", "ContinuousBatching"),
    "vllm": ("engine_vllm", "VllmEngine"),
}


def load(name: str, folder: str, dtype: str) -> Engine:
    """The engine with that model."""
    module, kind = ENGINES[name]
    make: Callable[[str, str], Engine] = getattr(import_module(f"benchmarks.{module}"), kind)
    return make(folder, dtype)


def serve(name: str, folder: str, dtype: str) -> None:
    """Answer jobs until there are no more."""
    # What an engine prints must not become an answer: its stdout is our stderr from here on.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine = load(name, folder, dtype)
    with answers:
        print(json.dumps(engine.describe()), file=answers)
        for line in iter(sys.stdin.readline, ""):
            if not line.strip():
                break
            job = json.loads(line)
            waves = (SMALL if job["small"] else FULL)[job["work"]](job["stream"])
            before = engine.cpu_s()
            answered = [engine.serve(wave) for wave in waves]
            outcome = Outcome(answered, engine.cpu_s() - before, engine.take_steps())
            print(json.dumps(outcome.as_json()), file=answers)
    engine.close()


if __name__ == "__main__":
    serve(*sys.argv[1:])
