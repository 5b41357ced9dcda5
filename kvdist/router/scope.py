"""A block of code that somebody else can end, or a clock.

Owns:   nothing.
Knows nothing of: what the block does.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Scope:
    """`async with`: whoever calls `cut` ends the block at its current await, with that error.

    A cut that comes when the block is over, or after `disarm`, changes nothing.
    """

    def __init__(self) -> None:
        self._timeout = asyncio.timeout(None)
        self._armed = False
        self._error: Exception | None = None

    def cut(self, error: Exception) -> None:
        """End the block; the first one wins."""
        if self._armed:
            self._armed = False
            self._error = error
            self._timeout.reschedule(asyncio.get_running_loop().time())

    def disarm(self) -> None:
        """From now on nothing cuts it."""
        self._armed = False

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._armed = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._armed = False
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            if self._error is None:
                raise
            raise self._error from None


class Clock:
    """`with`: when its time is over, `scope` is cut with what `error` makes."""

    def __init__(self, scope: Scope, seconds: float, error: Callable[[], Exception]) -> None:
        self._scope, self._seconds, self._error = scope, seconds, error

    def wind(self) -> None:
        """All of its time is there again."""
        self._timer.cancel()
        self._start()

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._seconds, lambda: self._scope.cut(self._error()))

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
