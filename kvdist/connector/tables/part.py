"""Reader's worker: one part of a pull, from one rank of the owner.

Owns:   nothing; the rows are data.
Knows nothing of: other parts, requests, hashes.
Promise: the node hears exactly one verdict and exactly one "quiet", in this order; it hears that
        the bytes are good only if the owner has confirmed them, and quiet only when no byte can
        land any more, by what this worker knows itself (T3).
"""

from enum import Enum
from typing import Final

from kvdist.connector.machine import Table


class State(Enum):
    """Of a part."""

    OPENING = "opening"  #: the owner was asked; no target is named, so nothing can land
    LANDING = "landing"  #: bytes may land
    CONFIRMING = "confirming"  #: all bytes are there, the target is quiet; are they good?
    STOPPING = "stopping"  #: failed; bytes may still land
    GOOD = "good"
    OVER = "over"  #: failed and quiet


class Event(Enum):
    """What happens to it."""

    OPENED = "opened"  #: the owner serves it
    DENIED = "denied"  #: the owner doesn't, or takes back what it served
    LANDED = "landed"  #: every byte is there, and no further one can land
    READ_FAILED = "read failed"  #: some byte won't come; others may still be under way
    QUIET = "quiet"  #: no byte can land any more
    CONFIRMED = "confirmed"
    UNANSWERED = "unanswered"  #: time to ask again
    GAVE_UP = "gave up"  #: asked often enough
    STALLED = "stalled"  #: no progress for too long
    LINK_LOST = "link lost"
    CANCELLED = "cancelled"  #: the node wants it no more
    RESTLESS = "restless"  #: still not quiet: time for the next measure (T17)


class Effect(Enum):
    """What is to be done."""

    SEND_OPEN = "send open"
    BEGIN_READ = "begin read"  #: name the target
    SEND_CONFIRM = "send confirm"
    SEND_CLOSE = "send close"
    STOP_READ = "stop read"  #: take the target away; QUIET follows
    CUT_LINK = "cut link"
    ESCALATE = "escalate"
    REPORT_GOOD = "report good"
    REPORT_FAILED = "report failed"
    REPORT_QUIET = "report quiet"


_S, _E, _F = State, Event, Effect
_FAILED_QUIET: Final = (_F.REPORT_FAILED, _F.REPORT_QUIET)

PART: Final = Table(
    "part",
    _S.OPENING,
    rows={
        (_S.OPENING, _E.OPENED): (_S.LANDING, (_F.BEGIN_READ,)),
        # A repeat of the question may be under way, and be granted.
        (_S.OPENING, _E.DENIED): (_S.OVER, (_F.SEND_CLOSE, *_FAILED_QUIET)),
        (_S.OPENING, _E.UNANSWERED): (_S.OPENING, (_F.SEND_OPEN,)),
        (_S.OPENING, _E.GAVE_UP): (_S.OVER, (_F.SEND_CLOSE, *_FAILED_QUIET)),
        (_S.OPENING, _E.LINK_LOST): (_S.OVER, _FAILED_QUIET),
        (_S.OPENING, _E.CANCELLED): (_S.OVER, (_F.SEND_CLOSE, *_FAILED_QUIET)),
        (_S.LANDING, _E.LANDED): (_S.CONFIRMING, (_F.SEND_CONFIRM,)),
        (_S.LANDING, _E.DENIED): (_S.STOPPING, (_F.REPORT_FAILED, _F.STOP_READ)),
        (_S.LANDING, _E.READ_FAILED): (_S.STOPPING, (_F.REPORT_FAILED, _F.STOP_READ)),
        (_S.LANDING, _E.STALLED): (_S.STOPPING, (_F.REPORT_FAILED, _F.CUT_LINK, _F.STOP_READ)),
        (_S.LANDING, _E.LINK_LOST): (_S.STOPPING, (_F.REPORT_FAILED, _F.STOP_READ)),
        (_S.LANDING, _E.CANCELLED): (_S.STOPPING, (_F.REPORT_FAILED, _F.STOP_READ)),
        (_S.CONFIRMING, _E.CONFIRMED): (_S.GOOD, (_F.REPORT_GOOD, _F.REPORT_QUIET)),
        (_S.CONFIRMING, _E.DENIED): (_S.OVER, _FAILED_QUIET),
        (_S.CONFIRMING, _E.UNANSWERED): (_S.CONFIRMING, (_F.SEND_CONFIRM,)),
        (_S.CONFIRMING, _E.GAVE_UP): (_S.OVER, (_F.SEND_CLOSE, *_FAILED_QUIET)),
        # The verdict is kept for repeats: it may be asked for on the next link.
        (_S.CONFIRMING, _E.LINK_LOST): (_S.CONFIRMING, ()),
        (_S.CONFIRMING, _E.CANCELLED): (_S.OVER, (_F.SEND_CLOSE, *_FAILED_QUIET)),
        # Only now may the owner hear that this side has stopped reading.
        (_S.STOPPING, _E.QUIET): (_S.OVER, (_F.SEND_CLOSE, _F.REPORT_QUIET)),
        (_S.STOPPING, _E.RESTLESS): (_S.STOPPING, (_F.ESCALATE,)),
    },
    impossible={
        (_S.OPENING, _E.LANDED): "no target is named",
        (_S.OPENING, _E.READ_FAILED): "no read was begun",
        (_S.OPENING, _E.QUIET): "no read was begun",
        (_S.OPENING, _E.STALLED): "what is watched is the read",
        (_S.OPENING, _E.RESTLESS): "no read was begun",
        (_S.LANDING, _E.QUIET): "it is asked for when the read is stopped",
        (_S.LANDING, _E.UNANSWERED): "the question was answered",
        (_S.LANDING, _E.GAVE_UP): "the question was answered",
        (_S.LANDING, _E.RESTLESS): "it isn't stopped",
        (_S.CONFIRMING, _E.LANDED): "all has landed",
        (_S.CONFIRMING, _E.READ_FAILED): "all has landed",
        (_S.CONFIRMING, _E.QUIET): "it is asked for when the read is stopped",
        (_S.CONFIRMING, _E.STALLED): "the read is over",
        (_S.CONFIRMING, _E.RESTLESS): "the read is over",
        (_S.STOPPING, _E.LANDED): "of a read that was stopped only its rest is told",
        (_S.STOPPING, _E.UNANSWERED): "nothing was asked",
        (_S.STOPPING, _E.GAVE_UP): "nothing was asked",
        (_S.STOPPING, _E.STALLED): "what is watched now is rest",
        **{
            (state, event): "its clocks were stopped"
            for state in (_S.GOOD, _S.OVER)
            for event in (_E.UNANSWERED, _E.GAVE_UP, _E.STALLED, _E.RESTLESS)
        },
        **{
            (state, event): "the read is over"
            for state in (_S.GOOD, _S.OVER)
            for event in (_E.LANDED, _E.READ_FAILED, _E.QUIET)
        },
    },
    # Answers come late or twice; links are lost, and nodes change their minds, afterwards. A read
    # that is being stopped may fail as well.
    late=frozenset(
        {_E.OPENED, _E.DENIED, _E.CONFIRMED, _E.LINK_LOST, _E.CANCELLED, _E.READ_FAILED}
    ),
)
