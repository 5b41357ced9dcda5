"""Scripts that planted bugs fail, for tests/sim/corpus: a guard that is lost again is seen at once.

`python -m tests.mutation.corpus NAME ...` walks with each bug whose name begins so until some walk
notices it, shortens that walk, and saves it. A script that fails by luck alone isn't worth keeping:
the same actions have to fail with most other seeds too.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from kvdist import check
from kvdist.sim.faults import faults_of
from kvdist.sim.run import Report, play, walk
from kvdist.sim.saved import Saved, save
from kvdist.sim.script import Script, Walk
from kvdist.sim.shrink import last_line, shrink
from tests.mutation.protocol import Mutant, harmless, mutants, planted

CORPUS: Final = Path(__file__).resolve().parent.parent / "sim/corpus"
#: Seeds that a script is played with; it fails with at least so many.
NUM_SEEDS: Final = 8
ENOUGH: Final = 4
#: Walks that are tried, and walks that are shortened.
NUM_WALKS: Final = 60
NUM_SHORTENED: Final = 2


def seeds_that_fail(script: Script) -> int:
    """Of the script's own seed and those after it."""
    return sum(
        bool(play(replace(script, seed=script.seed + more)).failure) for more in range(NUM_SEEDS)
    )


def what_it_shows(failure: str) -> str:
    """The last line; of an assertion without words, which one."""
    last = last_line(failure)
    if last == "AssertionError":
        return next(line.strip() for line in failure.splitlines() if "assert " in line)
    return last


def script_for(mutant: Mutant) -> Report | None:
    """The script that fails with the most seeds, of a few; None: none fails with enough."""
    faults = faults_of(["all"])
    best, most, shortened = None, ENOUGH - 1, 0
    with planted(mutant):
        for seed in range(NUM_WALKS):
            report = walk(Walk(seed, 2, faults), seed, faults, 600)
            if not report.failure:
                continue
            shortest = shrink(report)
            shortened += 1
            if (count := seeds_that_fail(shortest.script)) > most:
                best, most = shortest, count
            if most == NUM_SEEDS or shortened == NUM_SHORTENED:
                break
    return best


def main() -> None:
    """See the module."""
    check.level = 1
    wanted = [m for m in mutants() if str(m).startswith(tuple(sys.argv[1:]))]
    for mutant in [m for m in wanted if str(m) not in harmless()]:
        report = script_for(mutant)
        if report is not None:
            name = re.sub(r"\W+", "_", str(mutant)).strip("_").lower()
            shows = what_it_shows(report.failure)
            save(Saved(report.script, shows, str(mutant)), CORPUS / f"{name}.json")
            print(mutant, len(report.script.actions), shows[:120], flush=True)
        else:
            print(mutant, "-> no script", flush=True)


if __name__ == "__main__":
    main()
