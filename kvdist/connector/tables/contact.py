"""Either side: somebody whom we speak with, once both have said hello.

Owns:   nothing; the rows are data.
Knows nothing of: what fingerprints are compared by, links, what is said afterwards.
Promise: nothing but hello is said to whoever hasn't said a sound one; whoever says something before
        its hello is asked for it; whoever is refused hears why.
"""

from enum import Enum
from typing import Final

from kvdist.connector.machine import Table


class State(Enum):
    """Of a contact: one run of a node, or one link."""

    STRANGE = "strange"  #: nothing was said
    GREETING = "greeting"  #: we have said hello, and heard none
    AGREED = "agreed"  #: both have, and can exchange blocks
    REFUSED = "refused"  #: they can't
    GONE = "gone"  #: forgotten: the next contact begins anew


class Event(Enum):
    """What happens to it."""

    CALL = "call"  #: something is to be said to it
    SPOKE = "spoke"  #: it said something before its hello
    AGREE = "agree"  #: its hello came, and nothing differs that mustn't
    DIFFER = "differ"  #: its hello came, and something does
    TURNED_AWAY = "turned away"  #: it refuses us
    UNANSWERED = "unanswered"  #: time to say hello again
    GAVE_UP = "gave up"  #: said often enough
    LOST = "lost"  #: the link has ended, or another run is there


class Effect(Enum):
    """What is to be done."""

    SEND_HELLO = "send hello"
    MEET = "meet"  #: our side hears what it can be asked
    SAY = "say"  #: what waits, in the version that was agreed on
    DROP = "drop"  #: what waits
    SEND_REFUSED = "send refused"
    TELL = "tell"  #: our side: nothing can be had of it
    FORGET = "forget"


_S, _E, _F = State, Event, Effect

CONTACT: Final = Table(
    "contact",
    _S.STRANGE,
    rows={
        (_S.STRANGE, _E.CALL): (_S.GREETING, (_F.SEND_HELLO,)),
        (_S.STRANGE, _E.SPOKE): (_S.GREETING, (_F.SEND_HELLO,)),
        (_S.STRANGE, _E.AGREE): (_S.AGREED, (_F.MEET,)),
        (_S.STRANGE, _E.DIFFER): (_S.REFUSED, (_F.SEND_REFUSED, _F.TELL)),
        (_S.GREETING, _E.CALL): (_S.GREETING, ()),
        (_S.GREETING, _E.SPOKE): (_S.GREETING, (_F.SEND_HELLO,)),
        (_S.GREETING, _E.AGREE): (_S.AGREED, (_F.MEET, _F.SAY)),
        (_S.GREETING, _E.DIFFER): (_S.REFUSED, (_F.SEND_REFUSED, _F.TELL, _F.DROP)),
        (_S.GREETING, _E.TURNED_AWAY): (_S.REFUSED, (_F.TELL, _F.DROP)),
        (_S.GREETING, _E.UNANSWERED): (_S.GREETING, (_F.SEND_HELLO,)),
        (_S.GREETING, _E.GAVE_UP): (_S.GONE, (_F.DROP, _F.FORGET)),
        (_S.GREETING, _E.LOST): (_S.GONE, (_F.DROP, _F.FORGET)),
        (_S.AGREED, _E.CALL): (_S.AGREED, (_F.SAY,)),
        # By what it knows that we don't: later versions may compare more.
        (_S.AGREED, _E.TURNED_AWAY): (_S.REFUSED, (_F.TELL,)),
        (_S.AGREED, _E.LOST): (_S.GONE, (_F.FORGET,)),
        (_S.REFUSED, _E.CALL): (_S.REFUSED, (_F.TELL, _F.DROP)),
        (_S.REFUSED, _E.SPOKE): (_S.REFUSED, (_F.SEND_REFUSED,)),
        (_S.REFUSED, _E.DIFFER): (_S.REFUSED, (_F.SEND_REFUSED,)),
        # What was refused was no sound hello of that run.
        (_S.REFUSED, _E.AGREE): (_S.AGREED, (_F.MEET,)),
        (_S.REFUSED, _E.LOST): (_S.GONE, (_F.FORGET,)),
    },
    impossible={
        (_S.STRANGE, _E.UNANSWERED): "nothing was said to it",
        (_S.STRANGE, _E.GAVE_UP): "nothing was said to it",
        (_S.STRANGE, _E.LOST): "it begins with something said, or heard",
        (_S.AGREED, _E.SPOKE): "it is acted on",
        (_S.AGREED, _E.AGREE): "one run has one fingerprint: another is ignored",
        (_S.AGREED, _E.DIFFER): "one run has one fingerprint: another is ignored",
        **{
            (state, event): "the hello was answered"
            for state in (_S.AGREED, _S.REFUSED)
            for event in (_E.UNANSWERED, _E.GAVE_UP)
        },
        **{
            (_S.GONE, event): "it is forgotten: whoever speaks is a new one"
            for event in _E
            if event is not _E.TURNED_AWAY
        },
    },
    late=frozenset({_E.TURNED_AWAY}),
)
