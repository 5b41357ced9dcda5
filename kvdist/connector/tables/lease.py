"""Owner's node: blocks that are promised to a peer.

Owns:   nothing; the rows are data.
Knows nothing of: blocks, clocks, workers.
Promise: the blocks are returned exactly once, after every worker has said that nobody reads them,
        or has died; whoever waits for the ticket hears of it exactly once: here it is, or there
        will be none.
"""

from enum import Enum
from typing import Final

from kvdist.connector.machine import Table


class State(Enum):
    """Of a lease."""

    GRANTING = "granting"  #: not all workers hold the grant: the ticket stays here (T15)
    ACTIVE = "active"  #: the ticket is out, the clock runs
    REVOKING = "revoking"  #: some workers may still serve it
    GONE = "gone"


class Event(Enum):
    """What happens to a lease."""

    GRANTED = "granted"  #: the last worker has acknowledged the grant
    RENEWED = "renewed"  #: its reader still wants it
    RELEASED = "released"  #: its reader needs it no more
    EXPIRED = "expired"  #: nobody renewed it, or its whole life is over (T10)
    TAKEN_BACK = "taken back"  #: its owner needs the blocks, is leaving, or the request was aborted
    REVOKED = "revoked"  #: the last worker has acknowledged the revocation


class Effect(Enum):
    """What is to be done."""

    ISSUE_TICKET = "issue ticket"
    REFUSE_TICKET = "refuse ticket"  #: to whoever waits for it
    RESTART_CLOCK = "restart clock"
    SEND_REVOKE = "send revoke"  #: to all workers
    SEND_WITHDRAWN = "send withdrawn"  #: to the reader, if it reads along (T11)
    RETURN_BLOCKS = "return blocks"


_S, _E, _F = State, Event, Effect

LEASE: Final = Table(
    "lease",
    _S.GRANTING,
    rows={
        (_S.GRANTING, _E.GRANTED): (_S.ACTIVE, (_F.ISSUE_TICKET, _F.RESTART_CLOCK)),
        (_S.GRANTING, _E.TAKEN_BACK): (_S.REVOKING, (_F.SEND_REVOKE, _F.REFUSE_TICKET)),
        (_S.ACTIVE, _E.RENEWED): (_S.ACTIVE, (_F.RESTART_CLOCK,)),
        (_S.ACTIVE, _E.RELEASED): (_S.REVOKING, (_F.SEND_REVOKE,)),
        (_S.ACTIVE, _E.EXPIRED): (_S.REVOKING, (_F.SEND_REVOKE,)),
        (_S.ACTIVE, _E.TAKEN_BACK): (_S.REVOKING, (_F.SEND_REVOKE, _F.SEND_WITHDRAWN)),
        (_S.REVOKING, _E.REVOKED): (_S.GONE, (_F.RETURN_BLOCKS,)),
    },
    impossible={
        (_S.GRANTING, _E.RENEWED): "nobody knows its name before the ticket is out",
        (_S.GRANTING, _E.RELEASED): "nobody knows its name before the ticket is out",
        (_S.GRANTING, _E.EXPIRED): "its clock starts when the ticket leaves",
        (_S.GRANTING, _E.REVOKED): "nothing was revoked",
        (_S.ACTIVE, _E.GRANTED): "each worker is asked once",
        (_S.ACTIVE, _E.REVOKED): "nothing was revoked",
        (_S.REVOKING, _E.EXPIRED): "its clock was stopped",
        (_S.GONE, _E.EXPIRED): "its clock was stopped",
        (_S.GONE, _E.REVOKED): "each worker's acknowledgement counts once",
        (_S.GONE, _E.GRANTED): "grants are acknowledged before revocations, in order",
    },
    # A grant's acknowledgement may cross the revocation; readers may speak late or twice.
    late=frozenset({_E.GRANTED, _E.RENEWED, _E.RELEASED, _E.TAKEN_BACK}),
)
