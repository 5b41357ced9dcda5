"""Bodies as flat byte views: made from what callers pass, cut into parts. No I/O.

Knows nothing of: frames, links.
Units:  bytes.
"""

import zlib
from collections.abc import Iterator, Sequence

from transports.api import Buffer
from transports.errors import LocalMisuse


def as_views(buffers: Sequence[Buffer], *, writable: bool = False) -> list[memoryview]:
    """One-dimensional byte views of the buffers; empty ones are left out.

    Raises: LocalMisuse for what has no contiguous memory, or may not be written.
    """
    views = []
    for buffer in buffers:
        try:
            view = memoryview(buffer)  # type: ignore[arg-type]
        except TypeError as error:
            raise LocalMisuse(f"{type(buffer).__name__} has no buffer: {error}") from None
        if not view.c_contiguous:
            raise LocalMisuse("a buffer is not contiguous")
        if writable and view.readonly:
            raise LocalMisuse("a buffer to fill is read-only")
        if view.nbytes:
            views.append(view if view.format == "B" and view.ndim == 1 else view.cast("B"))
    return views


def total(views: Sequence[memoryview]) -> int:
    """Bytes of all views."""
    return sum(map(len, views))


def cut(views: Sequence[memoryview], part_bytes: int) -> Iterator[list[memoryview]]:
    """The same bytes as lists of views with `part_bytes` each, the last with the rest."""
    part: list[memoryview] = []
    room = part_bytes
    for view in views:
        while len(view) >= room:
            yield [*part, view[:room]]
            part, view, room = [], view[room:], part_bytes
        if len(view):
            part.append(view)
            room -= len(view)
    if part:
        yield part


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
