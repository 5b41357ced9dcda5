"""What the block manager counts: tokens looked up and hit, blocks evicted.

Owns:   nothing; `KVCacheManager` writes the numbers.
Knows nothing of: usage and preemptions, which are other things ("what one watches").
Units:  tokens, unless named otherwise.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class PrefixCacheStats:
    """Each admission counts once, when its blocks are allocated; a lookup alone never does.

    >>> PrefixCacheStats(requests=2, queries=100, hits=25).hit_rate
    0.25
    """

    requests: int = 0
    queries: int = 0
    hits: int = 0
    #: The same for requests that come back after a preemption, and not counted above.
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the looked-up tokens that were hit, 0 .. 1; 0 before the first lookup."""
        return self.hits / self.queries if self.queries else 0.0

    def record(self, queries: int, hits: int, *, preempted: bool) -> None:
        """Count one admission."""
        if preempted:
            self.preempted_requests += 1
            self.preempted_queries += queries
            self.preempted_hits += hits
        else:
            self.requests += 1
            self.queries += queries
            self.hits += hits
