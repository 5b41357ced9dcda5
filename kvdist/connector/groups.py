"""Requests by what they have in common: who wants the same, who waits for the same.

Owns:   which group each request is in.
Knows nothing of: what a group stands for.
Cost:   O(1) to put, to drop, to look; O(members) to take a group.
"""

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from kvdist.ids import RequestId

K = TypeVar("K", bound=Hashable)


class Groups(Generic[K]):
    """A request is in one group at most; groups keep the order in which requests came.

    >>> groups = Groups[str]()
    >>> groups.put("a", "red"); groups.put("b", "red"); groups.put("a", "blue")
    >>> list(groups.members("red")), groups.of("a"), groups.take("blue"), groups.of("a")
    (['b'], 'blue', ['a'], None)
    """

    def __init__(self) -> None:
        self._members: dict[K, dict[RequestId, None]] = {}
        self._of: dict[RequestId, K] = {}

    def put(self, request_id: RequestId, group: K) -> None:
        """It is in this group, and in no other."""
        self.drop(request_id)
        self._of[request_id] = group
        self._members.setdefault(group, {})[request_id] = None

    def drop(self, request_id: RequestId) -> K | None:
        """It is in none; returns which it was in."""
        group = self._of.pop(request_id, None)
        if group is not None:
            members = self._members[group]
            del members[request_id]
            if not members:
                del self._members[group]
        return group

    def of(self, request_id: RequestId) -> K | None:
        """Which group it is in."""
        return self._of.get(request_id)

    def members(self, group: K) -> Collection[RequestId]:
        """Who is in it."""
        return self._members.get(group, {}).keys()

    def take(self, group: K) -> list[RequestId]:
        """Everybody in it; it is empty then."""
        members = list(self._members.pop(group, ()))
        for request_id in members:
            del self._of[request_id]
        return members

    def __len__(self) -> int:
        """Requests in all groups."""
        return len(self._of)
