"""The blocks that nobody holds, in the order in which they will be reused (S20).

Owns:   the order of the free blocks, and `KVCacheBlock._place`.
Knows nothing of: hashes, requests, bytes, time.
Cost:   O(blocks passed in), amortised; `remove` is O(1) from the middle.
Source: the document's `FreeKVCacheBlockQueue`. Its linked list is two arrays here, because slices
        move blocks three to five times faster than links do (ADR-0004).

The front array is a stack, its end is reused first; the back array is read from `_head` on:

    next out                                                       last out
    _front[-1] ... _front[1] _front[0] | _back[_head] ... _back[-1]

A block in the front array knows its index there, and one taken from the middle leaves a hole
(None). A block in the back array only knows that it is there: `_gone` counts the entries that it
has left behind, always its oldest, since new ones come at the end. Dead entries of both kinds are
cleared away once they outnumber the blocks.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kvdist.cache.block import KVCacheBlock
from kvdist.errors import LocalMisuse

#: `_place` of a block in the back array; in the front array it is -1 - index, outside None.
_IN_BACK: Final = 0
#: Below this many dead entries an array is not worth closing up.
_SLACK = 256


class FreeKVCacheBlockQueue:
    """Free blocks, next to be reused first.

    Whoever puts a block in sees to it that it isn't in already (`BlockPool` does, by its count).

    >>> from kvdist.ids import BlockId
    >>> a, b, c, d = (KVCacheBlock(BlockId(i)) for i in range(4))
    >>> queue = FreeKVCacheBlockQueue([a, b, c])
    >>> queue.remove(b)                          # a prefix hit takes b from the middle
    >>> queue.prepend_n([d, b])                  # never-cached blocks go first
    >>> [block.block_id for block in queue.popleft_n(3)], len(queue)
    ([3, 1, 0], 1)
    """

    __slots__ = ("_back", "_dead", "_front", "_gone", "_head", "num_free_blocks")

    def __init__(self, blocks: Iterable[KVCacheBlock] = ()) -> None:
        self._front: list[KVCacheBlock | None] = []
        self._back: list[KVCacheBlock] = []
        self._head = 0
        #: How many of its oldest entries in the back array a block has left; only where not 0.
        self._gone: dict[KVCacheBlock, int] = {}
        #: Dead entries of both arrays.
        self._dead = 0
        self.num_free_blocks = 0
        self.append_n(list(blocks))

    def popleft(self) -> KVCacheBlock:
        """Remove and return the block to be reused next. Raises: LocalMisuse if there is none."""
        return self.popleft_n(1)[0]

    def popleft_n(self, count: int) -> list[KVCacheBlock]:
        """Remove and return the first `count` blocks, next to be reused first.

        Raises: LocalMisuse if there are fewer; nothing has changed then.
        """
        if not 0 <= count <= self.num_free_blocks:
            raise LocalMisuse(f"{count} blocks asked of {self.num_free_blocks} free ones")
        self.num_free_blocks -= count
        taken = self._pop_front(count) if self._front and count else []
        if missing := count - len(taken):
            taken += self._pop_back(missing)
        for block in taken:
            block._place = None
        return taken

    def remove(self, block: KVCacheBlock) -> None:
        """Take `block` out from wherever it stands. Raises: LocalMisuse if it isn't there."""
        if block not in self:
            raise LocalMisuse(f"block {block.block_id} is not in the free queue")
        self.remove_n((block,))

    def remove_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Take blocks out that the caller knows to be in the queue, each once."""
        gone = self._gone
        for block in blocks:
            place = block._place
            assert place is not None, f"block {block.block_id} is not in the free queue"
            if place == _IN_BACK:
                gone[block] = gone.get(block, 0) + 1
            else:
                self._front[-1 - place] = None
            block._place = None
        self._dead += len(blocks)
        self.num_free_blocks -= len(blocks)
        if self._dead > self.num_free_blocks + _SLACK:
            self._clear_away()

    def append(self, block: KVCacheBlock) -> None:
        """Put one block last."""
        self.append_n((block,))

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks last; the first of them will be reused first."""
        for block in blocks:
            block._place = _IN_BACK
        self._back += blocks
        self.num_free_blocks += len(blocks)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks first; the first of them will be reused first, before all others."""
        place = -1 - len(self._front)
        for block in reversed(blocks):
            block._place = place
            place -= 1
        self._front += reversed(blocks)
        self.num_free_blocks += len(blocks)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """All blocks of the queue, next to be reused first. O(blocks); changes nothing."""
        return list(self)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        for block in reversed(self._front):
            if block is not None:
                yield block
        yield from self._living(self._back[self._head :], dict(self._gone))

    def __len__(self) -> int:
        return self.num_free_blocks

    def __contains__(self, block: KVCacheBlock) -> bool:
        """True if `block` is in the queue. O(1)."""
        return block._place is not None

    def findings(self) -> Iterator[str]:
        """What the arrays, the places and the counts don't agree on. O(blocks); it always ends."""
        front, back = self._front, self._back
        if not 0 <= self._head <= len(back):
            yield f"the head is at {self._head} of {len(back)}"
            return
        for index, entry in enumerate(front):
            if entry is not None and entry._place != -1 - index:
                yield f"{entry!r} stands at {index} in the front and is placed at {entry._place}"
        gone = dict(self._gone)
        living = self._living(back[self._head :], gone)
        yield from (
            f"{block!r} is not placed in the back" for block in living if block._place != _IN_BACK
        )
        if gone:
            yield f"{len(gone)} blocks left entries behind that aren't there"
        num_front = sum(entry is not None for entry in front)
        if self.num_free_blocks != num_front + len(living):
            yield f"{num_front} + {len(living)} free blocks, {self.num_free_blocks} counted"
        if self._dead != len(front) - num_front + len(back) - self._head - len(living):
            yield f"{self._dead} dead entries counted, others are there"

    def _living(
        self, entries: list[KVCacheBlock], gone: dict[KVCacheBlock, int]
    ) -> list[KVCacheBlock]:
        """The entries of the back array, in order, less those counted in `gone`; counts down."""
        if not gone:
            return entries
        living = []
        for block in entries:
            count = gone.get(block)
            if count is None:
                living.append(block)
            elif count == 1:
                del gone[block]
            else:
                gone[block] = count - 1
        return living

    def _pop_front(self, count: int) -> list[KVCacheBlock]:
        """Take up to `count` blocks off the stack."""
        front = self._front
        taken: list[KVCacheBlock] = []
        while front and (missing := count - len(taken)):
            part = front[-missing:]
            del front[-missing:]
            living = [block for block in reversed(part) if block is not None]
            self._dead -= len(part) - len(living)
            taken += living
        return taken

    def _pop_back(self, count: int) -> list[KVCacheBlock]:
        """Take `count` blocks, known to be there, from the head of the back array."""
        taken: list[KVCacheBlock] = []
        while missing := count - len(taken):
            part = self._back[self._head : self._head + missing]
            living = self._living(part, self._gone)
            self._head += len(part)
            self._dead -= len(part) - len(living)
            taken += living
        if self._head > _SLACK and 2 * self._head > len(self._back):
            del self._back[: self._head]
            self._head = 0
        return taken

    def _clear_away(self) -> None:
        """Rebuild both arrays without dead entries."""
        self._back = self._living(self._back[self._head :], self._gone)
        self._head = self._dead = 0
        front = [block for block in self._front if block is not None]
        self._front = []
        self.num_free_blocks = len(self._back)
        self.prepend_n(front[::-1])
