"""Owner's worker: a lease that this worker may serve.

Owns:   nothing; the rows are data.
Knows nothing of: bytes, links, other workers.
Promise: the revocation is acknowledged once for each time it is asked for, and never while a pull
        of this lease is open here. There is no way back from revoking (T15).
"""

from enum import Enum
from typing import Final

from kvdist.connector.machine import Table


class State(Enum):
    """Of a grant."""

    ACTIVE = "active"
    REVOKING = "revoking"  #: nothing new is opened; what is open goes on to its end
    GONE = "gone"


class Event(Enum):
    """What happens to a grant."""

    OPEN = "open"  #: a reader asks to begin, and what it asks for is in order
    REVOKE_IDLE = "revoke, idle"  #: the node takes it back, and nothing is open
    REVOKE_BUSY = "revoke, busy"  #: the same, and something is open
    LAST_CLOSED = "last closed"  #: the last open pull has ended


class Effect(Enum):
    """What is to be done."""

    SERVE = "serve"
    DENY = "deny"  #: gone
    ACKNOWLEDGE = "acknowledge"


_S, _E, _F = State, Event, Effect

GRANT: Final = Table(
    "grant",
    _S.ACTIVE,
    rows={
        (_S.ACTIVE, _E.OPEN): (_S.ACTIVE, (_F.SERVE,)),
        (_S.ACTIVE, _E.LAST_CLOSED): (_S.ACTIVE, ()),
        (_S.ACTIVE, _E.REVOKE_IDLE): (_S.GONE, (_F.ACKNOWLEDGE,)),
        (_S.ACTIVE, _E.REVOKE_BUSY): (_S.REVOKING, ()),
        (_S.REVOKING, _E.OPEN): (_S.REVOKING, (_F.DENY,)),
        (_S.REVOKING, _E.LAST_CLOSED): (_S.GONE, (_F.ACKNOWLEDGE,)),
    },
    impossible={
        (_S.REVOKING, _E.REVOKE_IDLE): "a node revokes once",
        (_S.REVOKING, _E.REVOKE_BUSY): "a node revokes once",
        (_S.GONE, _E.OPEN): "it is forgotten: whoever asks for it asks for nothing",
        (_S.GONE, _E.REVOKE_IDLE): "a node revokes once",
        (_S.GONE, _E.REVOKE_BUSY): "a node revokes once",
        (_S.GONE, _E.LAST_CLOSED): "nothing was open when it went",
    },
)
