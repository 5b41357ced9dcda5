"""How fast the transports move scattered blocks between two processes; beside each, its limit.

    python benchmarks/transports.py [--nixl PYTHON] [--json FILE] [--repeats 5] [--only shm,tcp]

Three patterns of blocks (`patterns.py`), each sent as one message, and read where a transport has
one-sided reads. In each repeat the transport, the copy within one process and the tool take turns,
so that a change of the machine's mood meets all of them. Other repeats, which are not in GB/s, have
a heartbeat in both loops, or a main thread that computes. Goals are in `transport_rows.py`.

Owns:   the order of everything, and what is printed.
Knows nothing of: links; it imports nothing of the package that has its own file's name.
"""

import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from benchmarks.blocks import ROOT, Worker, plain_table
from benchmarks.limits import ToolError, perftest, socket_trips, tools
from benchmarks.meter import ONE_THREAD, URGENT
from benchmarks.patterns import PATTERNS, SMALL_PATTERNS, Pattern
from benchmarks.transport_rows import (
    COST_HEADINGS,
    SIDES,
    SPEED_HEADINGS,
    TRIP_HEADINGS,
    Move,
    Trips,
    mark_best,
)

#: Address to listen at, and what the environment says, by the name in the table.
TRANSPORTS: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "shm": ("shm://{folder}/socket", {}),
    "tcp": ("tcp://127.0.0.1:0", {}),
    "ucx": ("ucx://127.0.0.1:0", {}),
    "ucx-tcp": ("ucx://127.0.0.1:0", {"UCX_TLS": "tcp"}),
}
#: NIXL has UCX find its own way, which within a host is cross-memory attach: no measure for what
#: goes over tcp. There it is told to do so too.
NIXL_LANES: Final[dict[str, dict[str, str]]] = {
    name: {"UCX_TLS": "tcp,self"} for name in ("tcp", "ucx-tcp")
}
TRIP_SIZES: Final = (64, 1024)
_TRIPS: Final = 2_000
_IDLE_S: Final = 0.1


@dataclass(slots=True)
class Report:
    """All that one run found out."""

    about: dict[str, Any]
    moves: list[Move] = field(default_factory=list)
    trips: list[Trips] = field(default_factory=list)
    #: What couldn't be measured, and why.
    missing: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """What `--json` writes."""
        return {
            "about": self.about,
            "moves": [move.as_json() for move in self.moves],
            "round trips": [trips.as_json() for trips in self.trips],
            "missing": self.missing,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured."""

    names: Sequence[str]
    patterns: Sequence[Pattern]
    repeats: int
    nixl: str | None = None
    with_tools: bool = True
    trips: int = _TRIPS


@contextmanager
def process(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Worker]:
    """A process that answers lines, ended when the block is left."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **ONE_THREAD, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            yield Worker(child)
            child.communicate()
        finally:
            child.kill()


def measure(plan: Plan) -> Report:
    """Everything. Raises: WorkerError if a process fails, also because bytes were wrong."""
    report = Report(_machine() | {"repeats": plan.repeats})
    for name in plan.names:
        address, environment = TRANSPORTS[name]
        peer = [sys.executable, "-m", "benchmarks.transport_peer"]
        with (
            tempfile.TemporaryDirectory() as folder,
            process([*peer, "owner", address.format(folder=folder)], environment) as owner,
        ):
            hello = owner.read()
            if "missing" in hello:
                report.missing[name] = hello["missing"]
                continue
            report.about["computes"] = hello["computes"]
            with process([*peer, "reader", hello["address"]], environment) as reader:
                report.about[name] = reader.read()
                _Run(plan, report, name, reader, environment).all()
    mark_best(report.moves)
    return report


class _Run:
    """One transport's part."""

    def __init__(
        self,
        plan: Plan,
        report: Report,
        name: str,
        reader: Worker,
        environment: Mapping[str, str],
    ) -> None:
        self._plan = plan
        self._report = report
        self._name = name
        self._ask = reader.ask
        #: For tools: the same UCX settings that the transport has.
        self._settings: dict[str, str] = {**report.about[name]["settings"], **environment}
        self._tools = {}
        if plan.with_tools:
            self._tools = tools(name, self._settings)

    def all(self) -> None:
        """Round trips, then one pattern after the other."""
        for size in TRIP_SIZES:
            self._trips(size)
        for pattern in self._plan.patterns:
            self._pattern(pattern)

    # -- round trips -----------------------------------------------------------------------------

    def _trips(self, size: int) -> None:
        times = self._plan.trips
        self._ask({"job": "echo", "bytes": size, "times": times // 10})
        ours = self._ask({"job": "echo", "bytes": size, "times": times})["trips"]
        least: list[float] = []
        by = ""
        if self._plan.with_tools:
            if self._name.startswith("ucx"):
                by = "ucx tag_lat"
                if latency := self._tried(by, lambda: perftest("tag_lat", size, self._settings)[0]):
                    least = [2 * latency]
            else:
                family = socket.AF_UNIX if self._name == "shm" else socket.AF_INET
                by, least = "socket", socket_trips(family, size, times)
        self._report.trips.append(Trips(self._name, size, ours, least, by))

    # -- blocks ----------------------------------------------------------------------------------

    def _pattern(self, pattern: Pattern) -> None:
        fields = [pattern.name, pattern.blocks, pattern.block_bytes]
        verbs = self._ask({"job": "pattern", "pattern": fields})["verbs"]
        moves = [Move(self._name, pattern.name, verb, pattern.num_bytes) for verb in verbs]
        self._report.moves += moves
        copies: list[float] = []
        found: dict[str, list[float]] = {tool: [] for tool in self._tools}
        for move in moves:
            move.copies, move.tools = copies, found
            self._move(move)  # the first time doesn't count
        for _ in range(self._plan.repeats):
            for move in moves:
                self._speed(move)
            copies.append(pattern.num_bytes / self._ask({"job": "copy"})["seconds"] / 1e9)
            for tool, run in self._tools.items():
                speed = self._tried(tool, lambda run=run: run(pattern.block_bytes))
                if speed is not None:
                    found[tool].append(speed)
        for _ in range(self._plan.repeats):
            for move in moves:
                self._lateness(move)
                self._computing(move)
        if self._plan.nixl is not None:
            self._nixl(self._plan.nixl, moves, fields)

    def _move(self, move: Move, *, heartbeat: bool = False, computes: str = "") -> dict[str, Any]:
        return self._ask(
            {"job": "move", "verb": move.verb, "heartbeat": heartbeat, "computes": computes}
        )

    def _speed(self, move: Move) -> None:
        answer = self._move(move)
        move.speeds.append(move.num_bytes / answer["seconds"] / 1e9)
        for side in SIDES:
            move.cpu.setdefault(side, []).append(answer[side]["cpu"] / move.num_bytes * 1e9)

    def _lateness(self, move: Move) -> None:
        busy = self._move(move, heartbeat=True)
        idle = self._ask({"job": "idle", "seconds": max(_IDLE_S, busy["seconds"])})
        for side in SIDES:
            move.late.setdefault(side, []).append(busy[side]["late"])
            move.idle_late.setdefault(side, []).append(idle[side]["late"])

    def _computing(self, move: Move) -> None:
        for side in SIDES:
            seconds = self._move(move, computes=side)["seconds"]
            move.computing.setdefault(side, []).append(move.num_bytes / seconds / 1e9)

    def _nixl(self, python: str, moves: Sequence[Move], fields: Sequence[Any]) -> None:
        lanes = NIXL_LANES.get(self._name, {})
        with process([python, "-m", "benchmarks.nixl_worker"], lanes) as worker:
            seconds = worker.ask({"pattern": fields, "repeats": self._plan.repeats})["seconds"]
        for move in moves:
            move.nixl = [move.num_bytes / each / 1e9 for each in seconds]

    def _tried(self, tool: str, run: Any) -> float | None:
        """The tool's figure; without one, the report says why."""
        try:
            figure: float = run()
        except ToolError as error:
            self._report.missing[f"{self._name}: {tool}"] = str(error)
            return None
        return figure


def _machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "urgent": URGENT in os.environ,
    }


def show(report: Report) -> None:
    """Print the tables: drawn on a screen, plain anywhere else."""
    tables = {
        "GB/s, best (median)": [SPEED_HEADINGS, *(move.as_speed() for move in report.moves)],
        "what it costs": [COST_HEADINGS, *(move.as_cost() for move in report.moves)],
        "round trips": [TRIP_HEADINGS, *(trips.as_cells() for trips in report.trips)],
    }
    if report.missing:
        tables["not measured"] = [("what", "why"), *map(list, report.missing.items())]
    for title, rows in tables.items():
        if not sys.stdout.isatty():
            print(title, plain_table(rows), "", sep="\n")
            continue
        from rich.console import Console
        from rich.table import Table

        table = Table(*rows[0], title=title)
        for row in rows[1:]:
            table.add_row(*row)
        Console().print(table)


def main(
    nixl: Annotated[str | None, typer.Option(help="interpreter that has nixl-cu12")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="file to write")] = None,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    only: Annotated[str, typer.Option(help="transports, with commas")] = ",".join(TRANSPORTS),
    urgent: Annotated[bool, typer.Option(help="while timed, go before others; needs root")] = False,
    small: Annotated[bool, typer.Option(help="so little that speeds mean nothing")] = False,
) -> None:
    """How fast the transports are."""
    names = only.split(",")
    if unknown := sorted(set(names) - set(TRANSPORTS)):
        raise typer.BadParameter(f"no transport {unknown}; there are {', '.join(TRANSPORTS)}")
    if urgent:
        os.environ[URGENT] = "1"
    patterns = tuple((SMALL_PATTERNS if small else PATTERNS).values())
    trips = 20 if small else _TRIPS
    report = measure(Plan(names, patterns, repeats, nixl, not small, trips))
    show(report)
    if json_file is not None:
        json_file.write_text(json.dumps(report.as_json(), indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
