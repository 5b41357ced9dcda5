"""Owner's worker: one open pull, the hold that makes its bytes good.

Owns:   nothing; the rows are data.
Knows nothing of: bytes, blocks, the lease's clock (T25).
Promise: FREE comes exactly once, when nothing is read or sent any more as far as this side can
        know; "good" is said only while the hold stands: nothing read under it was reused.
"""

from enum import Enum
from typing import Final

from kvdist.connector.machine import Table


class State(Enum):
    """Of an open pull."""

    SENDING = "sending"  #: open, and a send of ours is under way
    OPEN = "open"  #: open, and no send is: the reader reads by itself, or all is sent
    ENDING = "ending"  #: over, but a send of ours hasn't returned
    OVER = "over"


class Event(Enum):
    """What happens to it."""

    MORE = "more"  #: a send begins: blocks have settled that it waits for (streaming)
    SENT = "sent"  #: the send under way has returned, however it went
    CONFIRM = "confirm"  #: the reader has all bytes and asks whether they are good
    CLOSE = "close"  #: the reader gives up
    LINK_LOST = "link lost"
    STALLED = "stalled"  #: no progress for too long (T16)
    REVOKED = "revoked"  #: what it still waits for will never come: a stream was withdrawn (T12)


class Effect(Enum):
    """What is to be done."""

    KEEP_VERDICT = "keep verdict"  #: good, for this question and for repeats (T4)
    SAY_GONE = "say gone"
    STOP_SENDING = "stop sending"
    CUT_LINK = "cut link"
    FREE = "free"  #: the hold ends


_S, _E, _F = State, Event, Effect

SERVE: Final = Table(
    "serve",
    _S.OPEN,
    rows={
        (_S.OPEN, _E.MORE): (_S.SENDING, ()),
        (_S.OPEN, _E.CONFIRM): (_S.OVER, (_F.KEEP_VERDICT, _F.FREE)),
        (_S.OPEN, _E.CLOSE): (_S.OVER, (_F.FREE,)),
        (_S.OPEN, _E.LINK_LOST): (_S.OVER, (_F.FREE,)),
        (_S.OPEN, _E.STALLED): (_S.OVER, (_F.CUT_LINK, _F.FREE)),
        # The reader is told, and its close, or the end of the link, ends the hold.
        (_S.OPEN, _E.REVOKED): (_S.OPEN, (_F.SAY_GONE,)),
        (_S.SENDING, _E.SENT): (_S.OPEN, ()),
        (_S.SENDING, _E.CONFIRM): (_S.ENDING, (_F.KEEP_VERDICT,)),
        (_S.SENDING, _E.CLOSE): (_S.ENDING, (_F.STOP_SENDING,)),
        (_S.SENDING, _E.LINK_LOST): (_S.ENDING, (_F.STOP_SENDING,)),
        (_S.SENDING, _E.STALLED): (_S.ENDING, (_F.CUT_LINK, _F.STOP_SENDING)),
        (_S.SENDING, _E.REVOKED): (_S.SENDING, (_F.SAY_GONE,)),
        (_S.ENDING, _E.SENT): (_S.OVER, (_F.FREE,)),
        (_S.ENDING, _E.STALLED): (_S.ENDING, (_F.CUT_LINK,)),
    },
    impossible={
        (_S.OPEN, _E.SENT): "nothing is being sent",
        (_S.SENDING, _E.MORE): "one send at a time",
        (_S.ENDING, _E.MORE): "nothing begins after the end",
        (_S.OVER, _E.MORE): "nothing begins after the end",
        (_S.OVER, _E.SENT): "nothing is being sent",
        (_S.OVER, _E.STALLED): "its clock was stopped",
    },
    # Readers repeat themselves (the recorded verdict answers), links are lost afterwards.
    late=frozenset({_E.CONFIRM, _E.CLOSE, _E.LINK_LOST, _E.REVOKED}),
)
