"""A one-sided read that is a copy from memory we can see, in steps that let the loop breathe.

Owns:   how far one read has come; whoever waits for it does the copying.
Knows nothing of: how the memory came to be visible.
Units:  bytes.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from transports.api import Span
from transports.errors import PeerLost, TransportError

#: Bytes copied between two turns of the loop: about a quarter of a millisecond.
STEP_BYTES: Final = 2 << 20
#: What a piece counts against that, whatever its size.
PIECE_COST: Final = 1 << 10
_NOTHING: Final = memoryview(b"")


class CopyRead:
    """See `Read`. `source` is asked for its view before each step and raises once it has gone.

    Who waits first, for the bytes or for quiet, does the copying; cancelled there, it ends.
    """

    def __init__(
        self, source: Callable[[], memoryview], spans: Sequence[Span], into: Sequence[memoryview]
    ) -> None:
        self._source = source
        self._pieces = _pieces(spans, into)
        self._cancelled = False
        self._error: TransportError | None = None
        self._over = asyncio.Event()
        self._running = False

    async def wait(self) -> None:
        """See `Read.wait`."""
        await self._run()
        if self._error is not None:
            raise type(self._error)(*self._error.args)
        if self._cancelled:
            raise PeerLost("the read was cancelled")

    def cancel(self) -> None:
        """See `Read.cancel`."""
        self._cancelled = True
        if not self._running:
            self._running = True
            self._over.set()

    async def quiet(self) -> None:
        """See `Read.quiet`: a step is never half done, and none begins after the end."""
        await self._run()

    async def _run(self) -> None:
        """Copy, unless that has been begun; then wait for its end."""
        if not self._running:
            self._running = True
            try:
                await self._copy()
            except TransportError as error:
                self._error = error
            except asyncio.CancelledError:
                self._cancelled = True
                raise
            finally:
                self._over.set()
        await self._over.wait()

    async def _copy(self) -> None:
        while not self._cancelled:
            if not self._step():
                return
            await asyncio.sleep(0)

    def _step(self) -> bool:
        """Copy a step; False if that was the last. No view of the source is kept."""
        source, size = self._source(), 0
        for offset, target in self._pieces:
            target[:] = source[offset : offset + len(target)]
            size += len(target) + PIECE_COST
            if size >= STEP_BYTES:
                return True
        return False


def _pieces(spans: Sequence[Span], into: Sequence[memoryview]) -> Iterator[tuple[int, memoryview]]:
    """(offset in the source, target) of pieces of at most `STEP_BYTES`; both are walked once."""
    lengths = [span.length for span in spans]
    if lengths == list(map(len, into)) and max(lengths, default=0) <= STEP_BYTES:
        # One target a span, as it mostly is, and then it should cost little.
        return zip([span.offset for span in spans], into, strict=True)
    return _cut(spans, into)


def _cut(spans: Sequence[Span], into: Sequence[memoryview]) -> Iterator[tuple[int, memoryview]]:
    targets = iter(into)
    left = _NOTHING
    for span in spans:
        offset, end = span.offset, span.offset + span.length
        while offset < end:
            if not len(left):
                left = next(targets)
            size = min(end - offset, len(left), STEP_BYTES)
            if size == len(left):
                yield offset, left
                offset, left = offset + size, _NOTHING
                continue
            yield offset, left[:size]
            offset, left = offset + size, left[size:]
