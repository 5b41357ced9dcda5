"""What clients' times come to: percentiles, goodput, and what the goals say of them.

Owns:   the definitions.
Knows nothing of: processes, screens.
Units:  seconds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import median, quantiles
from typing import Any, Final

from benchmarks.pair_load import Heard

#: Running decodes may be slower by this while long prompts are computed elsewhere.
ISOLATION_GOAL: Final = 1.1


def percentile(values: Sequence[float], share: int) -> float:
    """1 .. 99; between two values, in proportion. Not a number if there are none."""
    if len(values) < 2:
        return values[0] if values else float("nan")
    return quantiles(values, n=100, method="inclusive")[share - 1]


def gaps(times: Sequence[float]) -> list[float]:
    """From each token to the next."""
    return [later - earlier for earlier, later in pairwise(times)]


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request may take at most, to count as good."""

    #: To its first token.
    ttft_s: float
    #: To each later one, on average.
    tpot_s: float

    def is_met(self, heard: Heard) -> bool:
        """An answer that failed never meets it."""
        if heard.error or heard.first_s > self.ttft_s:
            return False
        times = heard.times
        return len(times) < 2 or (times[-1] - times[0]) / (len(times) - 1) <= self.tpot_s


@dataclass(frozen=True, slots=True)
class Served:
    """One load, answered by one set-up."""

    setup: str
    rate: float
    heard: Sequence[Heard]
    slo: Slo

    @property
    def seconds(self) -> float:
        """From when it began to its last token."""
        return max((heard.times[-1] for heard in self.heard if heard.times), default=0.0)

    @property
    def goodput(self) -> float:
        """Requests a second that met the objectives."""
        return sum(map(self.slo.is_met, self.heard)) / self.seconds if self.seconds else 0.0

    @property
    def pulled(self) -> float:
        """The share of prompt tokens that came from another node."""
        num_prompt = sum(heard.num_prompt for heard in self.heard)
        return sum(heard.num_remote for heard in self.heard) / num_prompt if num_prompt else 0.0

    @property
    def firsts(self) -> list[float]:
        """Times to first tokens, of those that were answered."""
        return [heard.first_s for heard in self.heard if not heard.error]

    @property
    def gaps(self) -> list[float]:
        """Times between tokens, of those that were answered."""
        return [gap for heard in self.heard if not heard.error for gap in gaps(heard.times)]

    def as_cells(self) -> tuple[str, ...]:
        """As `SERVED_HEADINGS` has it."""
        return (
            self.setup,
            f"{self.rate:g}",
            str(len(self.heard)),
            str(sum(bool(heard.error) for heard in self.heard)),
            *(ms(percentile(self.firsts, share)) for share in (50, 99)),
            *(ms(percentile(self.gaps, share)) for share in (50, 99)),
            f"{sum(heard.num_tokens for heard in self.heard) / (self.seconds or 1):.1f}",
            f"{self.goodput:.2f}",
            f"{self.pulled:.0%}",
        )

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        told = {"setup": self.setup, "rate": self.rate, "goodput": self.goodput}
        return told | {"slo": asdict(self.slo), "heard": [heard.as_json() for heard in self.heard]}


SERVED_HEADINGS: Final = (
    *("set-up", "requests/s", "requests", "failed", "TTFT p50, ms", "p99"),
    *("ITL p50, ms", "p99", "tokens/s", "goodput, requests/s", "pulled"),
)


@dataclass(slots=True)
class Isolation:
    """Gaps between the tokens of running decodes, with and without prompts that arrive."""

    setup: str
    without: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    #: Of the prompts.
    firsts: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Of the 99th percentiles."""
        return percentile(self.beside, 99) / percentile(self.without, 99)

    def as_cells(self) -> tuple[str, ...]:
        """As `ISOLATION_HEADINGS` has it."""
        return (
            self.setup,
            *(ms(percentile(self.without, share)) for share in (50, 99)),
            *(ms(percentile(self.beside, share)) for share in (50, 99)),
            f"{self.ratio:.2f}",
            ms(percentile(self.firsts, 50)),
            str(len(self.firsts)),
        )

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self) | {"ratio": self.ratio}


ISOLATION_HEADINGS: Final = (
    *("set-up", "ITL p50, ms", "p99", "beside prompts: p50", "p99", "p99 / p99"),
    *("TTFT of prompts p50, ms", "prompts"),
)


@dataclass(slots=True)
class FirstToken:
    """What a pair that reads along adds to the time to the first token, and what it may."""

    transport: str
    prompt_tokens: int
    chunk_tokens: int
    single: list[float] = field(default_factory=list)
    pair: list[float] = field(default_factory=list)
    #: Moving the last chunk's bytes by themselves; a round trip; a step that decodes.
    last_chunk: list[float] = field(default_factory=list)
    trips: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)

    @property
    def added_s(self) -> float:
        """Median of what each round added."""
        return median(two - one for one, two in zip(self.single, self.pair, strict=True))

    @property
    def bound_s(self) -> float:
        """The last chunk's bytes, two round trips, one decode step; medians."""
        return median(self.last_chunk) + 2 * median(self.trips) + median(self.steps)

    def as_cells(self) -> tuple[str, ...]:
        """As `FIRST_HEADINGS` has it."""
        return (
            self.transport,
            f"{self.prompt_tokens} by {self.chunk_tokens}",
            ms(median(self.single)),
            ms(median(self.pair)),
            ms(self.added_s),
            *(ms(median(part)) for part in (self.last_chunk, self.trips, self.steps)),
            ms(self.bound_s),
            "yes" if self.added_s <= self.bound_s else "NO",
        )

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self) | {"added": self.added_s, "bound": self.bound_s}


FIRST_HEADINGS: Final = (
    *("over", "prompt, tokens", "single node, ms", "pair, ms", "added, ms"),
    *("last chunk, ms", "round trip, ms", "decode step, ms", "bound, ms", "reached"),
)


def ms(seconds: float) -> str:
    """For tables."""
    return f"{seconds * 1e3:.{0 if seconds >= 0.1 else 1}f}"


def tail(values: Sequence[float]) -> Iterator[tuple[float, float]]:
    """(value, share of values above it), upwards: what is drawn of percentiles."""
    ordered = sorted(values)
    for number, value in enumerate(ordered):
        yield value, 1 - number / len(ordered)
