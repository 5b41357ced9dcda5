"""A node: one of the two things that it may do for others, to lend or to read.

Owns:   nothing; the rows are data.
Knows nothing of: leases, pulls, who is told.
Promise: whoever is told that a duty is over can rely on it: nothing of it is left, and nothing new
        begins until it is taken on again; peers hear of every change.
"""

from enum import Enum
from typing import Final

from kvdist.connector.machine import Table


class State(Enum):
    """Of a duty."""

    ON = "on"
    ENDING = "ending"  #: nothing new is accepted; what was accepted goes on to its end
    OFF = "off"


class Event(Enum):
    """What happens to it."""

    TAKE = "take"  #: the node's new role has it
    LEAVE = "leave"  #: the node's new role lacks it
    IDLE = "idle"  #: all that was accepted has ended


class Effect(Enum):
    """What is to be done."""

    ACCEPT = "accept"
    REFUSE = "refuse"  #: whatever is new, and say where to go
    ANNOUNCE = "announce"  #: to peers
    SAY_OVER = "say over"  #: to the host


_S, _E, _F = State, Event, Effect

DUTY: Final = Table(
    "duty",
    _S.ON,
    rows={
        (_S.ON, _E.LEAVE): (_S.ENDING, (_F.REFUSE, _F.ANNOUNCE)),
        (_S.ENDING, _E.TAKE): (_S.ON, (_F.ACCEPT, _F.ANNOUNCE)),
        (_S.ENDING, _E.IDLE): (_S.OFF, (_F.SAY_OVER,)),
        (_S.OFF, _E.TAKE): (_S.ON, (_F.ACCEPT, _F.ANNOUNCE)),
    },
    impossible={
        (_S.ON, _E.TAKE): "only changes are handed over",
        (_S.ON, _E.IDLE): "it is looked for while the duty ends",
        (_S.ENDING, _E.LEAVE): "only changes are handed over",
        (_S.OFF, _E.LEAVE): "only changes are handed over",
        (_S.OFF, _E.IDLE): "it is looked for while the duty ends",
    },
)
