"""Plants bugs in the transfer protocol, and lets the simulator look for them.

A bug is a row of a table that lacks one effect or leads elsewhere, or a rule that always says yes
(or no). `make protocol` tries them all; `python -m tests.mutation.protocol serve grant` those whose
names begin so (a name in full: that one). What is known of this very source isn't tried again.
"""

import json
import signal
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from multiprocessing import Pool, cpu_count
from multiprocessing.pool import Pool as PoolOf
from pathlib import Path
from typing import Final, NamedTuple

from kvdist import check
from kvdist.sim.cluster import Violation
from kvdist.sim.coverage import TABLES, counted_rows
from kvdist.sim.faults import faults_of
from kvdist.sim.run import Report, calm_walk, walk
from kvdist.sim.script import Walk
from kvdist.sim.shrink import last_line
from tests.mutation.guards import GUARDS, watched
from tests.mutation.results import KEPT, Finding, Results, digest

BY_NAME: Final = {table.name: table for table in TABLES}
#: Seeds to try, few at first: what nothing notices is tried again with more; and events a walk.
#: A walk that never comes to a bug's place is as it is without it, and isn't walked.
STAGES: Final = (12, 40, 200)
NUM_SEEDS: Final = STAGES[-1]
NUM_EVENTS: Final = 1200
#: What goes wrong: at first all at once; then, in turn, less, so that more pulls come to their end.
FIRST: Final = 12
MIXES: Final = (
    ["all"], ["links", "reads", "abort", "lies"], ["post", "abort", "steps", "leases"],
    ["reads", "leases", "lies"],
)  # fmt: skip
#: Seconds of this process that no walk takes: with some bugs an event has no end.
MOST_S: Final = 5.0


class Seed(NamedTuple):
    """Of one walk."""

    number: int
    is_calm: bool


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def mutants() -> Iterator[Mutant]:
    """All of them."""
    for name, table in BY_NAME.items():
        for (state, event), (target, effects) in table.rows.items():
            where = f"{name} ({state.name}, {event.name})"
            for index, effect in enumerate(effects):
                yield Mutant(where, f"without {effect.name} [{index}]")
            for other in type(state):
                if other is not target:
                    yield Mutant(where, f"leads to {other.name}")
    for guard in GUARDS:
        yield Mutant(guard.where, "off")


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """While inside, the bug is there."""
    if mutant.where.startswith("rule "):
        (guard,) = [guard for guard in GUARDS if guard.where == mutant.where]
        before = vars(guard.owner)[guard.name]
        setattr(guard.owner, guard.name, guard.instead)
        try:
            yield
        finally:
            setattr(guard.owner, guard.name, before)
        return
    name, _, row = mutant.where.partition(" ")
    rows: dict[tuple[Enum, Enum], tuple[Enum, tuple[Enum, ...]]] = BY_NAME[name].rows  # type: ignore[assignment]
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


def find(
    mutant: Mutant, num_seeds: int = NUM_SEEDS, seeds: Iterable[Seed] | None = None
) -> Finding:
    """The first seed whose walk notices the bug, and what it says; `seeds`: no others are tried."""
    check.level = 1
    with planted(mutant):
        for seed in all_seeds(0, num_seeds) if seeds is None else seeds:
            with _in_time():
                failure = _walk(seed).failure
            if failure:
                says = "calm: " * seed.is_calm + last_line(failure)[:120]
                return Finding(seed.number, says, num_seeds)
    return Finding(None, "", num_seeds)


def all_seeds(known: int, num_seeds: int) -> list[Seed]:
    """Those behind the first `known` ones; a tenth of the walks are calm."""
    calm = [Seed(number, True) for number in range(known // 10, num_seeds // 10)]
    return calm + [Seed(number, False) for number in range(known, num_seeds)]


def _walk(seed: Seed) -> Report:
    number, num_nodes = seed.number, 2 + seed.number % 2
    if seed.is_calm:
        return calm_walk(number, num_nodes, NUM_EVENTS)
    faults = faults_of(MIXES[0 if number < FIRST else number % len(MIXES)])
    return walk(Walk(number, num_nodes, faults), number, faults, NUM_EVENTS)


@contextmanager
def _in_time() -> Iterator[None]:
    """A walk that takes too long fails, wherever it is."""
    before = signal.signal(signal.SIGVTALRM, _out_of_time)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _out_of_time(*_: object) -> None:
    raise Violation("an event has no end")


def places(seed: Seed) -> set[str]:
    """Where a bug would make a difference to that walk: the rows that it takes, and guards."""
    check.level = 0
    with counted_rows() as taken, watched() as seen:
        _walk(seed)
    return seen | {f"{table} ({state}, {event})" for (table, state, event), n in taken.items() if n}


def main() -> int:
    """Try them; prints what nothing notices. Exit status 1: some without a reason."""
    parser = ArgumentParser(prog="tests.mutation.protocol")
    parser.add_argument("names", nargs="*", help="what the bugs' names begin with; none: all")
    parser.add_argument("--processes", type=int, default=cpu_count())
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS)
    options = parser.parse_args()
    names = tuple(options.names)
    chosen = [mutant for mutant in mutants() if not names or str(mutant).startswith(names)]
    results, known = Results(KEPT, digest()), 0
    with Pool(options.processes) as pool:
        for num_seeds in sorted({*STAGES, options.seeds}):
            if num_seeds <= options.seeds:
                _try_all(chosen, results, known, num_seeds, pool)
                known = num_seeds
    return _sum_up(chosen, results, options.seeds)


def _try_all(
    chosen: list[Mutant], results: Results, known: int, num_seeds: int, pool: PoolOf
) -> None:
    """The seeds from `known` on, each with the bugs that make a difference to its walk."""
    unknown = [m for m in chosen if results.of(str(m), num_seeds) is None]
    if not unknown:
        return
    seeds = all_seeds(known, num_seeds)
    taken = list(zip(seeds, pool.map(places, seeds, 1), strict=True))
    tries = [(m, num_seeds, [s for s, places in taken if m.where in places]) for m in unknown]
    print(num_seeds, "seeds", sum(not t[2] for t in tries), "make no difference", flush=True)
    for mutant, finding in pool.imap_unordered(_try, tries):
        results.keep(str(mutant), finding)
        print(mutant, "->", finding.says or f"nothing in {num_seeds} seeds", flush=True)


def _try(what: tuple[Mutant, int, list[Seed]]) -> tuple[Mutant, Finding]:
    return what[0], find(*what)


def _sum_up(chosen: list[Mutant], results: Results, num_seeds: int) -> int:
    known = harmless()
    found = [f for m in chosen if (f := results.of(str(m), num_seeds)) and f.seed is not None]
    missed = [str(m) for m in chosen if not (f := results.of(str(m), num_seeds)) or f.seed is None]
    for name in missed:
        print(name, "->", known.get(name, "NOT FOUND"))
    num_harmless = sum(name in known for name in missed)
    print(
        f"{len(chosen)} tried: {len(found)} found, {num_harmless} not found and harmless, "
        f"{len(missed) - num_harmless} not found"
    )
    for stage in STAGES:
        print(f"found within {stage} seeds: {sum((f.seed or 0) < stage for f in found)}")
    return int(num_harmless < len(missed))


def harmless() -> dict[str, str]:
    """Bugs that change nothing that is promised, and why."""
    found: dict[str, str] = json.loads((Path(__file__).parent / "harmless.json").read_text())
    return found


if __name__ == "__main__":
    raise SystemExit(main())
