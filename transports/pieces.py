"""Spans of a peer's memory and the buffers that they go to, matched piece by piece. No I/O.

Knows nothing of: how a piece is moved.
Units:  bytes.
Lists, walked as few times as can be: there may be thousands of small spans, and what Python does
        for each, mostly waiting for memory, comes close to what copying it takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add, index
from typing import Final

from transports.api import Span
from transports.errors import LocalMisuse

#: No piece is larger.
MAX_PIECE_BYTES: Final = 2 << 20


@dataclass(frozen=True, slots=True)
class Pieces:
    """Where each piece goes, where in the peer's memory it begins, and its length."""

    targets: list[memoryview]
    starts: list[int]
    lengths: list[int]


def matched(spans: Sequence[Span], into: list[memoryview], size: int) -> Pieces:
    """Pieces of a peer's memory of `size` bytes.

    Raises: LocalMisuse for what are no spans, are out of range, or of another total than the
    buffers.
    """
    starts, lengths = _numbers(spans)
    if starts and (min(starts) < 0 or min(lengths) < 0 or max(map(add, starts, lengths)) > size):
        raise LocalMisuse(f"a span that is not within {size} bytes")
    room = list(map(len, into))
    if lengths == room and max(room, default=0) <= MAX_PIECE_BYTES:
        return Pieces(into, starts, lengths)  # one buffer a span, as it mostly is
    if sum(lengths) != sum(room):
        raise LocalMisuse(f"spans of {sum(lengths)} bytes into buffers of {sum(room)}")
    return _cut(starts, lengths, into)


def _numbers(spans: Sequence[Span]) -> tuple[list[int], list[int]]:
    if not isinstance(spans, Sequence):
        raise LocalMisuse(f"a sequence of spans, not {type(spans).__name__}")
    try:
        return _whole([span.offset for span in spans]), _whole([span.length for span in spans])
    except (AttributeError, TypeError) as error:
        raise LocalMisuse(f"what is no span: {error}") from None


def _whole(numbers: list[int]) -> list[int]:
    """The same as plain integers, as they mostly are; a sum tells that soonest. Raises: TypeError
    for what are none.
    """
    return numbers if type(sum(numbers)) is int else list(map(index, numbers))


def _cut(starts: list[int], lengths: list[int], into: list[memoryview]) -> Pieces:
    pieces = Pieces([], [], [])
    targets = iter(into)
    target, done = memoryview(b""), 0
    for start, length in zip(starts, lengths, strict=True):
        stop = start + length
        while start < stop:
            if done == len(target):
                target, done = next(targets), 0
            step = min(stop - start, len(target) - done, MAX_PIECE_BYTES)
            pieces.targets.append(target[done : done + step])
            pieces.starts.append(start)
            pieces.lengths.append(step)
            start, done = start + step, done + step
    return pieces
