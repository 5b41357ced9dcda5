"""Requests that were told to wait: for what, and who is to be asked again.

Owns:   what each of them waits for.
Knows nothing of: why that takes time.
"""

from collections.abc import Hashable

from kvdist.connector.groups import Groups
from kvdist.connector.host import PENDING, Match
from kvdist.ids import RequestId


class Waiting:
    """So that nobody who waits has to be asked again and again."""

    def __init__(self) -> None:
        self._groups: Groups[Hashable] = Groups()
        self._answered: dict[RequestId, None] = {}

    def wait(self, request_id: RequestId, what: Hashable) -> Match:
        """It waits for `what`, and for nothing else."""
        self._groups.put(request_id, what)
        return PENDING

    def wake(self, what: Hashable) -> None:
        """Whoever waits for this is to be asked again."""
        self._answered |= dict.fromkeys(self._groups.take(what))

    def drop(self, request_id: RequestId) -> None:
        """It waits no more, and nobody asks for it."""
        self._groups.drop(request_id)
        self._answered.pop(request_id, None)

    def take_answered(self) -> list[RequestId]:
        """Who is to be asked again, each once."""
        answered = list(self._answered)
        self._answered.clear()
        return answered

    def __len__(self) -> int:
        """How many wait."""
        return len(self._groups)
