"""What engines are asked for, and what they answer.

Owns:   the sizes.
Knows nothing of: engines, goals.
Units:  tokens; seconds.

A work is some waves, one after the other; the requests of a wave arrive together. Prompts are
noise, the same for each engine and new in each round, so that no cache knows them but where that is
meant.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol, TypeAlias

from benchmarks.prompts import Prompt, stretch


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: greedy, and nothing ends it early."""

    prompt: Prompt
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Its tokens, and when each of them was there, since the wave began."""

    tokens: Sequence[int]
    times: Sequence[float]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of kvdist's worker, by the same clock: when, how long the model took, how much."""

    begin: float
    model: float
    end: float
    sequences: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one work, wave by wave."""

    waves: Sequence[Sequence[Answer]]
    #: Seconds of CPU time, of all its processes and threads.
    cpu: float
    #: Of kvdist alone.
    steps: Sequence[Step] = ()

    def as_json(self) -> dict[str, Any]:
        """What goes from one process to another."""
        return asdict(self)

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "Outcome":
        """The other way."""
        waves = [[Answer(**answer) for answer in wave] for wave in told["waves"]]
        return cls(waves, told["cpu"], [Step(**step) for step in told["steps"]])


class Engine(Protocol):
    """One model, loaded."""

    def describe(self) -> dict[str, str]:
        """Name and version."""
        ...

    def serve(self, wave: Sequence[Ask]) -> Sequence[Answer]:
        """All of them, begun together; returns when the last has ended."""
        ...

    def cpu_s(self) -> float:
        """CPU time of all its processes and threads so far."""
        ...

    def take_steps(self) -> Sequence[Step]:
        """What its worker did since the last call, if it can tell."""
        ...

    def close(self) -> None:
        """Nothing of it is left."""


Waves: TypeAlias = Sequence[Sequence[Ask]]
#: Told the first of the numbers of prompts that are the round's own.
Work: TypeAlias = Callable[[int], Waves]


def _alike(num: int, prompt: int, tokens: int) -> Work:
    return lambda stream: [
        [Ask(stretch(stream + i, 0, prompt), tokens) for i in range(num)],
    ]


def _mixed(num: int, longest: int, tokens: int) -> Work:
    """Lengths of prompts and answers have nothing to do with each other."""
    return lambda stream: [
        [
            Ask(
                stretch(stream + i, 0, longest * (1 + i * 7 % num) // num),
                tokens * (1 + i * 5 % num) // num,
            )
            for i in range(num)
        ]
    ]


def _prefix(prompt: int) -> Work:
    """A miss, then another prompt that begins with nine tenths of the first."""
    shared = prompt * 9 // 10

    def waves(stream: int) -> Waves:
        hit = stretch(stream, 0, shared) + stretch(stream + 1, shared, prompt)
        return [[Ask(stretch(stream, 0, prompt), 1)], [Ask(hit, 1)]]

    return waves


FULL: Final[Mapping[str, Work]] = {
    "batch 1": _alike(1, 128, 32),
    "batch 4": _alike(4, 128, 32),
    "batch 8": _alike(8, 128, 32),
    "batch 16": _alike(16, 128, 32),
    "context 512": _alike(4, 512, 32),
    "context 1024": _alike(4, 1024, 32),
    "mixed": _mixed(16, 512, 64),
    "prefix": _prefix(1024),
}

#: So little that times mean nothing.
SMALL: Final[Mapping[str, Work]] = {
    "batch 4": _alike(4, 16, 6),
    "mixed": _mixed(5, 40, 10),
    "prefix": _prefix(320),
}
#: Prompts that a round may have.
STREAMS: Final = 64
