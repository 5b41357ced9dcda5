"""Faults on purpose, on the links that bytes come by: by seed, so that they come again.

Owns:   how they are written on a command line.
Knows nothing of: how they are made to happen (`transports.faulty`).

    7:never=0.05,cut-inside=0.01      seed 7; each frame, and each one-sided read, at these rates
"""

import asyncio
from dataclasses import dataclass
from typing import Final

import structlog

from kvdist.errors import ConfigError
from transports.api import Transport
from transports.base import WireTransport
from transports.faults import Kind, random_plan
from transports.faulty import FaultyTransport

_log = structlog.get_logger(__name__)

KINDS: Final = {kind.name.lower().replace("_", "-"): kind for kind in Kind}
#: The handshake and the introduction go well; a wire lives for so many frames, at most.
_FIRST: Final = 4
_FRAMES: Final = 2000
_WIRES: Final = 64
_LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Faults:
    """Rates by kind."""

    seed: int
    rates: dict[Kind, float]


def read_faults(text: str) -> Faults:
    """Raises: ConfigError.

    >>> read_faults("7:never=0.5").rates
    {<Kind.NEVER: 'never completes'>: 0.5}
    """
    seed, _, told = text.partition(":")
    rates = {}
    try:
        for one in told.split(","):
            name, _, rate = one.partition("=")
            rates[KINDS[name]] = float(rate)
        if not all(0 <= rate <= 1 for rate in rates.values()):
            raise ValueError(told)
        return Faults(int(seed), rates)
    except (KeyError, ValueError):
        raise ConfigError(
            f"faults are SEED:KIND=RATE,..., with rates from 0 to 1, and {text!r} aren't; "
            f"kinds: {', '.join(KINDS)}"
        ) from None


def with_faults(transport: Transport, faults: Faults) -> FaultyTransport:
    """The same transport, but that things go wrong."""
    assert isinstance(transport, WireTransport)
    plan = random_plan(faults.seed, faults.rates, frames=_FRAMES, first=_FIRST, wires=_WIRES)
    return FaultyTransport(transport, plan)


async def tell(transport: FaultyTransport) -> None:
    """Log what happens, until cancelled."""
    told = 0
    while True:
        for wire, fault in transport.happened[told:]:
            _log.warning("fault", wire=wire, fault=str(fault))
        told = len(transport.happened)
        await asyncio.sleep(_LOOK_S)
