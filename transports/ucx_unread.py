"""Messages that have come and that nobody has asked for yet: counted, lest they fill memory.

Owns:    such messages, once they were taken from UCX, whose own queue of them has no bound.
Knows nothing of: what they say, links.
Units:   bytes of memory.
Promise: a peer that sends what nobody asks for is found out when `most_bytes` of it lie here; what
         came since the last look is beyond it, and a look is taken at every turn of the worker.
"""

from collections import deque
from collections.abc import Iterable
from ctypes import byref
from typing import Any, Final

from transports import ucp
from transports.errors import RemoteProtocol
from transports.session import MESSAGE_COST

#: What UCX keeps one message in, over shared memory, however small it is.
_LEAST_BYTES: Final = 8 << 10
#: Heads, pieces and commits that one frame of a peer's may come as.
_MESSAGES_PER_FRAME: Final = 3
#: What costs a peer no credit: regions, answers, the pieces of a body that are under way.
_FREE_BYTES: Final = 64 << 20


def most_bytes(window_bytes: int) -> int:
    """What a peer may have sent that keeps to the rules, while nobody here received."""
    frames = window_bytes // MESSAGE_COST
    return window_bytes + frames * _MESSAGES_PER_FRAME * _LEAST_BYTES + _FREE_BYTES


class Unread:
    """Of one worker. A message that goes with it unread, goes with all its memory."""

    def __init__(self, tags: Iterable[int], limit: int) -> None:
        #: By tag: handle and cost, oldest first.
        self._waiting: dict[int, deque[tuple[int, int]]] = {tag: deque() for tag in tags}
        self._limit = self._left = limit
        self._info = ucp.TagRecvInfo()

    @property
    def any(self) -> bool:
        """Something lies here."""
        return self._left < self._limit

    def take_in(self, library: Any, worker: int) -> None:
        """Take what lies unasked for on this worker. Raises: RemoteProtocol."""
        probe, info = library.ucp_tag_probe_nb, byref(self._info)
        while message := probe(worker, 0, 0, True, info):
            if self._info.sender_tag not in self._waiting:
                raise RemoteProtocol("a message under a tag that nobody here gave out")
            cost = self._info.length + _LEAST_BYTES
            self._waiting[self._info.sender_tag].append((message, cost))
            self._left -= cost
            if self._left < 0:
                raise RemoteProtocol("more messages than anybody asked for")

    def next(self, tag: int) -> int | None:
        """The message that a receive gets that is posted now; None if it hasn't come."""
        waiting = self._waiting[tag]
        if not waiting:
            return None
        message, cost = waiting.popleft()
        self._left += cost
        return message
