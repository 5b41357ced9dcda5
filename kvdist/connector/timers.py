"""What is due when; time comes from outside.

Owns:   the deadlines of one half.
Knows nothing of: clocks, what is done when something is due.
Cost:   O(log n) a deadline.
"""

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """One deadline a key; setting it again moves it.

    >>> timers = Timers[str]()
    >>> timers.set("a", 3.0); timers.set("b", 2.0); timers.set("a", 1.0)
    >>> timers.next_at(), list(timers.due(1.5)), timers.next_at()
    (1.0, ['a'], 2.0)
    """

    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        #: (when, tie, key); outdated entries are dropped when they come up.
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0

    def set(self, key: K, at: float) -> None:
        """`key` is due at `at`, and no more at any other time."""
        self._at[key] = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, key))

    def cancel(self, key: K) -> None:
        """`key` isn't due any more; nothing if it wasn't."""
        self._at.pop(key, None)

    def next_at(self) -> float | None:
        """When the next one is due; None: nothing is."""
        while self._heap and self._at.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[K]:
        """Take what is due by `now`, the earliest first; what is set meanwhile may come too."""
        while (at := self.next_at()) is not None and at <= now:
            key = heapq.heappop(self._heap)[2]
            del self._at[key]
            yield key

    def __len__(self) -> int:
        """How many keys have a deadline."""
        return len(self._at)
