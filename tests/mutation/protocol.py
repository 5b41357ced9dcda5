"""Plants bugs in the transfer protocol, and lets the simulator look for them.

A bug is a row of a table that lacks one effect or leads elsewhere, or a rule that always says yes
(or no). `make protocol` tries them all; `python -m tests.mutation.protocol serve grant` those whose
names begin so (a name in full: that one). What is known of this very source isn't tried again.
"""

import json
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from multiprocessing import Pool, cpu_count
from pathlib import Path
from typing import Any, Final

from kvdist import check
from kvdist.connector import rules
from kvdist.connector.machine import Table
from kvdist.connector.tables import claim, grant, lease, part, pull, serve
from kvdist.sched import lending
from kvdist.sim.faults import faults_of
from kvdist.sim.run import calm_walk, walk
from kvdist.sim.script import Walk
from kvdist.sim.shrink import last_line
from tests.mutation.results import KEPT, Finding, Results, digest

TABLES: Final[dict[str, Table[Any, Any, Any]]] = {
    table.name: table
    for table in (claim.CLAIM, grant.GRANT, lease.LEASE, part.PART, pull.PULL, serve.SERVE)
}
#: Of a rule: the module, its name, what it says in place of the truth.
RULES: Final[list[tuple[Any, str, Callable[..., Any]]]] = [
    (rules, "is_same_run", lambda *_: True),
    (rules, "is_same_content", lambda *_: True),
    (rules, "may_lend", lambda *_: True),
    (rules, "may_take_over", lambda *_: True),
    (rules, "may_resume", lambda resume, local, known, anywhere: max(0, resume - local)),
    (rules, "may_confirm", lambda *_: True),
    (rules, "may_return", lambda *_: True),
    (rules, "may_issue", lambda *_: True),
    (rules, "may_cancel", lambda *_: True),
    (rules, "all_parts", lambda *_: True),
    (rules, "readable", lambda settled, first, last, is_state: last),
    (lending, "may_lend", lambda *_: True),
    (lending, "may_serve", lambda *_: True),
]
#: Seeds to try, and events a walk.
NUM_SEEDS: Final = 200
NUM_EVENTS: Final = 1200


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def mutants() -> Iterator[Mutant]:
    """All of them."""
    for name, table in TABLES.items():
        for (state, event), (target, effects) in table.rows.items():
            where = f"{name} ({state.name}, {event.name})"
            for index, effect in enumerate(effects):
                yield Mutant(where, f"without {effect.name} [{index}]")
            for other in type(state):
                if other is not target:
                    yield Mutant(where, f"leads to {other.name}")
    for module, name, _ in RULES:
        yield Mutant(_where(module, name), "off")


def _where(module: Any, name: str) -> str:
    return f"rule {module.__name__.rpartition('.')[2]}.{name}"


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """While inside, the bug is there."""
    if mutant.where.startswith("rule "):
        ((module, name, instead),) = [
            (module, name, instead)
            for module, name, instead in RULES
            if mutant.where == _where(module, name)
        ]
        before = getattr(module, name)
        setattr(module, name, instead)
        try:
            yield
        finally:
            setattr(module, name, before)
        return
    name, _, row = mutant.where.partition(" ")
    rows: dict[tuple[Enum, Enum], tuple[Enum, tuple[Enum, ...]]] = TABLES[name].rows  # type: ignore[assignment]
    (key,) = [k for k in rows if f"({k[0].name}, {k[1].name})" == row]
    target, effects = before_row = rows[key]
    if mutant.what.startswith("without "):
        index = int(mutant.what.rpartition("[")[2][:-1])
        rows[key] = target, effects[:index] + effects[index + 1 :]
    else:
        other = type(target)[mutant.what.removeprefix("leads to ")]
        rows[key] = other, effects
    try:
        yield
    finally:
        rows[key] = before_row


def find(mutant: Mutant, num_seeds: int = NUM_SEEDS) -> Finding:
    """The first seed whose walk notices the bug, and what it says."""
    check.level = 1
    faults = faults_of(["all"])
    with planted(mutant):
        for seed in range(num_seeds // 10):
            report = calm_walk(seed, 2 + seed % 2, NUM_EVENTS)
            if report.failure:
                return Finding(seed, "calm: " + last_line(report.failure)[:120], num_seeds)
        for seed in range(num_seeds):
            report = walk(Walk(seed, 2 + seed % 2, faults), seed, faults, NUM_EVENTS)
            if report.failure:
                return Finding(seed, last_line(report.failure)[:120], num_seeds)
    return Finding(None, "", num_seeds)


def main() -> int:
    """Try them; prints what nothing notices. Exit status 1: some without a reason."""
    parser = ArgumentParser(prog="tests.mutation.protocol")
    parser.add_argument("names", nargs="*", help="what the bugs' names begin with; none: all")
    parser.add_argument("--processes", type=int, default=cpu_count())
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS)
    options = parser.parse_args()
    names = tuple(options.names)
    chosen = [mutant for mutant in mutants() if not names or str(mutant).startswith(names)]
    results = Results(KEPT, digest())
    unknown = [mutant for mutant in chosen if results.of(str(mutant), options.seeds) is None]
    with Pool(options.processes) as pool:
        tries = pool.imap_unordered(partial(_try, num_seeds=options.seeds), unknown)
        for mutant, finding in tries:
            results.keep(str(mutant), finding)
            print(mutant, "->", finding.says or "nothing", flush=True)
    return _sum_up(chosen, results, options.seeds)


def _try(mutant: Mutant, num_seeds: int) -> tuple[Mutant, Finding]:
    return mutant, find(mutant, num_seeds)


def _sum_up(chosen: list[Mutant], results: Results, num_seeds: int) -> int:
    known = harmless()
    found = [m for m in chosen if (f := results.of(str(m), num_seeds)) and f.seed is not None]
    missed = [str(m) for m in chosen if m not in found]
    for name in missed:
        print(name, "->", known.get(name, "NOT FOUND"))
    num_harmless = sum(name in known for name in missed)
    print(
        f"{len(chosen)} tried: {len(found)} found, {num_harmless} not found and harmless, "
        f"{len(missed) - num_harmless} not found"
    )
    return int(num_harmless < len(missed))


def harmless() -> dict[str, str]:
    """Bugs that change nothing that is promised, and why."""
    found: dict[str, str] = json.loads((Path(__file__).parent / "harmless.json").read_text())
    return found


if __name__ == "__main__":
    raise SystemExit(main())
