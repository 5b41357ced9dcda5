"""The protocol, checked by Spin: `make spin`, or `python tools/spin.py` in a virtual environment.

The tables are printed as Promela, one inline an event; `models/protocol.pml` has all else: what
effects do, the network, and what may go wrong. So the model can't say of a state what its table
doesn't. Needs `spin` and `gcc`.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvdist.connector.machine import Table
from kvdist.connector.tables.claim import CLAIM
from kvdist.connector.tables.grant import GRANT
from kvdist.connector.tables.lease import LEASE
from kvdist.connector.tables.part import PART
from kvdist.connector.tables.pull import PULL
from kvdist.connector.tables.serve import SERVE

AnyTable = Table[Any, Any, Any]
MODEL: Final = Path(__file__).resolve().parent.parent / "models/protocol.pml"
TABLES: Final[tuple[AnyTable, ...]] = (LEASE, GRANT, SERVE, CLAIM, PULL, PART)
TOOLS: Final = ("spin", "gcc")


@dataclass(frozen=True)
class Search:
    """All that can happen within some sizes, which are macros of the model."""

    name: str
    sizes: str
    #: Whether everything ends, beside whether everything is safe: no state counts as progress, so
    #: that a run which comes back to one is an error.
    ends: bool = False


#: Answers that are asked for again, after a restart too; two pulls of one claim; leases of blocks
#: that are still being written; messages that come twice.
QUICK: Final = (
    Search("repeats", "RESTARTS=1 TRIES=2"),
    Search("rounds", "CUTS=1 PULLS=2"),
    Search("streams end", "CUTS=1 RESTARTS=1 STREAMS=1", ends=True),
    Search("doubles", "CUTS=1 DOUBLES=1 RENEWALS=1"),
)
#: The same together, and a second lease before or after a restart.
LONG: Final = (
    Search("repeated rounds", "CUTS=1 PULLS=2 TRIES=2"),
    Search("all faults", "CUTS=1 DOUBLES=1 RESTARTS=1 TRIES=2 RENEWALS=1"),
    Search("streams", "CUTS=1 RESTARTS=1 TRIES=2 STREAMS=1"),
    Search("leases", "CLAIMS=2 LEASES=2 RESTARTS=1"),
    Search("faults end", "CUTS=1 DOUBLES=1 RESTARTS=1", ends=True),
    Search("rounds end", "CUTS=1 PULLS=2", ends=True),
)


@dataclass(frozen=True)
class Verdict:
    """What a check found."""

    name: str
    states: int
    depth: int
    errors: int
    is_whole: bool
    seconds: float
    #: What was violated; empty: nothing.
    complaint: str
    #: The steps that lead there.
    trail: str

    @property
    def holds(self) -> bool:
        """Everything was searched, and nothing was found."""
        return self.is_whole and not self.errors

    def __str__(self) -> str:
        result = self.complaint or ("holds" if self.is_whole else "not searched to its end")
        return (
            f"{self.name:16}{self.states:>11,} states  depth {self.depth:>4}"
            f"{self.seconds:>6.0f} s  {result}"
        )


def promela(tables: Sequence[AnyTable] = TABLES) -> str:
    """The tables: numbers for states (0: not begun), and an inline for each event."""
    return "\n".join(line for table in tables for line in _table(table)) + "\n"


def kinds(table: AnyTable) -> tuple[list[Any], list[Any]]:
    """Its states and its events, in their order."""
    state: Any = type(table.start)
    event: Any = type(next(event for _, event in table.rows))
    return list(state), list(event)


def _table(table: AnyTable) -> Iterator[str]:
    states, events = kinds(table)
    for number, state in enumerate(states, 1):
        yield f"#define {_state(table, state)} {number}"
    for event in events:
        yield f"inline {event_name(table, event)}(i) {{"
        yield "  if"
        for state in states:
            yield f"  :: {table.name}[i] == {_state(table, state)} -> {_way(table, state, event)}"
        yield "  fi"
        yield "}"


def _way(table: AnyTable, state: Any, event: Any) -> str:
    if (row := table.rows.get((state, event))) is not None:
        steps = [f"{table.name}[i] = {_state(table, row[0])}"]
        return "; ".join(steps + [f"{effect_name(table, effect)}(i)" for effect in row[1]])
    if (reason := table.impossible.get((state, event))) is not None:
        return f"assert(false) /* {reason} */"
    return "skip"


def _state(table: AnyTable, state: Any) -> str:
    return f"{table.name}_{state.name}".upper()


def event_name(table: AnyTable, event: Any) -> str:
    """What the model calls to bring an event about."""
    return f"{table.name}_{event.name}".lower()


def effect_name(table: AnyTable, effect: Any) -> str:
    """What the model has to define."""
    return f"do_{table.name}_{effect.name}".lower()


def missing_tools() -> list[str]:
    """What a check needs and this machine lacks."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def check(search: Search, model: str, tables: Sequence[AnyTable] = TABLES) -> Verdict:
    """Search, up to the first error."""
    sizes = [f"-D{size}" for size in search.sizes.split()]
    kind = "-DNP" if search.ends else "-DSAFETY"
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        (where / "tables.pml").write_text(promela(tables))
        (where / "protocol.pml").write_text(model)
        _run(where, "spin", *sizes, "-a", "protocol.pml")
        options = ("-O1", "-w", "-DNOFAIR", "-DCOLLAPSE", "-DVECTORSZ=2048", "-DMEMLIM=6000")
        _run(where, "gcc", *options, kind, "-o", "pan", "pan.c")
        told = _run(where, "./pan", "-m100000", "-w22", "-n", *["-l"] * search.ends)
        trail = ""
        if (where / "protocol.pml.trail").exists():
            trail = _run(where, "spin", *sizes, "-t", "-p", "protocol.pml")
    return _verdict(search.name, told, trail, time.monotonic() - began)


def _run(where: Path, *command: str) -> str:
    result = subprocess.run(
        command, cwd=where, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if result.returncode and command[0] != "./pan":
        raise RuntimeError(f"{' '.join(command)}: {result.stdout}")
    return result.stdout


def _verdict(name: str, told: str, trail: str, seconds: float) -> Verdict:
    numbers = re.search(r"depth reached (\d+), errors: (\d+)", told)
    states = re.search(r"(\d+) states, stored", told)
    if numbers is None or states is None:
        raise RuntimeError(told)
    complaint = re.search(r"^pan:1: (.*)$", told, re.MULTILINE)
    return Verdict(
        name,
        int(states[1]),
        int(numbers[1]),
        int(numbers[2]),
        "Search not completed" not in told and "max search depth too small" not in told,
        seconds,
        complaint[1] if complaint else "",
        trail,
    )


def main() -> int:
    """All searches, on the tables as they are."""
    verdicts = []
    for search in QUICK + LONG:
        verdicts.append(verdict := check(search, MODEL.read_text()))
        print(verdict, flush=True)
        if verdict.trail:
            print(verdict.trail)
    return int(not all(verdict.holds for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
