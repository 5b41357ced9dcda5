"""What was measured of the transports, the goals, and how both look in a table.

Owns:   the goals and the columns.
Knows nothing of: processes, screens, how anything is measured.
Units:  GB/s (10^9 bytes), seconds.

A share is our speed over the limit's, both at their best: what else the machine does takes from all
of them, but not equally, and least from the best. The limit is the smaller of the tool's figure at
that message size and of copying the same blocks within one process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from benchmarks.patterns import PATTERNS

#: Share of the limit that a transport's best verb has to reach.
GOALS: Final = {"shm": 0.8, "tcp": 0.85, "ucx": 0.9, "ucx-tcp": 0.9}

SPEED_HEADINGS: Final = (
    "transport",
    "blocks",
    "verb",
    "GB/s",
    "copy",
    "tool",
    "share",
    "of medians",
    "goal",
    "reached",
    "NIXL",
    "faster",
)
COST_HEADINGS: Final = (
    "transport",
    "blocks",
    "verb",
    "CPU s/GB receiver",
    "CPU s/GB sender",
    "blocked ms receiver",
    "blocked ms sender",
    "GB/s, receiver computes",
    "GB/s, sender computes",
)
TRIP_HEADINGS: Final = ("transport", "bytes", "median µs", "p99 µs", "least", "median µs", "p99 µs")


@dataclass(slots=True)
class Move:
    """One verb of one transport on one pattern; lists have a figure for each repeat."""

    transport: str
    pattern: str
    verb: str
    num_bytes: int
    speeds: list[float] = field(default_factory=list)
    copies: list[float] = field(default_factory=list)
    #: By tool.
    tools: dict[str, list[float]] = field(default_factory=dict)
    nixl: list[float] = field(default_factory=list)
    #: CPU seconds per GB, by side.
    cpu: dict[str, list[float]] = field(default_factory=dict)
    #: Longest that the loop came too late, by side; the same while nothing moved.
    late: dict[str, list[float]] = field(default_factory=dict)
    idle_late: dict[str, list[float]] = field(default_factory=dict)
    #: Speeds while the main thread computes, by the side where it does.
    computing: dict[str, list[float]] = field(default_factory=dict)
    #: Another verb of the same transport is faster here.
    outrun: bool = False

    @property
    def tool(self) -> list[float]:
        """Figures of the better tool."""
        return max(self.tools.values(), key=lambda found: max(found, default=0), default=[])

    def share(self, *, of_medians: bool = False) -> float | None:
        """Of the limit."""
        over = median if of_medians else max
        limits = [over(figures) for figures in (self.copies, self.tool) if figures]
        return over(self.speeds) / min(limits) if limits and self.speeds else None

    @property
    def goal(self) -> float | None:
        """Only for the best verb, and not for what tests move."""
        if self.outrun or self.pattern not in PATTERNS:
            return None
        return GOALS.get(self.transport)

    @property
    def reached(self) -> bool | None:
        """None where there is nothing to reach."""
        share = self.share()
        return None if self.goal is None or share is None else share >= self.goal

    @property
    def beats_nixl(self) -> bool | None:
        """None where NIXL wasn't asked, or another verb is the best."""
        return None if self.outrun or not self.nixl else max(self.speeds) > max(self.nixl)

    def blocked(self, side: str) -> float:
        """Seconds beyond an idle loop's, by medians: each of them is the longest of its repeat."""
        late, idle = self.late.get(side), self.idle_late.get(side)
        return max(0.0, median(late) - median(idle)) if late and idle else 0.0

    def as_json(self) -> dict[str, Any]:
        """All figures, and what follows from them."""
        return {
            "transport": self.transport,
            "pattern": self.pattern,
            "verb": self.verb,
            "GB/s": self.speeds,
            "copy GB/s": self.copies,
            "tools GB/s": self.tools,
            "nixl GB/s": self.nixl,
            "share": self.share(),
            "share of medians": self.share(of_medians=True),
            "goal": self.goal,
            "reached": self.reached,
            "faster than nixl": self.beats_nixl,
            "cpu s/GB": self.cpu,
            "loop late s": self.late,
            "idle loop late s": self.idle_late,
            "computing GB/s": self.computing,
        }

    def as_speed(self) -> list[str]:
        """As `SPEED_HEADINGS` has it."""
        share, medians = self.share(), self.share(of_medians=True)
        return [
            *self._name(),
            _spread(self.speeds),
            _spread(self.copies),
            _spread(self.tool),
            f"{share:.2f}" if share else "",
            f"{medians:.2f}" if medians else "",
            f"{self.goal:g}" if self.goal else "",
            _YES_NO[self.reached],
            _spread(self.nixl),
            _YES_NO[self.beats_nixl],
        ]

    def as_cost(self) -> list[str]:
        """As `COST_HEADINGS` has it."""
        return [
            *self._name(),
            *(f"{median(self.cpu[side]):.2f}" for side in SIDES),
            *(f"{self.blocked(side) * 1e3:.1f}" for side in SIDES),
            *(_spread(self.computing.get(side, [])) for side in SIDES),
        ]

    def _name(self) -> list[str]:
        return [self.transport, self.pattern, self.verb]


@dataclass(slots=True)
class Trips:
    """Round trips of one transport at one size, in seconds."""

    transport: str
    num_bytes: int
    ours: list[float]
    #: The least there can be: sockets, or what UCX's own test says (medians only).
    least: list[float]
    least_by: str

    def as_json(self) -> dict[str, Any]:
        """Without the thousands of single trips."""
        return {
            "transport": self.transport,
            "bytes": self.num_bytes,
            "median s": median(self.ours),
            "p99 s": p99(self.ours),
            "least by": self.least_by,
            "least median s": median(self.least) if self.least else None,
            "least p99 s": p99(self.least) if len(self.least) > 1 else None,
        }

    def as_cells(self) -> list[str]:
        """As `TRIP_HEADINGS` has it."""
        least = [f"{median(self.least) * 1e6:.1f}"] if self.least else [""]
        least += [f"{p99(self.least) * 1e6:.1f}"] if len(self.least) > 1 else [""]
        ours = [f"{median(self.ours) * 1e6:.0f}", f"{p99(self.ours) * 1e6:.0f}"]
        return [self.transport, str(self.num_bytes), *ours, self.least_by, *least]


SIDES: Final = ("receiver", "sender")
_YES_NO: Final[Mapping[bool | None, str]] = {True: "yes", False: "NO", None: ""}


def mark_best(moves: Sequence[Move]) -> None:
    """Of each transport and pattern, only the fastest verb has a goal."""
    best: dict[tuple[str, str], Move] = {}
    for move in moves:
        place = move.transport, move.pattern
        if place not in best or max(move.speeds) > max(best[place].speeds):
            best[place] = move
    for move in moves:
        move.outrun = best[move.transport, move.pattern] is not move


def p99(values: Sequence[float]) -> float:
    """The smallest value that 99 of 100 don't exceed.

    >>> p99([float(n) for n in range(1, 201)])
    198.0
    """
    return sorted(values)[-(-len(values) * 99 // 100) - 1]


def _spread(speeds: Sequence[float]) -> str:
    """Best (median)."""
    return f"{max(speeds):.2f} ({median(speeds):.2f})" if speeds else ""
