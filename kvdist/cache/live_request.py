"""A request that owns blocks, and the bounds below which allocating for it changes nothing.

Owns:   the quiet bounds of one request.
Knows nothing of: how the bounds come about; each group's manager says its own.
Units:  tokens.
Source: ours (ADR-0008).
"""

from collections.abc import Iterable

from kvdist.cache.managers.base import NEVER, SingleTypeKVCacheManager
from kvdist.cache.request import Request


class LiveRequest:
    """Written by `KVCacheManager` alone; new ones have no quiet bounds."""

    __slots__ = ("next_publication", "next_skip", "num_slots", "request", "step")

    def __init__(self, request: Request) -> None:
        self.request = request
        #: The latest step that names its blocks.
        self.step = 0
        self.disturb()

    def disturb(self) -> None:
        """Nothing is known to be quiet."""
        #: Up to here, inclusive, tokens have slots in all groups.
        self.num_slots = 0
        #: Below this count of tokens no group has anything to publish.
        self.next_publication = 0
        #: Below this count of processed tokens no group has anything to give back.
        self.next_skip = 0

    def settle(
        self,
        managers: Iterable[SingleTypeKVCacheManager],
        num_processed_tokens: int,
        *,
        publishes: bool,
    ) -> None:
        """Take the smallest bounds of all groups."""
        request = self.request
        self.num_slots = min([m.num_slots(request.request_id) for m in managers])
        self.next_skip = min([m.next_skip(num_processed_tokens) for m in managers])
        self.next_publication = (
            min([m.next_publication(request) for m in managers]) if publishes else NEVER
        )
