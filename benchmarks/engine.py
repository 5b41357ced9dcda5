"""kvdist's engine beside transformers' `generate` and continuous batching, and vLLM on a CPU.

    python -m benchmarks.engine [--vllm PYTHON] [--dtype float32] [--json FILE] [--rounds 3]

The same model, the same requests, each engine in processes of its own, all in one run: they take
turns work by work and round by round, so that a change of the machine's mood meets all. Ratios are
of one round; the table shows medians. No engine has HTTP around it. The works are `engine_work`'s,
the goals `engine_rows`'.

Owns:   the order of rounds, and what is printed.
Knows nothing of: what the works are, how an engine is asked.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from benchmarks.blocks import ROOT, Worker, machine, plain_table
from benchmarks.engine_rows import Result, agreement, figures, headings, results
from benchmarks.engine_work import FULL, SMALL, STREAMS, Outcome
from kvdist.worker.default_model import NAME, default_model

#: For every engine: threads that spin would take the cores of the engine whose turn it is.
_CALM: Final = {
    "OMP_WAIT_POLICY": "passive",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


@dataclass(frozen=True, slots=True)
class Report:
    """All that one run found out."""

    about: Mapping[str, Any]
    results: Sequence[Result]
    #: By engine: the share of answers that are ours, token for token.
    agreement: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        """What `--json` writes."""
        rows = [result.as_json() for result in self.results]
        return {"about": self.about, "rows": rows, "agreement": self.agreement}


@contextmanager
def _process(python: str, engine: str, folder: str, dtype: str) -> Iterator[Worker]:
    """The engine, loaded; it is ended when the block is left."""
    threads = {"OMP_NUM_THREADS": str(os.cpu_count())}
    with subprocess.Popen(
        [python, "-m", "benchmarks.engine_process", engine, folder, dtype],
        cwd=ROOT,
        env=threads | os.environ | _CALM,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Worker(process)
            process.communicate()
        finally:
            process.kill()


def measure(
    works: Sequence[str],
    folder: str,
    *,
    pythons: Mapping[str, str],
    dtype: str = "float32",
    rounds: int = 3,
    small: bool = False,
) -> Report:
    """Run all `works`; `pythons` has an interpreter for each engine, kvdist first.

    Raises: WorkerError if an engine fails.
    """
    with ExitStack() as stack:
        engines = {
            engine: stack.enter_context(_process(python, engine, folder, dtype))
            for engine, python in pythons.items()
        }
        about = machine() | {"dtype": dtype, "rounds": rounds, "small": small}
        about |= {engine: peer.read() for engine, peer in engines.items()}
        outcomes: dict[str, dict[str, list[Outcome]]] = {}
        stream = 0
        for work in ["warm up", *works]:
            found = outcomes.setdefault(work, {engine: [] for engine in engines})
            for _ in range(1 if work == "warm up" else rounds):
                stream += STREAMS
                job = {"work": works[0] if work == "warm up" else work}
                for engine, peer in engines.items():
                    told = peer.ask(job | {"stream": stream, "small": small})
                    found[engine].append(Outcome.read(told))
    del outcomes["warm up"]
    about["load_average_after"] = os.getloadavg()[0]
    numbers = {
        work: {engine: [figures(one) for one in all_of_it] for engine, all_of_it in found.items()}
        for work, found in outcomes.items()
    }
    ours = [one for found in outcomes.values() for one in found["kvdist"]]
    agreed = {
        engine: agreement(ours, [one for found in outcomes.values() for one in found[engine]])
        for engine in engines
        if engine != "kvdist"
    }
    return Report(about, results(numbers), agreed)


def show(report: Report, engines: Sequence[str]) -> None:
    """Print the table, and below it how far the answers agree."""
    rows = [result.as_cells(engines) for result in report.results]
    print(plain_table([headings(engines), *rows]))
    for engine, share in report.agreement.items():
        print(f"{share:.0%} of the answers are those of {engine}, token for token")
    before, after = report.about["load_average"], report.about["load_average_after"]
    print(f"load average {before:.1f} before, {after:.1f} after, {report.about['cpus']} processors")


def main(
    model: Annotated[str, typer.Option(help="a model's folder, or the default model")] = NAME,
    vllm: Annotated[str | None, typer.Option(help="interpreter that has vllm-cpu")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16")] = "float32",
    json_file: Annotated[Path | None, typer.Option("--json", help="file to write")] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    only: Annotated[str, typer.Option(help="works, with commas; all: nothing")] = "",
    small: Annotated[bool, typer.Option(help="so little that times mean nothing")] = False,
) -> None:
    """Tokens a second, TTFT and ITL of engines, side by side."""
    known = SMALL if small else FULL
    works = only.split(",") if only else list(known)
    if unknown := sorted(set(works) - set(known)):
        raise typer.BadParameter(f"no work {unknown}; there are {', '.join(known)}")
    folder = str(default_model(lambda what, _: print(what))) if model == NAME else model
    pythons = dict.fromkeys(("kvdist", "generate", "continuous"), sys.executable)
    if vllm is not None:
        pythons["vllm"] = vllm
    report = measure(works, folder, pythons=pythons, dtype=dtype, rounds=rounds, small=small)
    show(report, list(pythons))
    if json_file is not None:
        json_file.write_text(json.dumps(report.as_json(), indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
