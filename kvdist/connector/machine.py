"""A state machine that is a table: every (state, event) is a row, or impossible with a reason.

Owns:   the state of one object, and its story.
Knows nothing of: what states, events and effects mean.
Cost:   O(1) an event.
Source: tables as in h11; events in and instructions out as in dask's worker state machine; that
        impossible pairs carry their reasons is ours.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

from kvdist.errors import ConfigError, InvalidTransition

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)
F = TypeVar("F", bound=Enum)

#: Steps of a story that are kept.
STORY_LENGTH: Final = 24


@dataclass(frozen=True)
class Table(Generic[S, E, F]):
    """The rows of one kind of machine. Raises: ConfigError unless every pair is covered once."""

    #: For people, and the title of the diagram.
    name: str
    start: S
    rows: Mapping[tuple[S, E], tuple[S, tuple[F, ...]]]
    #: Pairs that only a bug of ours can bring about, and why.
    impossible: Mapping[tuple[S, E], str]
    #: Events that come from elsewhere late or twice: where no row says otherwise they change
    #: nothing.
    late: frozenset[E] = frozenset()

    def __post_init__(self) -> None:
        states, events = type(self.start), {type(event) for _, event in self.rows}
        (kind,) = events
        for state in states:
            for event in kind:
                pair = (state, event)
                ways = (pair in self.rows) + (pair in self.impossible)
                if ways != 1 and not (ways == 0 and event in self.late):
                    raise ConfigError(f"{self.name}: {ways} ways for {state.name}, {event.name}")


class Machine(Generic[S, E, F]):
    """One object's state; `handle` advances it."""

    __slots__ = ("_table", "name", "state", "story")

    def __init__(self, table: Table[S, E, F], name: str) -> None:
        self._table = table
        self.name = name
        self.state = table.start
        #: What has happened to it, the latest last.
        self.story: deque[tuple[S, E]] = deque(maxlen=STORY_LENGTH)

    def handle(self, event: E) -> tuple[F, ...]:
        """Advance by one event; returns what to do, in order.

        Raises: InvalidTransition for what the table calls impossible; nothing has changed then.
        """
        row = self._table.rows.get((self.state, event))
        if row is None:
            if event in self._table.late:
                return ()
            raise InvalidTransition(self.tell(event))
        self.story.append((self.state, event))
        self.state = row[0]
        return row[1]

    def tell(self, event: E) -> str:
        """The story, ending with an event that has no row."""
        steps = " ".join(f"{state.name} -{event.name}->" for state, event in self.story)
        why = self._table.impossible.get((self.state, event), "no row")
        return f"{self._table.name} {self.name}: {steps} {self.state.name} -{event.name}-> {why}"
