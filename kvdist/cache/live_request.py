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

    __slots__ = (
        "next_publication",
        "next_skip",
        "num_slots",
        "request",
        "step",
        "unverified_end",
        "unverified_start",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        #: The latest step that names its blocks.
        self.step = 0
        #: Tokens [start, end) are expected from elsewhere and not verified yet (S15).
        self.unverified_start = self.unverified_end = 0
        self.disturb()

    def expect(self, start: int, end: int) -> None:
        """Tokens [start, end) come from elsewhere and must not be published before that."""
        self.unverified_start, self.unverified_end = (start, end) if start < end else (0, 0)

    def verified(self, num_tokens: int) -> int:
        """How many of the first `num_tokens` may be published.

        What was expected and has been given up, so that it is computed here, waits for nobody.
        """
        if not self.unverified_end:
            return num_tokens
        end = min(self.unverified_end, self.request.num_computed_tokens)
        self.expect(self.unverified_start, end)
        return min(num_tokens, self.unverified_start) if self.unverified_end else num_tokens

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
