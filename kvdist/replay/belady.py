"""Belady's optimum: the most hits that any order of eviction can have, known afterwards.

Owns:   nothing.
Knows nothing of: requests, prefixes, the block manager.
Cost:   O(n log n) for n references.
Source: L. A. Belady, A study of replacement algorithms for a virtual-storage computer, IBM
        Systems Journal 5 (2), 1966.

What it assumes:

- References come one after the other; only the block of the moment has to be there, so a request
  never holds its earlier blocks against eviction.
- Every block that is missing is brought in when it is referenced (no bypass): one goes for it if
  all places are full, the one whose next reference is farthest away.
- A block counts as hit whenever it is there, also after a gap in its request's prefix.

So it bounds what a pool of as many blocks can hit: the pool holds more at once, keeps some contents
twice, and counts hits in prefixes only.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from kvdist.errors import ConfigError


def most_hits(references: Sequence[int], num_blocks: int | None) -> int:
    """How many of `references` a cache of `num_blocks` can hit; None: a cache without end.

    Raises: ConfigError for a cache of less than one block.

    >>> most_hits([1, 2, 3, 1, 2, 3], 2), most_hits([1, 2, 3, 1, 2, 3], None)
    (2, 3)
    """
    if num_blocks is None:
        return len(references) - len(set(references))
    if num_blocks < 1:
        raise ConfigError(f"a cache of {num_blocks} blocks")
    next_uses = _next_uses(references)
    hits = 0
    cached: set[int] = set()
    #: Cached blocks that are never referenced again.
    finished: list[int] = []
    #: Next uses of the other cached blocks, negated: the farthest comes first. Uses that have
    #: passed stay at the far end, behind all that are to come.
    waiting: list[int] = []
    for block, next_use in zip(references, next_uses, strict=True):
        if block in cached:
            hits += 1
        else:
            if len(cached) == num_blocks:
                cached.remove(finished.pop() if finished else references[-heappop(waiting)])
            cached.add(block)
        if next_use is None:
            finished.append(block)
        else:
            heappush(waiting, -next_use)
    return hits


def _next_uses(references: Sequence[int]) -> list[int | None]:
    """For each reference the index of the next one to the same block."""
    next_uses: list[int | None] = [None] * len(references)
    seen: dict[int, int] = {}
    for index in range(len(references) - 1, -1, -1):
        next_uses[index] = seen.get(references[index])
        seen[references[index]] = index
    return next_uses
