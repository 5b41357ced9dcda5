"""The blocks of a host that isn't ours: free ones, counts of users, hashes.

Owns:   who uses which block.
Knows nothing of: requests, transfers, kvdist's block manager.
"""

from collections import deque
from collections.abc import Callable, Iterable

from kvdist.ids import BlockHash, BlockId


class Blocks:
    """Block 0 is the null block. `on_taken` hears of blocks whose old content is gone."""

    def __init__(self, num_blocks: int, on_taken: Callable[[list[BlockId]], None]) -> None:
        self._free = deque(BlockId(i) for i in range(1, num_blocks))
        self._users = [0] * num_blocks
        self._hash_of: dict[BlockId, BlockHash] = {}
        self._by_hash: dict[BlockHash, BlockId] = {}
        self._on_taken = on_taken
        self.num_blocks = num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[BlockId]:
        """Blocks for new content, in one user's hands."""
        taken = [self._free.popleft() for _ in range(count)]
        for block in taken:
            assert self._users[block] == 0
            self._users[block] = 1
            if (name := self._hash_of.pop(block, None)) is not None:
                del self._by_hash[name]
        self._on_taken(taken)
        return taken

    def hit(self, hashes: Iterable[BlockHash]) -> list[BlockId]:
        """The cached blocks of the longest prefix."""
        found = []
        for name in hashes:
            if (block := self._by_hash.get(name)) is None:
                break
            found.append(block)
        return found

    def use(self, blocks: Iterable[BlockId]) -> None:
        """One user more for cached blocks."""
        for block in blocks:
            if not self._users[block]:
                self._free.remove(block)
            self._users[block] += 1

    def cache(self, blocks: Iterable[BlockId], hashes: Iterable[BlockHash]) -> None:
        """From now on they can be hit."""
        for block, name in zip(blocks, hashes, strict=False):
            assert self._users[block], "who publishes a block holds it"
            if name not in self._by_hash and block not in self._hash_of:
                self._by_hash[name], self._hash_of[block] = block, name

    def free(self, blocks: Iterable[BlockId]) -> None:
        """One user less; null blocks are nobody's."""
        for block in blocks:
            if block:
                assert self._users[block], f"block {block} is freed twice"
                self._users[block] -= 1
                if not self._users[block]:
                    self._free.append(block)
