"""What goes wrong between a link and its wire, as data: by script, or by seed. No I/O.

Owns:   the kinds of faults, and plans of them.
Knows nothing of: how a fault is made to happen (`faulty`), any one transport.
Units:  seconds, bytes. Frames are counted from 0 in each direction of a wire; the handshake's are
        the first two.

Legal faults (`LEGAL`) are what networks do: a link must keep all its promises under them. The
others break a wire's contract, which must end in an error at the side that sees it, and a closed
link.
"""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from transports.errors import LocalMisuse
from transports.frame import Type


class Kind(StrEnum):
    """What goes wrong."""

    DELAY = "delay"  #: a frame comes `seconds` later, and so does all behind it
    STALL = "stall"  #: the same, meant for long times; `math.inf` is for ever
    CUT_BEFORE = "cut before"  #: the wire breaks before the frame, with what is under way
    CUT_INSIDE = "cut inside"  #: after `offset` bytes of the frame, modulo its size, which arrive
    CUT_AFTER = "cut after"  #: after the frame, as before one
    FAIL_AFTER = "fail after"  #: after `offset` bytes in this direction
    DROP = "drop"
    DUPLICATE = "duplicate"
    REORDER = "reorder"  #: the frame changes places with the next
    CORRUPT = "corrupt"  #: byte `offset` of `part` is changed by `mask`, or of what is there
    # To complete is, of a frame, that `send` or `recv_body` returns; of a read, that `wait` does.
    EARLY = "completes before its data"  #: which moves when the next frame does
    NEVER = "never completes"  #: but its data moves; a read isn't quiet until the link has ended
    AFTER_CANCEL = "completes after it was cancelled"  #: what is received: until it is quiet


#: How a completion can lie: all that can go wrong with a one-sided read.
LIES: Final = frozenset({Kind.EARLY, Kind.NEVER, Kind.AFTER_CANCEL})
#: They leave a frame as it is.
AROUND: Final = frozenset({Kind.DELAY, Kind.STALL, Kind.CUT_BEFORE, Kind.CUT_AFTER})
LEGAL: Final = (AROUND | LIES | {Kind.CUT_INSIDE, Kind.FAIL_AFTER}) - {Kind.EARLY}
#: For `Fault.times`: from `at` to the end.
ALWAYS: Final = 1 << 62

Direction: TypeAlias = Literal["out", "in", "read"]
Part: TypeAlias = Literal["head", "meta", "body"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong.

    >>> print(Fault(kind=Kind.DELAY, at=3, seconds=0.5))
    delay: at=3, seconds=0.5
    """

    kind: Kind
    #: Of frames, or "read": of the one-sided reads that this side makes.
    direction: Direction = "out"
    #: The how manieth frame of type `of`, or of all; or the how manieth read.
    at: int = 0
    of: Type | None = None
    #: So many of them, one after the other.
    times: int = 1
    #: The how manieth wire of the transport; None: each.
    wire: int | None = None
    seconds: float = 0.0
    offset: int = 0
    part: Part = "head"
    mask: int = 0xFF

    def __post_init__(self) -> None:
        if self.direction == "read" and self.kind not in LIES:
            raise LocalMisuse(f"{self.kind} is no fault of reads")

    def __str__(self) -> str:
        said = (
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if field.name != "kind" and getattr(self, field.name) != field.default
        )
        return f"{self.kind}: {', '.join(said)}".removesuffix(": ")


@dataclass(frozen=True, slots=True)
class Plan:
    """All that goes wrong on the wires of one transport."""

    faults: tuple[Fault, ...] = ()

    def of_wire(self, number: int) -> tuple[Fault, ...]:
        """What goes wrong on one wire of the transport, counted from 0."""
        return tuple(fault for fault in self.faults if fault.wire in (None, number))

    def __str__(self) -> str:
        return "\n".join(map(str, self.faults)) or "no faults"


@dataclass(frozen=True, slots=True)
class RandomPlan:
    """A `random_plan` for each wire, however many there are, made when the wire is."""

    seed: int
    rates: Mapping[Kind, float]
    frames: int = 200
    first: int = 2

    def of_wire(self, number: int) -> tuple[Fault, ...]:
        """See `Plan.of_wire`."""
        plan = random_plan(self.seed, self.rates, frames=self.frames, first=self.first, wire=number)
        return plan.faults


def random_plan(
    seed: int, rates: Mapping[Kind, float], *, frames: int = 200, first: int = 2, wire: int = 0
) -> Plan:
    """Each frame of a wire, from the `first`, meets each kind at its rate, and so does each
    read; the same seed gives the same plan.

    >>> print(random_plan(1, {Kind.DROP: 0.01}, frames=100))
    drop: direction=in, at=12, wire=0
    drop: direction=in, at=72, wire=0
    drop: direction=in, at=78, wire=0
    """
    chance = random.Random(f"{seed} {wire}")
    directions: tuple[Direction, ...] = ("out", "in", "read")
    kinds = sorted(rates, key=lambda kind: kind.name)
    found = [
        Fault(
            kind=kind,
            direction=direction,
            at=at,
            wire=wire,
            seconds=_seconds(kind, chance),
            offset=chance.randrange(1 << 16) if kind in _WITH_OFFSET else 0,
            part=chance.choice(_PARTS) if kind is Kind.CORRUPT else "head",
            mask=chance.randrange(1, 256) if kind is Kind.CORRUPT else 0xFF,
        )
        for direction in directions
        for kind in kinds
        if direction != "read" or kind in LIES
        for at in _hits(rates[kind], 0 if direction == "read" else first, frames, chance)
    ]
    return Plan(tuple(sorted(found, key=lambda fault: fault.at)))


def _hits(rate: float, first: int, end: int, chance: random.Random) -> Iterator[int]:
    """Which of `range(first, end)` a rate hits; what is drawn is gaps, as most are spared."""
    at = first - 1
    while rate > 0:
        gap = 0 if rate >= 1 else math.log(1.0 - chance.random()) / math.log1p(-rate)
        if at + 1 + gap >= end:
            return
        at += 1 + int(gap)
        yield at


_PARTS: Final[tuple[Part, ...]] = ("head", "meta", "body")
_WITH_OFFSET: Final = frozenset({Kind.CORRUPT, Kind.CUT_INSIDE, Kind.FAIL_AFTER})


def _seconds(kind: Kind, chance: random.Random) -> float:
    if kind not in (Kind.DELAY, Kind.STALL):
        return 0.0
    return round(chance.expovariate(1000.0 if kind is Kind.DELAY else 10.0), 6)
