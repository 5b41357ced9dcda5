"""Server-sent events of a node, made fit for clients.

Owns:   bytes of an event that isn't whole yet.
Knows nothing of: where bytes come from and go to.

Most events pass as they are; those that may hold what clients shouldn't see, or what is counted,
are read.
"""

import json
import re
from collections.abc import Callable
from typing import Any, Final

from kvdist.errors import NodeFailed
from kvdist.router.bodies import PARAMS, Json
from kvdist.router.usage import Found

_BLANK: Final = re.compile(rb"\r?\n\r?\n")
_DATA: Final = b"data:"
#: Of an event that has none of them nothing is to be known.
_TELLING: Final = re.compile(rb'"(?:%s|usage|error)"' % PARAMS.encode())
_MAX_EVENT: Final = 4 << 20


class Events:
    """`show_usage` gives what clients see of a usage; `wants_usage`: they want to see it."""

    def __init__(self, show_usage: Callable[[Json], Json], *, wants_usage: bool) -> None:
        self._show_usage, self._wants_usage = show_usage, wants_usage
        self._rest = b""
        #: The stream said that it is complete.
        self.is_done = False
        #: The stream said that it has failed.
        self.has_failed = False
        #: Of the prompt.
        self.found: Found | None = None

    def feed(self, data: bytes) -> bytes:
        """The whole events in `data` and what was before it. Raises: NodeFailed."""
        *events, self._rest = _BLANK.split(self._rest + data)
        if len(self._rest) > _MAX_EVENT:
            raise NodeFailed(f"an event of more than {_MAX_EVENT} bytes")
        return b"".join(self._event(event) for event in events)

    def end(self) -> None:
        """No more bytes come. Raises: NodeFailed, unless the stream has said how it ended."""
        if self._rest.strip() or not (self.is_done or self.has_failed):
            raise NodeFailed("the stream ended in the middle")

    def _event(self, event: bytes) -> bytes:
        payload = b"\n".join(
            line[len(_DATA) :].strip() for line in event.splitlines() if line.startswith(_DATA)
        )
        if payload == b"[DONE]":
            self.is_done = True
        elif _TELLING.search(payload):
            return self._telling(event, payload)
        return event + b"\n\n"

    def _telling(self, event: bytes, payload: bytes) -> bytes:
        try:
            chunk: Any = json.loads(payload)
        except (ValueError, RecursionError):
            raise NodeFailed("an event that is not JSON") from None
        if not isinstance(chunk, dict):
            return event + b"\n\n"
        self.has_failed |= "error" in chunk
        usage = chunk.get("usage")
        if PARAMS not in chunk and not isinstance(usage, dict):
            return event + b"\n\n"
        chunk.pop(PARAMS, None)
        if isinstance(usage, dict):
            self.found = Found.read(usage)
            if chunk.get("choices") == [] and not self._wants_usage:
                return b""
            chunk["usage"] = self._show_usage(usage)
        return event_of(chunk)


def event_of(chunk: Json) -> bytes:
    """One event."""
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"
