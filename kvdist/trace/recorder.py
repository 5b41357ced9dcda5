"""Where the core tells its events, if anybody listens.

Owns:   of each request that has not ended, why it waits, so that it is told once; its latest hit.
Knows nothing of: files, clocks, what listeners do.
Cost:   nothing without a listener: then there is no recorder, and who would tell sees None.
"""

from collections.abc import Callable
from typing import TypeAlias

from kvdist.trace.events import Allocated, Ended, Event, GaveUp, Waits, Why

Sink: TypeAlias = Callable[[Event], None]


class Recorder:
    """Passes events on to `sink`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._waits: dict[str, set[Why]] = {}
        #: Tokens hit at the latest admission of each request.
        self.hit_tokens: dict[str, int] = {}

    def note(self, event: Event) -> None:
        """Tell it, unless it only repeats why a request waits."""
        match event:
            case Waits(req, why):
                told = self._waits.setdefault(req, set())
                if why in told:
                    return
                told.add(why)
            case Allocated(req, first=first, local_tokens=local_tokens):
                self._waits.pop(req, None)
                if first:
                    self.hit_tokens[req] = local_tokens
            case GaveUp(req):
                self._waits.pop(req, None)
            case Ended(req):
                self._waits.pop(req, None)
                self.hit_tokens.pop(req, None)
            case _:
                pass
        self._sink(event)
