"""What goes wrong between a link and its wire, as data: by script, or by seed. No I/O.

Owns:   the kinds of faults, and plans of them.
Knows nothing of: how a fault is made to happen (`faulty`), any one transport.
Units:  seconds, bytes. Frames are counted from 0 in each direction of a wire; the handshake's are
        the first two.

Legal faults (`LEGAL`) are what networks do: a link must keep all its promises under them. The
others break a wire's contract, which must end in an error at the side that sees it, and a closed
link.
"""

import random
from collections.abc import Mapping
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

    def __str__(self) -> str:
        return "\n".join(map(str, self.faults)) or "no faults"


def random_plan(
    seed: int, rates: Mapping[Kind, float], *, frames: int = 200, first: int = 2, wires: int = 1
) -> Plan:
    """Each frame of each wire, from the `first`, meets each kind at its rate, and so does each
    read; the same seed gives the same plan.

    >>> print(random_plan(1, {Kind.DROP: 0.01}, frames=100))
    drop: at=15, wire=0
    drop: at=93, wire=0
    drop: direction=in, at=83, wire=0
    """
    chance = random.Random(seed)
    directions: tuple[Direction, ...] = ("out", "in", "read")
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
        for wire in range(wires)
        for direction in directions
        for at in range(0 if direction == "read" else first, frames)
        for kind, rate in sorted(rates.items(), key=lambda item: item[0].name)
        if (direction != "read" or kind in LIES) and chance.random() < rate
    ]
    return Plan(tuple(found))


_PARTS: Final[tuple[Part, ...]] = ("head", "meta", "body")
_WITH_OFFSET: Final = frozenset({Kind.CORRUPT, Kind.CUT_INSIDE, Kind.FAIL_AFTER})


def _seconds(kind: Kind, chance: random.Random) -> float:
    if kind not in (Kind.DELAY, Kind.STALL):
        return 0.0
    return round(chance.expovariate(1000.0 if kind is Kind.DELAY else 10.0), 6)
