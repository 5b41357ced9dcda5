"""What the figures mean, which goals they have, and how two libraries compare.

Owns:   the rows of the table.
Knows nothing of: processes, screens, libraries beyond "ours" and "theirs".
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

PROMPT: Final = "µs/prompt"
STEP: Final = "µs/step and request"
RATE: Final = "evictions/s"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one work; `goal` is the ratio theirs/ours that it has to reach."""

    work: str
    figure: str
    label: str
    unit: str
    goal: float | None = None


def _life(work: str) -> tuple[Row, ...]:
    """Rows of the works in which requests are admitted, decode, and go."""
    return (
        Row(work, "lookup", "lookup", PROMPT, 3.0),
        Row(work, "allocate", "allocate (prefill)", PROMPT, 2.5),
        Row(work, "append", "  append", STEP),
        Row(work, "step", "  allocate", STEP),
        Row(work, "decode", "decode step", STEP, 3.0),
        Row(work, "free", "free", PROMPT, 1.5),
    )


ROWS: Final[tuple[Row, ...]] = (
    Row("hash", "create", "create, no hash", PROMPT),
    Row("hash", "sha256", "hash, sha256", PROMPT, 3.0),
    Row("hash", "xxh3_128", "hash, xxh3_128", PROMPT),
    *_life("W1"),
    Row("W2", "evictions", "churn", RATE, 2.0),
    Row("W2", "evictions_whole", "churn, lookup and free too", RATE),
    Row("W2", "lookup", "lookup, all misses", PROMPT),
    Row("W2", "allocate", "allocate, evicting", PROMPT),
    Row("W2", "free", "free", PROMPT),
    *_life("W3"),
    *_life("W3_sparse"),
    Row("pool", "make", "make a manager", "s"),
    Row("pool", "memory", "its memory", "MiB"),
)


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure over all repeats."""

    median: float
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class Result:
    """One row, measured; `theirs` and what follows from it are None without the other library."""

    row: Row
    ours: Spread
    theirs: Spread | None

    @property
    def ratio(self) -> float | None:
        """How many times faster ours is (for memory: smaller), by medians."""
        if self.theirs is None:
            return None
        ours, theirs = self.ours.median, self.theirs.median
        return ours / theirs if self.row.unit == RATE else theirs / ours

    @property
    def reached(self) -> bool | None:
        """True if the ratio is not below the goal; None where there is nothing to compare."""
        if self.ratio is None or self.row.goal is None:
            return None
        return self.ratio >= self.row.goal

    def as_json(self) -> dict[str, Any]:
        """All of it, flat."""
        return asdict(self.row) | {
            "ours": asdict(self.ours),
            "theirs": asdict(self.theirs) if self.theirs else None,
            "ratio": self.ratio,
            "reached": self.reached,
        }

    def as_cells(self) -> list[str]:
        """As `HEADINGS` has it."""
        row = self.row
        return [
            row.work,
            row.label,
            row.unit,
            _spread(self.ours),
            _spread(self.theirs) if self.theirs else "",
            f"{self.ratio:.2f}" if self.ratio else "",
            f"{row.goal:g}" if row.goal else "",
            {True: "yes", False: "NO", None: ""}[self.reached],
        ]


HEADINGS: Final = ("work", "what", "unit", "ours", "theirs", "ratio", "goal", "reached")

#: What each repeat of a work measured, by figure.
Figures = Sequence[Mapping[str, float]]


def results(ours: Mapping[str, Figures], theirs: Mapping[str, Figures]) -> list[Result]:
    """A result for each row of which there are figures of ours; keys are works."""
    return [
        Result(row, mine, _over(theirs.get(row.work, ()), row.figure))
        for row in ROWS
        if (mine := _over(ours.get(row.work, ()), row.figure))
    ]


def _over(repeats: Figures, figure: str) -> Spread | None:
    values = [figures[figure] for figures in repeats if figure in figures]
    return Spread(median(values), min(values), max(values)) if values else None


def _spread(spread: Spread) -> str:
    return f"{_short(spread.median)} ({_short(spread.min)} .. {_short(spread.max)})"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 1_000 else f"{number:.3g}"
