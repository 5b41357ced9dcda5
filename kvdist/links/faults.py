"""Faults on purpose, on the links that bytes come by: by seed, so that they come again; and
processes that end or stand still at a mark.

Owns:   how they are written on a command line.
Knows nothing of: how they are made to happen (`transports.faulty`, `marks`).

    7:never=0.05,cut-inside=0.01      seed 7; each frame, and each one-sided read, at these rates
    0:kill@landed=2                   no chance in it: the process that passes it dies there
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

import structlog

from kvdist.errors import ConfigError
from kvdist.links.marks import AtMark
from transports.api import Transport
from transports.base import WireTransport
from transports.faults import Kind, RandomPlan
from transports.faulty import FaultyTransport

_log = structlog.get_logger(__name__)

KINDS: Final = {kind.name.lower().replace("_", "-"): kind for kind in Kind}
#: The handshake and the introduction go well; a wire lives for so many frames, at most.
_FIRST: Final = 4
_FRAMES: Final = 2000
_LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Faults:
    """Rates by kind, and what happens at marks."""

    seed: int = 0
    rates: dict[Kind, float] = field(default_factory=dict)
    at_marks: tuple[AtMark, ...] = ()


def read_faults(text: str) -> Faults:
    """Raises: ConfigError.

    >>> read_faults("7:never=0.5").rates
    {<Kind.NEVER: 'never completes'>: 0.5}
    """
    seed, _, told = text.partition(":")
    at_marks = tuple(AtMark.read(one) for one in told.split(",") if "@" in one)
    rates = {}
    try:
        for one in told.split(","):
            if "@" not in one:
                name, _, rate = one.partition("=")
                rates[KINDS[name]] = float(rate)
        if not all(0 <= rate <= 1 for rate in rates.values()):
            raise ValueError(told)
        return Faults(int(seed), rates, at_marks)
    except (KeyError, ValueError):
        raise ConfigError(
            f"faults are SEED:KIND=RATE,... with rates from 0 to 1, or SEED:kill@MARK=N, and "
            f"{text!r} aren't; kinds: {', '.join(KINDS)}"
        ) from None


def with_faults(transport: Transport, faults: Faults) -> FaultyTransport:
    """The same transport, but that things go wrong."""
    assert isinstance(transport, WireTransport)
    plan = RandomPlan(faults.seed, faults.rates, frames=_FRAMES, first=_FIRST)
    return FaultyTransport(transport, plan)


async def tell(transport: FaultyTransport) -> None:
    """Log what happens, until cancelled."""
    told = 0
    while True:
        for wire, fault in transport.happened[told:]:
            _log.warning("fault", wire=wire, fault=str(fault))
        told = len(transport.happened)
        await asyncio.sleep(_LOOK_S)
