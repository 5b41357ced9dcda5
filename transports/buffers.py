"""Bodies as flat byte views: made from what callers pass, cut into parts. No I/O.

Knows nothing of: frames, links.
Units:  bytes.
"""

import pickle
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import cast

from transports import dlpack
from transports.api import Buffer
from transports.errors import LocalMisuse, TransportError

#: They are sequences, but not of buffers.
_ONE_BUFFER = (str, bytes, bytearray, memoryview)


def as_views(buffers: Sequence[Buffer], *, writable: bool = False) -> list[memoryview]:
    """One-dimensional byte views of the buffers; empty ones are left out.

    Raises: LocalMisuse for what has no contiguous memory, or may not be written.
    """
    if not isinstance(buffers, Sequence) or isinstance(buffers, _ONE_BUFFER):
        raise LocalMisuse(f"a sequence of buffers, not {type(buffers).__name__}")
    try:
        return _views(buffers, writable)
    except LocalMisuse:
        raise
    except (ValueError, BufferError) as error:  # a mapping or a view that was closed
        raise LocalMisuse(f"a buffer can't be used: {error}") from None


def _views(buffers: Sequence[Buffer], writable: bool) -> list[memoryview]:
    if set(map(type, buffers)) == {memoryview}:
        plain = [
            buffer
            for buffer in cast("Sequence[memoryview]", buffers)
            if buffer.format == "B"
            and buffer.ndim == 1
            and buffer.c_contiguous
            and not (writable and buffer.readonly)
        ]
        # As it mostly is, and then it should cost little.
        if len(plain) == len(buffers) and all(map(len, plain)):
            return plain
    views = []
    for buffer in buffers:
        view = _view(buffer, writable)
        if not view.c_contiguous:
            raise LocalMisuse("a buffer is not contiguous")
        if writable and view.readonly:
            raise LocalMisuse("a buffer to fill is read-only")
        if view.nbytes:
            views.append(view if view.format == "B" and view.ndim == 1 else _flat(view))
    return views


def _view(buffer: Buffer, writable: bool) -> memoryview:
    try:
        return memoryview(buffer)  # type: ignore[arg-type]
    except TypeError as error:
        lent = dlpack.lent(buffer, writable=writable)
        if lent is None:
            raise LocalMisuse(f"{type(buffer).__name__} has no buffer: {error}") from None
    if lent.on_gpu:
        raise LocalMisuse("memory on a GPU, which this link can't take")
    return lent.view()


def as_misuse(error: ValueError) -> TransportError:
    """What a view says that was released while it was in use; errors of ours are left as they are.

    >>> as_misuse(ValueError("released memoryview"))
    LocalMisuse("a buffer can't be used any more: released memoryview")
    """
    if isinstance(error, TransportError):
        return error
    return LocalMisuse(f"a buffer can't be used any more: {error}")


def _flat(view: memoryview) -> memoryview:
    """The same bytes; `cast` would not take formats such as "<i" or "T{...}"."""
    return pickle.PickleBuffer(view).raw()


def total(views: Sequence[memoryview]) -> int:
    """Bytes of all views."""
    return sum(map(len, views))


class Cursor:
    """A place in the bytes of several views; a piece costs what the piece holds, not all views."""

    def __init__(self, views: Sequence[memoryview]) -> None:
        self._views = views
        self._ends = list(accumulate(map(len, views)))
        self._done = 0
        #: Bytes from here to the end.
        self.left = self._ends[-1] if self._ends else 0

    def peek(self, num_bytes: int, max_views: int | None = None) -> list[memoryview]:
        """The next bytes: `num_bytes`, or less at the end or where that takes too many views."""
        start, stop = self._done, self._done + min(num_bytes, self.left)
        if start == stop:
            return []
        first = bisect_right(self._ends, start)
        last = bisect_left(self._ends, stop, first)
        if max_views is not None and last >= first + max_views:
            last = first + max_views - 1
            stop = self._ends[last]
        piece = list(self._views[first : last + 1])
        if self._ends[last] > stop:
            piece[-1] = piece[-1][: stop - self._ends[last]]
        if gone := start - (self._ends[first] - len(self._views[first])):
            piece[0] = piece[0][gone:]
        return piece

    def advance(self, num_bytes: int) -> None:
        """These bytes are dealt with."""
        self._done += num_bytes
        self.left -= num_bytes

    def take(self, num_bytes: int) -> list[memoryview]:
        """`peek`, and go on."""
        piece = self.peek(num_bytes)
        self.advance(min(num_bytes, self.left))
        return piece


def cut(views: Sequence[memoryview], part_bytes: int) -> Iterator[list[memoryview]]:
    """The same bytes as lists of views with `part_bytes` each, the last with the rest."""
    cursor = Cursor(views)
    while cursor.left:
        yield cursor.take(part_bytes)


def crc(views: Sequence[memoryview]) -> int:
    """crc32 of all bytes in order."""
    value = 0
    for view in views:
        value = zlib.crc32(view, value)
    return value


def copy(source: Sequence[memoryview], target: Sequence[memoryview]) -> None:
    """Copy all bytes; both sides have the same total, cut in any way."""
    sources = iter(source)
    left = memoryview(b"")
    for view in target:
        done = 0
        while done < len(view):
            if not len(left):
                left = next(sources)
            size = min(len(left), len(view) - done)
            view[done : done + size] = left[:size]
            left, done = left[size:], done + size
