"""When a half's timers are looked at.

Owns:   one call of the loop's, at the half's next deadline or before it.
Knows nothing of: what is due.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

#: Later than that, this process stood still, and what came meanwhile is handled first (T22).
_LATE_S: Final = 0.1
_PAUSE_S: Final = 0.05


class Ticking:
    """`tick` calls `set` in its turn. `next_at`: monotonic seconds; None: nothing is due."""

    def __init__(self, next_at: Callable[[], float | None], tick: Callable[[], None]) -> None:
        self._next_at, self._tick = next_at, tick
        self._call: asyncio.TimerHandle | None = None
        #: When it comes.
        self._at = 0.0
        self._is_late = False

    def set(self) -> None:
        """The deadlines may have changed."""
        if self._is_late:
            return  # it looks soon, however often this is called meanwhile
        at = self._next_at()
        if at is not None and self._call is not None and self._at <= at:
            return  # it looks before that, and is set again: deadlines mostly move on
        self.stop()
        if at is not None:
            self._at = at
            wait = max(0.0, at - time.monotonic())
            self._call = asyncio.get_running_loop().call_later(wait, self._due)

    def stop(self) -> None:
        """No more."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _due(self) -> None:
        if time.monotonic() > self._at + _LATE_S:
            self._is_late = True
            self._call = asyncio.get_running_loop().call_later(_PAUSE_S, self._look)
        else:
            self._look()

    def _look(self) -> None:
        self._is_late, self._call = False, None
        self._tick()
