"""Reader's node: a lease that it wants, has, or is giving back.

Owns:   nothing; the rows are data.
Knows nothing of: pulls' parts, bytes.
Promise: once its name is known a lease is released exactly once (repeated until answered), or was
        lost; never while a pull of it is under way.
"""

from enum import Enum
from typing import Final

from kvdist.connector.machine import Table


class State(Enum):
    """Of a claim."""

    ASKING = "asking"  #: for a ticket: by hash, or for a transfer that streams
    HELD = "held"  #: renewed until it is used
    PULLING = "pulling"  #: the pull has a hold of its own (T25)
    ORPHANED = "orphaned"  #: a pull goes on though the lease was lost
    RELEASING = "releasing"
    GONE = "gone"


class Event(Enum):
    """What happens to it."""

    TICKET = "ticket"  #: the lease has a name
    NOTHING = "nothing"  #: the peer has nothing for us
    PULL = "pull"  #: a pull begins
    PULL_OVER = "pull over"  #: it has ended, and no byte of it can land
    UNWANTED = "unwanted"  #: nobody needs it any more
    LOST = "lost"  #: the peer has gone, or has taken it back
    RELEASED = "released"  #: the peer knows
    UNANSWERED = "unanswered"  #: time to ask, or to say, again
    GAVE_UP = "gave up"  #: said often enough; it ends by its own clock


class Effect(Enum):
    """What is to be done."""

    ASK = "ask"
    SEND_RELEASE = "send release"
    FORGET = "forget"


_S, _E, _F = State, Event, Effect

CLAIM: Final = Table(
    "claim",
    _S.ASKING,
    rows={
        (_S.ASKING, _E.TICKET): (_S.HELD, ()),
        (_S.ASKING, _E.NOTHING): (_S.GONE, (_F.FORGET,)),
        (_S.ASKING, _E.UNWANTED): (_S.GONE, (_F.FORGET,)),
        (_S.ASKING, _E.UNANSWERED): (_S.ASKING, (_F.ASK,)),
        (_S.ASKING, _E.GAVE_UP): (_S.GONE, (_F.FORGET,)),
        (_S.HELD, _E.PULL): (_S.PULLING, ()),
        (_S.HELD, _E.UNWANTED): (_S.RELEASING, (_F.SEND_RELEASE,)),
        (_S.HELD, _E.LOST): (_S.GONE, (_F.FORGET,)),
        (_S.PULLING, _E.PULL_OVER): (_S.HELD, ()),
        (_S.PULLING, _E.LOST): (_S.ORPHANED, ()),
        (_S.ORPHANED, _E.PULL_OVER): (_S.GONE, (_F.FORGET,)),
        (_S.RELEASING, _E.RELEASED): (_S.GONE, (_F.FORGET,)),
        (_S.RELEASING, _E.LOST): (_S.GONE, (_F.FORGET,)),
        (_S.RELEASING, _E.UNANSWERED): (_S.RELEASING, (_F.SEND_RELEASE,)),
        (_S.RELEASING, _E.GAVE_UP): (_S.GONE, (_F.FORGET,)),
    },
    impossible={
        (_S.ASKING, _E.PULL): "there is nothing to pull by",
        (_S.ASKING, _E.LOST): "there is no lease yet that could be",
        (_S.ASKING, _E.PULL_OVER): "no pull was begun",
        (_S.HELD, _E.PULL_OVER): "no pull was begun",
        (_S.HELD, _E.UNANSWERED): "nothing was asked",
        (_S.HELD, _E.GAVE_UP): "nothing was asked",
        (_S.PULLING, _E.PULL): "one round at a time",
        (_S.PULLING, _E.UNWANTED): "the pull is cancelled first, and its end is awaited",
        (_S.PULLING, _E.UNANSWERED): "nothing was asked",
        (_S.PULLING, _E.GAVE_UP): "nothing was asked",
        (_S.ORPHANED, _E.PULL): "the lease was lost",
        (_S.ORPHANED, _E.UNWANTED): "the pull is cancelled first, and its end is awaited",
        (_S.ORPHANED, _E.UNANSWERED): "nothing was asked",
        (_S.ORPHANED, _E.GAVE_UP): "nothing was asked",
        (_S.RELEASING, _E.PULL): "nobody needs it any more",
        (_S.RELEASING, _E.PULL_OVER): "a lease isn't released before its pull is over",
        (_S.RELEASING, _E.UNWANTED): "that is why it is being released",
        **{
            (_S.GONE, event): "it is forgotten"
            for event in (_E.PULL, _E.PULL_OVER, _E.UNWANTED, _E.UNANSWERED, _E.GAVE_UP)
        },
    },
    late=frozenset({_E.TICKET, _E.NOTHING, _E.RELEASED, _E.LOST}),
)
