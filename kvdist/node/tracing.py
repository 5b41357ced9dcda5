"""The trace file of a node: one JSON object an event, stamped here.

Owns:   the file, how large it gets, the clock.
Knows nothing of: what events say.

At its limit the file becomes FILE.1, in place of the one before, so both together are bounded. Each
file begins with `began`, so that either can be read by itself. A file has one writer: two nodes'
events in one could not be told apart.
"""

import fcntl
import io
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

import msgspec

from kvdist.errors import ConfigError
from kvdist.trace.events import Began, Entry, Event

_encode = msgspec.json.Encoder().encode


class TraceFile:
    """A sink for a recorder. Raises: OSError if the file can't be opened; ConfigError if another
    node writes it.

    A disk that is full costs lines, and a complaint on standard error, never a request.
    """

    def __init__(self, path: Path, max_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self._file = _File(path, max_bytes)
        self._clock = clock

    def note(self, event: Event) -> None:
        """Write a line."""
        line = _encode(Entry(self._clock(), event)).decode()
        if isinstance(event, Began):
            self._file.header = line
        self._file.write(line)

    def close(self) -> None:
        """Nothing is written after this."""
        with suppress(OSError):  # what a full disk had no room for
            self._file.close()


class _File(RotatingFileHandler):
    """The standard library's file with a limit, and a header in each."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__(path, maxBytes=max_bytes, backupCount=1, encoding="utf-8")
        self.header = ""

    def write(self, line: str) -> None:
        """Add a line."""
        self.handle(logging.makeLogRecord({"msg": line}))

    def _open(self) -> io.TextIOWrapper:
        file = super()._open()
        if not Path(self.baseFilename).is_file():
            return file  # a device, a pipe
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise ConfigError(
                f"another node writes its trace to {self.baseFilename}: give each its own; in a "
                "name, %n is the node's"
            ) from None
        return file

    def doRollover(self) -> None:
        """Go on in a new file, which begins with the header."""
        super().doRollover()
        if self.stream is not None:
            self.stream.write(self.header + self.terminator)
