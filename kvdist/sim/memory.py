"""The memory of one rank: a cell for each block, head and token slot.

Owns:   the cells.
Knows nothing of: groups, tables, what a cell means.
Units:  a cell is a number; a slot is a token's place in a block.

One pool serves all groups, as blocks do; a group with smaller blocks leaves slots unused, and a
state lies in slot 0. Whoever reads a block for a peer may do so in two halves: `cells` is the
block's own list, no copy.
"""

from collections.abc import Iterable, MutableSequence, Sequence
from typing import Final

from kvdist.cache import BlockPool

#: What a block holds that nobody should read.
POISON: Final = -0xDEAD


class Memory:
    """`heads` are those of the whole model that this rank has.

    >>> memory = Memory(num_blocks=3, num_slots=2, heads=[4, 5])
    >>> memory.cells(1, 5)[0] = 99
    >>> memory.copy(1, 2)
    >>> memory.cells(2, 5) == [99, POISON], memory.cells(2, 4) == [POISON, POISON]
    (True, True)
    """

    def __init__(self, num_blocks: int, num_slots: int, heads: Sequence[int] = (0,)) -> None:
        self.heads = tuple(heads)
        self.num_slots = num_slots
        self._blocks = [
            {head: [POISON] * num_slots for head in self.heads} for _ in range(num_blocks)
        ]

    def cells(self, block_id: int, head: int) -> MutableSequence[int]:
        """The cells themselves, one a slot: who writes into them writes into the memory."""
        return self._blocks[block_id][head]

    def copy(self, source: int, target: int) -> None:
        """All cells of a block."""
        for head, cells in self._blocks[source].items():
            self._blocks[target][head][:] = cells

    def poison(self, block_ids: Iterable[int]) -> None:
        """Whoever reads these from now on gets nonsense."""
        for block_id in block_ids:
            for cells in self._blocks[block_id].values():
                cells[:] = [POISON] * self.num_slots


class Poisoner:
    """Poisons blocks when they are taken for new content, and when they are freed without a key.

    Design rule: at check level 2 never a free block that can still be found. O(pool) a call.
    """

    def __init__(self, pool: BlockPool, memories: Iterable[Memory]) -> None:
        self._pool = pool
        self._memories = tuple(memories)
        self._generations = [block.generation for block in pool.blocks]

    def __call__(self) -> None:
        """To be called after each call of a scheduler, before anybody writes."""
        generations = [block.generation for block in self._pool.blocks]
        worthless = [
            block.block_id
            for block, before in zip(self._pool.blocks, self._generations, strict=True)
            if block.generation != before or (block.ref_cnt == 0 and block.block_hash is None)
        ]
        self._generations = generations
        for memory in self._memories:
            memory.poison(worthless)
