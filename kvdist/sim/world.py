"""Virtual time, chance by seed, and the log of what happened.

Owns:   the clock, the events to come, the source of chance, the log.
Knows nothing of: nodes, messages.
Cost:   O(log n) an event.
"""

import heapq
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

#: Of the log: enough for the story of one request.
LOG_LENGTH: Final = 20_000


class Entry(NamedTuple):
    """Of the log: one thing that happened."""

    time: float
    actor: str
    what: str
    about: object


class World:
    """One run of a cluster."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.chance = Random(seed)
        self.num_events = 0
        self.log: deque[Entry] = deque(maxlen=LOG_LENGTH)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time: float, event: Callable[[], None]) -> None:
        """`event` happens then, or now if that is over; at one time in order of this call."""
        self._count += 1
        heapq.heappush(self._events, (max(time, self.now), self._count, event))

    def after(self, delay: float, event: Callable[[], None]) -> None:
        """`event` happens after `delay` seconds."""
        self.at(self.now + delay, event)

    def happens(self, share: float) -> bool:
        """True in that share of cases. Draws nothing for 0, so that faults can be left out."""
        return share > 0 and self.chance.random() < share

    def between(self, low: float, high: float) -> float:
        """Some time between these."""
        return low + (high - low) * self.chance.random()

    def note(self, actor: str, what: str, about: object) -> None:
        """For the story."""
        self.log.append(Entry(self.now, actor, what, about))

    def step(self) -> bool:
        """Let the next event happen; False if there is none."""
        if not self._events:
            return False
        self.now, _, event = heapq.heappop(self._events)
        self.num_events += 1
        event()
        return True

    def next_at(self) -> float | None:
        """When the next event is."""
        return self._events[0][0] if self._events else None
