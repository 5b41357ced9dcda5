"""Why a block is held: the kinds of hold, and the ledger over them (I1, I7).

Owns:   the holds that are not a request's own (those are its block tables).
Knows nothing of: the free queue, hashes, what a lease or a pull is.
Cost:   O(blocks passed in); the ledger is O(blocks under such holds).
Source: design rule "life of a page is not life of a request" (ADR-0005).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from kvdist.cache.block import KVCacheBlock
from kvdist.errors import DoubleFree, LocalMisuse


class HoldKind(IntEnum):
    """Kinds of hold, weakest first. Every hold is one reference (I1)."""

    REQUEST = 1  #: a block table of a live request names it
    LEASE = 2  #: promised to a peer
    PULL = 3  #: a transfer reads or writes it
    COPY = 4  #: source or target of a block copy that has not run yet
    QUARANTINE = 5  #: bytes of an ended transfer may still land in it


def check_kind(kind: object) -> None:
    """Raises: LocalMisuse unless `kind` is one that is held apart from block tables."""
    if not isinstance(kind, HoldKind) or kind is HoldKind.REQUEST:
        raise LocalMisuse(f"{kind!r} is no kind of hold beside block tables")


@dataclass(frozen=True, slots=True)
class Ledger:
    """Non-null blocks, each counted once under its strongest hold; they add up to the pool - 1.

    Strength: quarantine, then copy or pull, lease, request, free. A block that is both copied and
    pulled counts as copied.
    """

    quarantine: int
    copy: int
    pull: int
    lease: int
    request: int
    free: int

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return self.quarantine + self.copy + self.pull + self.lease + self.request + self.free


class HoldTable:
    """How often each block is held by kinds other than REQUEST; sparse."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[KVCacheBlock, dict[HoldKind, int]] = {}

    def add(self, blocks: Iterable[KVCacheBlock], kind: HoldKind) -> None:
        """Note one more hold of `kind` on each block."""
        for block in blocks:
            kinds = self._counts.setdefault(block, {})
            kinds[kind] = kinds.get(kind, 0) + 1

    def remove(self, blocks: Iterable[KVCacheBlock], kind: HoldKind) -> None:
        """Note one hold of `kind` less on each block, once for each time it is listed.

        Raises: DoubleFree if a block has fewer such holds; nothing has changed then.
        """
        blocks = list(blocks)
        for block, ended in Counter(blocks).items():
            held = self.count(block, kind)
            if held < ended:
                raise DoubleFree(
                    f"block {block.block_id}: {ended} {kind.name} holds ended, {held} are there"
                )
        for block in blocks:
            kinds = self._counts[block]
            kinds[kind] -= 1
            if not kinds[kind]:
                del kinds[kind]
            if not kinds:
                del self._counts[block]

    def count(self, block: KVCacheBlock, kind: HoldKind) -> int:
        """How many holds of `kind` are on `block`."""
        return self._counts.get(block, {}).get(kind, 0)

    def total(self, block: KVCacheBlock) -> int:
        """How many holds of all kinds but REQUEST are on `block`."""
        return sum(self._counts.get(block, {}).values())

    def strongest(self, kind: HoldKind) -> int:
        """How many blocks have `kind` as their strongest hold."""
        return sum(max(kinds) is kind for kinds in self._counts.values())

    def __iter__(self) -> Iterator[KVCacheBlock]:
        return iter(self._counts)

    def __len__(self) -> int:
        """How many blocks are under such holds."""
        return len(self._counts)
