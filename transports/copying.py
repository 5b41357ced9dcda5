"""One-sided reads that are copies from memory we can see, in steps that let the loop breathe.

Owns:   the reads of one region that are under way, and how far each has come.
Knows nothing of: how the memory came to be visible.
Units:  bytes.
Turns:  callbacks on the loop, no task: one step of one read at each pass, however many there are.
        A step is never half done, so that what has ended is quiet.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import add
from typing import Final, TypeAlias

from transports.api import Span
from transports.errors import LocalMisuse, PeerLost, ReadCancelled, TransportError

#: Bytes copied between two passes of the loop: some half a millisecond.
STEP_BYTES: Final = 4 << 20
#: What a piece counts against that, whatever its size.
PIECE_COST: Final = 1 << 10
_NOTHING: Final = memoryview(b"")

#: Where a piece goes; where in the source it begins and ends.
_Piece: TypeAlias = tuple[memoryview, int, int]


class Copies:
    """The reads of one region."""

    def __init__(self) -> None:
        self._reads: deque[CopyRead] = deque()
        self._next_turn: asyncio.Handle | None = None

    def begin(
        self, source: Callable[[], memoryview], spans: Sequence[Span], into: Sequence[memoryview]
    ) -> "CopyRead":
        """A read; `source` is asked for its view before each step and raises once it has gone."""
        read = CopyRead(source, spans, into)
        self._reads.append(read)
        self._schedule()
        return read

    def end(self, reason: TransportError) -> None:
        """End what is under way; when it returns no byte can land any more."""
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        while self._reads:
            self._reads.popleft().end(reason)

    def _schedule(self) -> None:
        if self._next_turn is None and self._reads:
            self._next_turn = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._next_turn = None
        read = self._reads.popleft()
        try:
            if read.step():
                self._reads.append(read)
        finally:
            self._schedule()


class CopyRead:
    """See `Read`."""

    def __init__(
        self, source: Callable[[], memoryview], spans: Sequence[Span], into: Sequence[memoryview]
    ) -> None:
        self._source = source
        self._steps = _steps(spans, into)
        self._next = next(self._steps, None)
        self._error: TransportError | None = None
        self._over = asyncio.Event()

    async def wait(self) -> None:
        """See `Read.wait`."""
        await self._over.wait()
        if self._error is not None:
            raise type(self._error)(*self._error.args)

    def cancel(self) -> None:
        """See `Read.cancel`."""
        self.end(ReadCancelled("the read was cancelled"))

    async def quiet(self) -> None:
        """See `Read.quiet`."""
        await self._over.wait()

    def end(self, error: TransportError | None = None) -> None:
        """It is over, and the buffers are let go; only the first end counts."""
        if self._over.is_set():
            return
        # A copy without the frames, and so the buffers, that the error was raised in.
        self._error = None if error is None else type(error)(*error.args)
        self._steps, self._next = iter(()), None
        self._over.set()

    def step(self) -> bool:
        """Copy a step; False if it is over. No view of the source is kept."""
        try:
            if self._next is not None:
                _copy(self._source(), self._next)
                self._next = next(self._steps, None)
            if self._next is None:
                self.end()
        except TransportError as error:
            self.end(error)
        except ValueError as error:
            self.end(LocalMisuse(f"a buffer of a read can't be used any more: {error}"))
        except BaseException as bug:
            self.end(PeerLost(f"a bug on this side: {bug!r}"))
            raise
        return not self._over.is_set()


def _copy(source: memoryview, pieces: Iterable[_Piece]) -> None:
    for target, start, end in pieces:
        target[:] = source[start:end]


def _steps(spans: Sequence[Span], into: Sequence[memoryview]) -> Iterator[Iterable[_Piece]]:
    """The pieces of each step, of at most `STEP_BYTES` each."""
    lengths = [span.length for span in spans]
    if lengths != list(map(len, into)) or max(lengths, default=0) > STEP_BYTES:
        return _gathered(_cut(spans, into))
    starts = [span.offset for span in spans]
    ends = list(map(add, starts, lengths))
    if len(set(lengths)) > 1:
        return _gathered(zip(into, starts, ends, strict=True))
    # One target a span and all alike, as it mostly is, and then it should cost little.
    num = max(1, STEP_BYTES // (lengths[0] + PIECE_COST)) if lengths else 1
    return (
        zip(into[at : at + num], starts[at : at + num], ends[at : at + num], strict=True)
        for at in range(0, len(starts), num)
    )


def _gathered(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """As many as a step takes."""
    step: list[_Piece] = []
    room = STEP_BYTES
    for piece in pieces:
        step.append(piece)
        room -= piece[2] - piece[1] + PIECE_COST
        if room <= 0:
            yield step
            step, room = [], STEP_BYTES
    if step:
        yield step


def _cut(spans: Sequence[Span], into: Sequence[memoryview]) -> Iterator[_Piece]:
    """Pieces where the targets are cut in another way than the spans, or larger than a step."""
    targets = iter(into)
    left = _NOTHING
    for span in spans:
        start, stop = span.offset, span.offset + span.length
        while start < stop:
            if not len(left):
                left = next(targets)
            end = min(stop, start + len(left), start + STEP_BYTES)
            if end - start == len(left):
                yield left, start, end
                left = _NOTHING
            else:
                yield left[: end - start], start, end
                left = left[end - start :]
            start = end
