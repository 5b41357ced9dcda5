"""The memory of one rank as real bytes, which real links can move.

Owns:   nothing: the bytes are given.
Knows nothing of: links.
Format: of each block, `[slot]` numbers of 8 bytes; one head.
"""

from array import array
from collections.abc import Iterable, MutableSequence
from typing import Any

from kvdist.sim.memory import POISON, Memory

#: Of one cell.
CELL_BYTES = 8


class ByteMemory(Memory):
    """Like `Memory`, over `num_blocks * num_slots * CELL_BYTES` bytes.

    >>> memory = ByteMemory(3, 2, memoryview(bytearray(48)))
    >>> memory.cells(1, 0)[0] = 99
    >>> memory.copy(1, 2)
    >>> list(memory.cells(2, 0)) == [99, POISON]
    True
    """

    def __init__(self, num_blocks: int, num_slots: int, data: memoryview) -> None:
        self.heads = (0,)
        self.num_slots = num_slots
        cells = data.cast("B").cast("q")
        self._cells = [
            _Cells(cells[begin : begin + num_slots])
            for begin in range(0, num_blocks * num_slots, num_slots)
        ]
        self.poison(range(num_blocks))

    def cells(self, block_id: int, head: int) -> MutableSequence[int]:
        """See `Memory.cells`."""
        return self._cells[block_id]

    def copy(self, source: int, target: int) -> None:
        """See `Memory.copy`."""
        self._cells[target][:] = self._cells[source]

    def poison(self, block_ids: Iterable[int]) -> None:
        """See `Memory.poison`."""
        for block_id in block_ids:
            self._cells[block_id][:] = [POISON] * self.num_slots


class _Cells(MutableSequence[int]):
    """A memoryview that takes slices of anything."""

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def __getitem__(self, index: Any) -> Any:
        return self._view[index].tolist() if isinstance(index, slice) else self._view[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._view[index] = array("q", value) if isinstance(index, slice) else value

    def __delitem__(self, index: Any) -> None:
        raise TypeError("a block has the slots that it has")

    def insert(self, index: int, value: int) -> None:
        """Never."""
        raise TypeError("a block has the slots that it has")

    def __len__(self) -> int:
        return len(self._view)
