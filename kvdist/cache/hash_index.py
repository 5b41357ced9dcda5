"""From a block hash to the blocks that hold its content, for one group (S6, S22).

Owns:   the prefix-cache entries of one group.
Knows nothing of: reference counts, requests, groups beside its own.
Cost:   O(1) an entry; the batch forms run in C for each entry.
Source: the document's `cached_block_hash_to_block`. One map a group stands for the group id in the
        key; copies beyond the first sit apart, so that a lookup never meets a list.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from kvdist.cache.block import KVCacheBlock
from kvdist.ids import BlockHash


class BlockHashToBlockMap:
    """Several blocks may hold the same content; a lookup returns the one published longest."""

    __slots__ = ("copies", "oldest")

    def __init__(self) -> None:
        #: The block published longest, for each key.
        self.oldest: dict[BlockHash, KVCacheBlock] = {}
        #: All further blocks with that key, oldest first; only keys that have any.
        self.copies: dict[BlockHash, OrderedDict[KVCacheBlock, None]] = {}

    def get_longest_prefix(self, hashes: Sequence[BlockHash]) -> list[KVCacheBlock]:
        """Blocks of `hashes` from the first on, up to the first that nobody holds."""
        # `iter(f, None)` calls f until it returns None, here at the first miss.
        return list(iter(map(self.oldest.get, hashes).__next__, None))

    def get_each(self, hashes: Sequence[BlockHash]) -> list[KVCacheBlock | None]:
        """The block of each hash, or None."""
        return list(map(self.oldest.get, hashes))

    def insert(self, key: BlockHash, block: KVCacheBlock) -> bool:
        """Add one entry, known to be new. True if the key was unknown before."""
        first = self.oldest.setdefault(key, block)
        if first is not block:
            self.copies.setdefault(key, OrderedDict())[block] = None
        return first is block

    def insert_n(self, keys: Sequence[BlockHash], blocks: Sequence[KVCacheBlock]) -> None:
        """Add the entries `keys[i]` -> `blocks[i]`, all known to be new."""
        firsts = list(map(self.oldest.setdefault, keys, blocks))
        if firsts != blocks:
            for key, block, first in zip(keys, blocks, firsts, strict=True):
                if first is not block:
                    self.copies.setdefault(key, OrderedDict())[block] = None

    def pop(self, key: BlockHash, block: KVCacheBlock) -> bool:
        """Remove the entry `key` -> `block`, known to be there. True if it was the last copy."""
        copies = self.copies.get(key)
        if copies is None:
            del self.oldest[key]
            return True
        if self.oldest[key] is block:
            self.oldest[key], _ = copies.popitem(last=False)
        else:
            del copies[block]
        if not copies:
            del self.copies[key]
        return False

    def contains(self, key: BlockHash, block: KVCacheBlock) -> bool:
        """True if there is an entry `key` -> `block`."""
        return self.oldest.get(key) is block or block in self.copies.get(key, ())

    def clear(self) -> None:
        """Drop all entries."""
        self.oldest.clear()
        self.copies.clear()

    def __iter__(self) -> Iterator[tuple[BlockHash, KVCacheBlock]]:
        yield from self.oldest.items()
        for key, blocks in self.copies.items():
            for block in blocks:
                yield key, block

    def __len__(self) -> int:
        """Number of different keys."""
        return len(self.oldest)
