"""The regions of one side that the other may read: their numbers, and how much that is. No I/O.

Owns:   which numbers are in use; a number is never used twice in a link.
Knows nothing of: memory, frames, who reads.
Units:  bytes.
Life:   shared, closed by its owner, forgotten once its reader has let go; until then it counts.
"""

from dataclasses import dataclass, field
from typing import Final

#: Regions that one side may share at a time.
MAX_REGIONS: Final = 4096


@dataclass(slots=True)
class Ledger:
    """One for each side of a link; the reader sets the limits."""

    max_region_bytes: int
    max_shared_bytes: int
    #: The highest number so far.
    last: int = 0
    num_bytes: int = 0
    #: By number, those that aren't forgotten.
    sizes: dict[int, int] = field(default_factory=dict)
    #: Of those, the ones that their owner has closed.
    closed: set[int] = field(default_factory=set)

    def complaint(self, size: int) -> str:
        """Why a region of this size can't be shared; empty if it can."""
        if not 0 < size <= self.max_region_bytes:
            return f"a region of {size} bytes, at most {self.max_region_bytes}"
        if self.num_bytes + size > self.max_shared_bytes:
            return f"regions of {self.num_bytes + size} bytes, at most {self.max_shared_bytes}"
        if len(self.sizes) == MAX_REGIONS:
            return f"more than {MAX_REGIONS} regions at a time"
        return ""

    def share(self, size: int) -> int:
        """The number of one more region, about which there is no complaint."""
        self.last += 1
        self.sizes[self.last] = size
        self.num_bytes += size
        return self.last

    def close(self, number: int) -> bool:
        """Its owner has closed it; False if it isn't shared, or closed already."""
        if number not in self.sizes or number in self.closed:
            return False
        self.closed.add(number)
        return True

    def forget(self, number: int) -> bool:
        """Its reader has let go of it; False if it isn't closed."""
        if number not in self.closed:
            return False
        self.closed.discard(number)
        self.num_bytes -= self.sizes.pop(number)
        return True
