"""What the answers of engines mean, which goals they have, and how engines compare.

Owns:   figures and goals.
Knows nothing of: processes, screens.
Units:  tokens a second; milliseconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Final

from benchmarks.engine_work import Answer, Outcome, Step

#: Engines beside ours; kvdist's tokens a second are to be at least so many of theirs.
GOALS: Final[Mapping[str, float | None]] = {"generate": None, "continuous": 1.0, "vllm": 0.7}
RATE: Final = "tokens/s"
#: CPU time of all processes and threads, for each token that came: other load changes it less.
CPU: Final = "CPU ms/token"
#: First token, and from each to the next.
FIRST: Final = "TTFT ms"
NEXT: Final = "ITL ms"
#: Of a hit, as a share of a miss.
HIT: Final = "TTFT of hit / miss"
#: Of the time from one decode step to the next.
OUTSIDE: Final = "share outside the model"
#: What a figure of kvdist itself may come to.
LIMITS: Final[Mapping[str, float]] = {HIT: 0.2, OUTSIDE: 0.05}
#: From so many sequences a step on `OUTSIDE` has a goal.
_LEAST_BATCH: Final = 4
_DECODES: Final = 3


def figures(outcome: Outcome) -> dict[str, float]:
    """Of one work of one round."""
    first, last = outcome.waves[0], outcome.waves[-1]
    found = {FIRST: _first(first)}
    if len(outcome.waves) > 1:
        return found | {HIT: _first(last) / _first(first)}
    tokens = sum(len(answer.tokens) for answer in first)
    found[RATE] = tokens / max(answer.times[-1] for answer in first)
    found[CPU] = outcome.cpu / tokens * 1e3
    if gaps := list(_gaps(first)):
        found[NEXT] = median(gaps) * 1e3
    if (share := outside(outcome.steps)) is not None:
        found[OUTSIDE] = share
    return found


def _first(wave: Sequence[Answer]) -> float:
    return median(answer.times[0] for answer in wave) * 1e3


def _gaps(wave: Sequence[Answer]) -> Iterator[float]:
    for answer in wave:
        for earlier, later in pairwise(answer.times):
            yield later - earlier


def outside(steps: Sequence[Step]) -> float | None:
    """Of the time from one decode step's beginning to the next's, what the model didn't take.

    None: there are too few of at least `_LEAST_BATCH` sequences.
    """
    spans = [
        (next_one.begin - step.begin, step.model)
        for step, next_one in pairwise(steps)
        if step.sequences == step.tokens == next_one.sequences and step.sequences >= _LEAST_BATCH
    ]
    if len(spans) < _DECODES:
        return None
    return 1 - sum(model for _, model in spans) / sum(span for span, _ in spans)


@dataclass(frozen=True, slots=True)
class Result:
    """One figure of one work: medians over the rounds, and ours beside each other engine's."""

    work: str
    figure: str
    #: By engine.
    medians: Mapping[str, float]
    #: By engine: the median over rounds of ours divided by theirs, in the same round.
    ratios: Mapping[str, float]

    @property
    def missed(self) -> Sequence[str]:
        """Goals that are not reached."""
        ours = self.medians["kvdist"]
        if self.figure in LIMITS:
            limit = LIMITS[self.figure]
            return [f"{ours:.3g} > {limit:g}"] if ours > limit else []
        if self.figure != RATE:
            return []
        return [
            f"{ratio:.2f} of {engine} < {goal:g}"
            for engine, ratio in self.ratios.items()
            if (goal := GOALS[engine]) is not None and ratio < goal
        ]

    @property
    def has_goal(self) -> bool:
        """Whether anything is to be reached."""
        return self.figure in LIMITS or (self.figure == RATE and bool(self.ratios))

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self) | {"missed": list(self.missed)}

    def as_cells(self, engines: Sequence[str]) -> list[str]:
        """As `headings` has it."""
        verdict = ("NO: " + ", ".join(self.missed)) if self.missed else "yes" * self.has_goal
        return [
            self.work,
            self.figure,
            *(_cell(self.medians.get(engine)) for engine in engines),
            *(_cell(self.ratios.get(engine)) for engine in engines[1:]),
            verdict,
        ]


def headings(engines: Sequence[str]) -> list[str]:
    """Ours first."""
    return ["work", "figure", *engines, *(f"/ {engine}" for engine in engines[1:]), "reached"]


#: What each round of a work came to, by engine.
Rounds = Mapping[str, Sequence[Mapping[str, float]]]


def results(works: Mapping[str, Rounds]) -> list[Result]:
    """For each figure that kvdist has."""
    return [
        _result(work, figure, rounds)
        for work, rounds in works.items()
        for figure in rounds["kvdist"][0]
    ]


def _result(work: str, figure: str, rounds: Rounds) -> Result:
    ours = rounds["kvdist"]
    medians = {
        engine: median(values)
        for engine, found in rounds.items()
        if (values := [one[figure] for one in found if figure in one])
    }
    ratios = {
        engine: median(
            mine[figure] / theirs[figure] for mine, theirs in zip(ours, rounds[engine], strict=True)
        )
        for engine in medians
        if engine != "kvdist"
    }
    return Result(work, figure, medians, ratios)


def agreement(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> float:
    """The share of answers that have the same tokens."""
    pairs = [
        mine.tokens == other.tokens
        for one, two in zip(ours, theirs, strict=True)
        for wave, wave_two in zip(one.waves, two.waves, strict=True)
        for mine, other in zip(wave, wave_two, strict=True)
    ]
    return fmean(pairs)


def _cell(number: float | None) -> str:
    return "" if number is None else f"{number:.3g}" if number < 1_000 else f"{number:,.0f}"
