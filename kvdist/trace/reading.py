"""Trace files, read back.

Owns:   what a file may hold, and which of its requests somebody means.
Knows nothing of: how what it says is told.

A file is read together with FILE.1, which it was before it reached its limit. Whatever they hold,
reading them gives entries or a FormatError that names the place.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from kvdist.errors import FormatError, UnknownRequest
from kvdist.ids import RequestId
from kvdist.trace.events import Began, Entry, Event, Forgotten

#: Far above any real line; what is longer is taken for another kind of file.
MAX_LINE_BYTES: Final = 1 << 24

#: What stands before a request's name in the id of its answer.
_ANSWERS: Final = ("cmpl-", "chatcmpl-")

_decode = msgspec.json.Decoder(Entry).decode


class TraceFiles:
    """Entries of FILE.1, if there is one, then of FILE; may be read several times."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The last line has no end, as a node that was killed leaves it; it was left out.
        self.is_cut = False

    def __iter__(self) -> Iterator[Entry]:
        """Raises: FormatError."""
        before = self.path.with_name(self.path.name + ".1")
        if before.exists():
            yield from self._entries(before, may_be_cut=False)
        yield from self._entries(self.path, may_be_cut=True)

    def _entries(self, path: Path, *, may_be_cut: bool) -> Iterator[Entry]:
        number = 0
        try:
            with path.open("rb") as file:
                while line := file.readline(MAX_LINE_BYTES):
                    number += 1
                    if may_be_cut and number > 1 and not line.endswith(b"\n"):
                        self.is_cut = True
                        return
                    yield _entry(line, f"{path}:{number}", is_first=number == 1)
        except OSError as error:
            raise FormatError(f"{path}: {error.strerror or error}") from error
        if not number:
            raise FormatError(f"{path}: it is empty, and no trace")

    def run_of(self, request_id: RequestId) -> Iterator[Entry]:
        """Entries of the latest run of a node that has this request."""
        last, run = "", ""
        for entry in self:
            run = entry.event.run if isinstance(entry.event, Began) else run
            last = run if request_of(entry.event) == request_id else last
        for entry in self:
            run = entry.event.run if isinstance(entry.event, Began) else run
            if run == last:
                yield entry

    def find(self, name: str) -> RequestId:
        """The request of that id, or the only one whose name or whose answer's id that is.

        Raises: UnknownRequest; FormatError.
        """
        known = dict.fromkeys(filter(None, (request_of(entry.event) for entry in self)))
        if name in known:
            return name
        names = {name, *(name.removeprefix(kind) for kind in _ANSWERS)}
        found = [request_id for request_id in known if request_id.rpartition("-")[0] in names]
        if len(found) == 1:
            return found[0]
        if found:
            raise UnknownRequest(f"{name} is several sequences: {', '.join(found)}")
        there = f"; it has {_in_short(list(known))}" if known else ""
        raise UnknownRequest(f"{self.path}: no request {name}{there}")


def request_of(event: Event) -> RequestId | None:
    """Whose event it is."""
    return None if isinstance(event, Began | Forgotten) else event.req


def _entry(line: bytes, place: str, *, is_first: bool) -> Entry:
    if len(line) == MAX_LINE_BYTES:
        raise FormatError(f"{place}: longer than any line of a trace")
    try:
        entry = _decode(line)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{place}: not a line of a trace: {error}") from error
    if is_first and not isinstance(entry.event, Began):
        raise FormatError(f"{place}: a trace begins with `began`")
    return entry


def _in_short(names: list[RequestId], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
