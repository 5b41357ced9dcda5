"""A failing script, shortened as long as it fails in the same way.

Owns:   nothing.
Knows nothing of: what the actions are.
Source: delta debugging (Zeller's ddmin), on the list of actions; then kinds of faults are left out.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Final

from kvdist.sim.faults import Faults
from kvdist.sim.run import Report, play

#: Runs that may be spent on it.
MOST_RUNS: Final = 600


def last_line(failure: str) -> str:
    """What a failure comes down to."""
    return failure.strip().splitlines()[-1]


def kind_of(failure: str) -> str:
    """What kind of failure it is: the words, without names and numbers."""
    words = (
        word for word in last_line(failure).split() if not any(letter.isdigit() for letter in word)
    )
    return " ".join(words)[:60]


def shrink(report: Report, on_run: Callable[[int], None] = lambda _: None) -> Report:
    """The shortest script found that fails like `report`, and what came of it.

    on_run: called before each run with the number of actions that it has.
    """
    best, wanted, runs = play(report.script), kind_of(report.failure), 0
    if kind_of(best.failure or "none") != wanted:
        return report  # only the walk itself ends so: its end cut something short
    size = len(best.script.actions) // 2
    while size and runs < MOST_RUNS:
        first, removed = 0, False
        while first < len(best.script.actions) and runs < MOST_RUNS:
            shorter = best.script.without(first, first + size)
            on_run(len(shorter.actions))
            runs += 1
            found = play(shorter)
            if found.failure and kind_of(found.failure) == wanted:
                best, removed = found, True
            else:
                first += size
        if not removed or size > 1:
            size //= 2
    return _with_fewer_faults(best, wanted)


def _with_fewer_faults(best: Report, wanted: str) -> Report:
    for field in fields(Faults):
        script = best.script
        if not getattr(script.faults, field.name):
            continue
        found = play(replace(script, faults=replace(script.faults, **{field.name: 0.0})))
        if found.failure and kind_of(found.failure) == wanted:
            best = found
    return best
