"""One-sided reads that are copies from memory we can see, in steps that let the loop breathe.

Owns:   the reads of one region that are under way, and how far each has come.
Knows nothing of: how the memory came to be visible.
Units:  bytes.
Turns:  callbacks on the loop, no task: one step of one read at each pass, however many there are.
        A step is never half done, so that what has ended is quiet.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from transports.buffers import as_misuse
from transports.errors import PeerLost, ReadCancelled, TransportError
from transports.pieces import Pieces

#: Bytes copied between two passes of the loop: some half a millisecond.
STEP_BYTES: Final = 4 << 20
#: What a piece counts against that, whatever its size.
PIECE_COST: Final = 1 << 10

#: Where a piece goes, where in the source it begins, and its length.
_Piece: TypeAlias = tuple[memoryview, int, int]


class Copies:
    """The reads of one region."""

    def __init__(self) -> None:
        self._reads: deque[CopyRead] = deque()
        self._next_turn: asyncio.Handle | None = None

    def begin(self, source: Callable[[], memoryview], pieces: Pieces) -> "CopyRead":
        """A read; `source` is asked for its view before each step and raises once it has gone."""
        read = CopyRead(source, pieces)
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

    def __init__(self, source: Callable[[], memoryview], pieces: Pieces) -> None:
        self._source = source
        self._steps = _steps(pieces)
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
            self.end(as_misuse(error))
        except BaseException as bug:
            self.end(PeerLost(f"a bug on this side: {bug!r}"))
            raise
        return not self._over.is_set()


def _copy(source: memoryview, step: Iterable[_Piece]) -> None:
    for target, start, length in step:
        target[:] = source[start : start + length]


def _steps(pieces: Pieces) -> Iterator[Iterable[_Piece]]:
    """The pieces, step by step."""
    targets, starts, lengths = pieces.targets, pieces.starts, pieces.lengths
    first = 0
    for last in _lasts(lengths):
        yield zip(targets[first:last], starts[first:last], lengths[first:last], strict=True)
        first = last


def _lasts(lengths: list[int]) -> Iterator[int]:
    """Behind which piece each step ends."""
    if lengths and lengths.count(lengths[0]) == len(lengths):  # as it mostly is
        num = -(-STEP_BYTES // (lengths[0] + PIECE_COST))
        yield from range(num, len(lengths), num)
    else:
        room = STEP_BYTES
        for number, length in enumerate(lengths):
            if room <= 0:
                yield number
                room = STEP_BYTES
            room -= length + PIECE_COST
    if lengths:
        yield len(lengths)
