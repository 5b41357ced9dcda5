"""What the block manager costs; beside vLLM's own, in the same run, where there is one.

    python benchmarks/blocks.py [--vllm PYTHON] [--json FILE] [--repeats 5] [--only W2]

The work is `work.py`, the sizes `size.py`, the goals `rows.py`. Each library runs in a process of
its own; their repeats take turns, so that a change of the machine's mood meets both. Every repeat
has a new manager and new requests, the first one is not counted, the table shows medians with
(min .. max). The clock is the CPU time of the one thread that works.

Owns:   the order of repeats, and what is printed.
Knows nothing of: what the work is.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.rows import HEADINGS, Figures, Result, results
from benchmarks.stopwatch import CLOCKS
from benchmarks.work import WORKS

ROOT = Path(__file__).resolve().parent.parent

#: vLLM's log would stand in the middle of the table; nothing is to be sent anywhere.
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}


class WorkerError(Exception):
    """A worker ended without an answer; its traceback is on stderr."""


@dataclass(frozen=True, slots=True)
class Worker:
    """The near end of one worker's lines."""

    process: subprocess.Popen[str]

    def read(self) -> dict[str, Any]:
        """The next line. Raises: WorkerError if there is none."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise WorkerError(f"no answer from {self.process.args!r}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, job: Mapping[str, object]) -> dict[str, Any]:
        """The answer to one job. Raises: WorkerError."""
        assert self.process.stdin is not None
        print(json.dumps(job), file=self.process.stdin, flush=True)
        return self.read()


@contextmanager
def worker(python: str, library: str) -> Iterator[Worker]:
    """A worker process, ended when the block is left."""
    with subprocess.Popen(
        [python, "-m", "benchmarks.worker", library],
        cwd=ROOT,
        env=os.environ | QUIET,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Worker(process)
            process.communicate()
        finally:
            process.kill()


@dataclass(frozen=True, slots=True)
class Report:
    """All that one run found out."""

    about: dict[str, Any]
    results: list[Result]
    #: Hits and blocks, by work; the same for every library.
    numbers: dict[str, dict[str, int]]

    def as_json(self) -> dict[str, Any]:
        """What `--json` writes."""
        rows = [result.as_json() for result in self.results]
        return {"about": self.about, "rows": rows, "numbers": self.numbers}


def measure(
    works: Sequence[str],
    *,
    vllm: str | None = None,
    repeats: int = 5,
    clock: str = "cpu",
    small: bool = False,
) -> Report:
    """Run all `works`. Raises: WorkerError if a library fails or reaches other numbers."""
    with ExitStack() as stack:
        workers = {"ours": stack.enter_context(worker(sys.executable, "kvdist"))}
        if vllm is not None:
            workers["theirs"] = stack.enter_context(worker(vllm, "vllm"))
        about = machine() | {"clock": clock, "repeats": repeats, "small": small}
        about |= {side: peer.read() for side, peer in workers.items()}
        figures: dict[str, dict[str, list[dict[str, float]]]] = {side: {} for side in workers}
        numbers: dict[str, dict[str, int]] = {}
        for work in works:
            job = {"work": work, "clock": clock, "small": small}
            for repeat in range(-1, repeats):
                for side, peer in workers.items():
                    answer = peer.ask(job)
                    if repeat >= 0:
                        figures[side].setdefault(work, []).append(answer["figures"])
                    numbers[work] = answer["numbers"]
    ours: Mapping[str, Figures] = figures["ours"]
    theirs: Mapping[str, Figures] = figures.get("theirs", {})
    return Report(about, results(ours, theirs), numbers)


def machine() -> dict[str, Any]:
    """What it runs on, and how busy that is."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }


def plain_table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they have to be; headings first."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def show(report: Report) -> None:
    """Print the table: drawn on a screen, plain anywhere else."""
    rows = [result.as_cells() for result in report.results]
    if not sys.stdout.isatty():
        print(plain_table([HEADINGS, *rows]))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*HEADINGS)
    for before, row in zip([None, *report.results], rows, strict=False):
        if before is not None and before.row.work != row[0]:
            table.add_section()
        table.add_row(*row)
    Console().print(table)


def main(
    vllm: Annotated[str | None, typer.Option(help="interpreter that has vllm")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="file to write")] = None,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    only: Annotated[str, typer.Option(help="works, with commas")] = ",".join(WORKS),
    clock: Annotated[str, typer.Option(help=" or ".join(CLOCKS))] = "cpu",
    small: Annotated[bool, typer.Option(help="so little that times mean nothing")] = False,
) -> None:
    """What the block manager costs."""
    works = only.split(",")
    if unknown := sorted(set(works) - set(WORKS)):
        raise typer.BadParameter(f"no work {unknown}; there are {', '.join(WORKS)}")
    if clock not in CLOCKS:
        raise typer.BadParameter(f"no clock {clock}")
    report = measure(works, vllm=vllm, repeats=repeats, clock=clock, small=small)
    show(report)
    if json_file is not None:
        json_file.write_text(json.dumps(report.as_json(), indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
