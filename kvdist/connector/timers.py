"""What is due when; time comes from outside.

Owns:   the deadlines of one half.
Knows nothing of: clocks, what is done when something is due.
Cost:   O(log n) a deadline, over time; memory for those that count, however often they are moved.
"""

import heapq
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

#: Outdated entries that are always borne.
_SLACK: Final = 64


class Timers(Generic[K]):
    """One deadline a key; setting it again moves it.

    >>> timers = Timers[str]()
    >>> timers.set("a", 3.0); timers.set("b", 2.0); timers.set("a", 1.0)
    >>> timers.next_at(), list(timers.due(1.5)), timers.next_at()
    (1.0, ['a'], 2.0)
    """

    def __init__(self) -> None:
        #: By key: when, and the number of the call that said so.
        self._at: dict[K, tuple[float, int]] = {}
        #: (when, number, key); outdated entries are dropped when they come up, or are too many.
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0

    def set(self, key: K, at: float) -> None:
        """`key` is due at `at`, and no more at any other time."""
        self._count += 1
        self._at[key] = (at, self._count)
        heapq.heappush(self._heap, (at, self._count, key))
        if len(self._heap) > 2 * len(self._at) + _SLACK:
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapq.heapify(self._heap)

    def cancel(self, key: K) -> None:
        """`key` isn't due any more; nothing if it wasn't."""
        self._at.pop(key, None)

    def at(self, key: K) -> float | None:
        """When `key` is due; None: it isn't."""
        found = self._at.get(key)
        return None if found is None else found[0]

    def next_at(self) -> float | None:
        """When the next one is due; None: nothing is."""
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[K]:
        """Take what is due by `now`, the earliest first; what is set meanwhile may come too."""
        while (at := self.next_at()) is not None and at <= now:
            key = heapq.heappop(self._heap)[2]
            del self._at[key]
            yield key

    def _is_current(self, entry: tuple[float, int, K]) -> bool:
        at, number, key = entry
        return self._at.get(key) == (at, number)

    def __len__(self) -> int:
        """How many keys have a deadline."""
        return len(self._at)
