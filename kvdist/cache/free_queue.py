"""The blocks that nobody holds, in the order in which they will be reused (S20).

Owns:   the order of the free blocks, and `KVCacheBlock._place`.
Knows nothing of: hashes, requests, bytes, time.
Cost:   O(blocks passed in), amortised; `remove` is O(1) from the middle.
Source: the document's `FreeKVCacheBlockQueue`. Its linked list is two arrays here, because slices
        move blocks three to five times faster than links do (ADR-0004).

The front array is a stack, its end is reused first; the back array is read from `_head` on:

    next out                                                       last out
    _front[-1] ... _front[1] _front[0] | _back[_head] ... _back[-1]

A block knows its place: `_offset + i` in the back array, `-1 - i` in the front one. Taking one
from the middle leaves a hole (None); holes are closed once they outnumber the blocks.
"""

from collections.abc import Iterable, Iterator, Sequence

from kvdist.cache.block import KVCacheBlock
from kvdist.errors import LocalMisuse

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

    __slots__ = (
        "_back",
        "_back_holes",
        "_front",
        "_front_holes",
        "_head",
        "_offset",
        "num_free_blocks",
    )

    def __init__(self, blocks: Iterable[KVCacheBlock] = ()) -> None:
        self._front: list[KVCacheBlock | None] = []
        self._back: list[KVCacheBlock | None] = []
        self._front_holes = self._back_holes = 0
        self._head = 0
        self._offset = 0
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
        return taken

    def remove(self, block: KVCacheBlock) -> None:
        """Take `block` out from wherever it stands. Raises: LocalMisuse if it isn't there."""
        if block not in self:
            raise LocalMisuse(f"block {block.block_id} is not in the free queue")
        self.remove_n((block,))

    def remove_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Take blocks out that the caller knows to be in the queue, each once."""
        back, offset = self._back, self._offset
        for block in blocks:
            place = block._place
            if place >= 0:
                back[place - offset] = None
                self._back_holes += 1
            else:
                self._front[-1 - place] = None
                self._front_holes += 1
        self.num_free_blocks -= len(blocks)
        if self._back_holes + self._front_holes > self.num_free_blocks + _SLACK:
            self._close_up()

    def append(self, block: KVCacheBlock) -> None:
        """Put one block last."""
        self.append_n((block,))

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks last; the first of them will be reused first."""
        for place, block in enumerate(blocks, self._offset + len(self._back)):
            block._place = place
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
        for index in range(self._head, len(self._back)):
            block = self._back[index]
            if block is not None:
                yield block

    def __len__(self) -> int:
        return self.num_free_blocks

    def __contains__(self, block: KVCacheBlock) -> bool:
        """True if `block` stands where it says it does. O(1)."""
        if block._place < 0:
            index, array, first = -1 - block._place, self._front, 0
        else:
            index, array, first = block._place - self._offset, self._back, self._head
        return first <= index < len(array) and array[index] is block

    def _pop_front(self, count: int) -> list[KVCacheBlock]:
        """Take up to `count` blocks off the stack."""
        front = self._front
        taken: list[KVCacheBlock] = []
        while front and (missing := count - len(taken)):
            part = front[-missing:]
            del front[-missing:]
            live = [block for block in reversed(part) if block is not None]
            self._front_holes -= len(part) - len(live)
            taken += live
        return taken

    def _pop_back(self, count: int) -> list[KVCacheBlock]:
        """Take `count` blocks, known to be there, from the head of the back array."""
        taken: list[KVCacheBlock] = []
        while missing := count - len(taken):
            part = self._back[self._head : self._head + missing]
            live = [block for block in part if block is not None]
            self._head += len(part)
            self._back_holes -= len(part) - len(live)
            taken += live
        if self._head > _SLACK and 2 * self._head > len(self._back):
            del self._back[: self._head]
            self._offset += self._head
            self._head = 0
        return taken

    def _close_up(self) -> None:
        """Rebuild both arrays without holes; places are counted anew."""
        front = [block for block in self._front if block is not None]
        back = [block for block in self._back[self._head :] if block is not None]
        self._front, self._back = [], []
        self._front_holes = self._back_holes = self._head = self._offset = self.num_free_blocks = 0
        self.prepend_n(front[::-1])
        self.append_n(back)
