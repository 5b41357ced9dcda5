"""Reader's node: a destination that parts of a pull fill, and who waits for it (T20).

Owns:   nothing; the rows are data.
Knows nothing of: links, bytes, leases.
Promise: the scheduler hears exactly once whether it is loaded or failed, and, if it failed, exactly
        once that the destination is quiet, in this order; loaded only if every part is good.
"""

from enum import Enum
from typing import Final

from kvdist.connector.machine import Table


class State(Enum):
    """Of a pull."""

    PULLING = "pulling"
    FAILING = "failing"  #: some part has failed, some may still write
    LOADED = "loaded"
    OVER = "over"  #: failed, and all parts are quiet


class Event(Enum):
    """What happens to it."""

    ALL_GOOD = "all good"  #: the last part is good
    PART_FAILED = "part failed"
    UNWANTED = "unwanted"  #: the last that waited for it has gone
    ALL_QUIET = "all quiet"  #: the last part is quiet, and at least one has failed


class Effect(Enum):
    """What is to be done."""

    SAY_LOADED = "say loaded"
    SAY_FAILED = "say failed"  #: and the destination goes to quarantine
    CANCEL_PARTS = "cancel parts"
    SAY_QUIET = "say quiet"
    END_CLAIM = "end claim"  #: this round is over: the lease is needed for another, or not at all


_S, _E, _F = State, Event, Effect

PULL: Final = Table(
    "pull",
    _S.PULLING,
    rows={
        (_S.PULLING, _E.ALL_GOOD): (_S.LOADED, (_F.SAY_LOADED, _F.END_CLAIM)),
        (_S.PULLING, _E.PART_FAILED): (_S.FAILING, (_F.SAY_FAILED, _F.CANCEL_PARTS)),
        (_S.PULLING, _E.UNWANTED): (_S.FAILING, (_F.SAY_FAILED, _F.CANCEL_PARTS)),
        (_S.FAILING, _E.ALL_QUIET): (_S.OVER, (_F.SAY_QUIET, _F.END_CLAIM)),
        (_S.FAILING, _E.PART_FAILED): (_S.FAILING, ()),
    },
    impossible={
        (_S.PULLING, _E.ALL_QUIET): "a part fails before it is quiet",
        (_S.FAILING, _E.ALL_GOOD): "some part isn't",
        (_S.LOADED, _E.ALL_GOOD): "each part has one verdict",
        (_S.LOADED, _E.PART_FAILED): "each part has one verdict",
        (_S.LOADED, _E.ALL_QUIET): "no part has failed",
        (_S.OVER, _E.ALL_GOOD): "each part has one verdict",
        (_S.OVER, _E.PART_FAILED): "each part has one verdict",
        (_S.OVER, _E.ALL_QUIET): "each part is quiet once",
    },
    # Whoever leaves a pull that has failed, or is loaded, ends nothing by that.
    late=frozenset({_E.UNWANTED}),
)
