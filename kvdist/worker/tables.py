"""Block tables: a CPU mirror that changes freely, and one commit a step (S24).

Owns:   for each KV cache group a table of rows, and which rows are in use: always the first ones.
Knows nothing of: sequences, tokens, K/V.
Units:  blocks; ids are int32. A *slot* is a token's place in a group: block * block size + place.
Source: vLLM's `MultiGroupBlockTable` and `InputBatch.condense` (vllm/v1/worker, 0.32); slots are
        those of its `BlockTable.compute_slot_mapping` and `map_to_kernel_blocks`.

Rows in use are 0 .. num_rows - 1. When one is dropped the last takes its place and its own old
place is cleared, so no kernel can reach what a dropped row named: a commit ends at `num_rows`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from kvdist.ids import BlockId

_FIRST_SIZE = 8


class BlockTable:
    """One group's table. Unused entries are 0, the null block."""

    def __init__(self) -> None:
        self.blocks = np.zeros((_FIRST_SIZE, _FIRST_SIZE), np.int32)
        self.lengths = np.zeros(_FIRST_SIZE, np.int64)

    def append(self, row: int, block_ids: Sequence[BlockId]) -> None:
        """The row's list goes on with `block_ids`."""
        begin = int(self.lengths[row])
        end = begin + len(block_ids)
        if end > self.blocks.shape[1]:
            self._grow(self.blocks.shape[0], max(end, 2 * self.blocks.shape[1]))
        self.blocks[row, begin:end] = block_ids
        self.lengths[row] = end

    def of_row(self, row: int) -> npt.NDArray[np.int32]:
        """The row's list."""
        return self.blocks[row, : self.lengths[row]]

    def clear(self, row: int) -> None:
        """The row is empty."""
        self.blocks[row, : self.lengths[row]] = 0
        self.lengths[row] = 0

    def move(self, source: int, target: int) -> None:
        """`target` is what `source` was, and `source` is empty."""
        self.clear(target)
        length = self.lengths[source]
        self.blocks[target, :length] = self.blocks[source, :length]
        self.lengths[target] = length
        self.clear(source)

    def reserve(self, num_rows: int) -> None:
        """There are at least so many rows."""
        if num_rows > self.blocks.shape[0]:
            self._grow(max(num_rows, 2 * self.blocks.shape[0]), self.blocks.shape[1])

    def _grow(self, num_rows: int, width: int) -> None:
        rows, columns = self.blocks.shape
        grown = np.zeros((num_rows, width), np.int32)
        grown[:rows, :columns] = self.blocks
        self.blocks = grown
        self.lengths = np.concatenate([self.lengths, np.zeros(num_rows - rows, np.int64)])

    def commit(self, num_rows: int, device: torch.device) -> torch.Tensor:
        """A copy of the first `num_rows` rows on the device, as wide as the longest, int32."""
        width = int(self.lengths[:num_rows].max(initial=0))
        return torch.from_numpy(self.blocks[:num_rows, :width].copy()).to(device)


class BlockTables:
    """The tables of all groups, which have the same rows.

    >>> tables = BlockTables(1)
    >>> first, second = tables.add([[1, 2]]), tables.add([[3]])
    >>> tables.drop(first)                       # the last row moves into its place
    1
    >>> tables.num_rows, tables.groups[0].blocks[:2, :2].tolist()
    (1, [[3, 0], [0, 0]])
    """

    def __init__(self, num_groups: int) -> None:
        self.groups = tuple(BlockTable() for _ in range(num_groups))
        self.num_rows = 0

    def add(self, block_ids: Sequence[Sequence[BlockId]]) -> int:
        """Returns the number of a new row with these lists, one a group."""
        row = self.num_rows
        self.num_rows += 1
        for table in self.groups:
            table.reserve(self.num_rows)
        self.append(row, block_ids)
        return row

    def append(self, row: int, block_ids: Sequence[Sequence[BlockId]]) -> None:
        """The row's lists go on with these."""
        for table, ids in zip(self.groups, block_ids, strict=True):
            if ids:
                table.append(row, ids)

    def drop(self, row: int) -> int:
        """The row is gone; returns the row that moved into its place (`row`: none had to)."""
        assert 0 <= row < self.num_rows, f"row {row} of {self.num_rows}"
        self.num_rows = last = self.num_rows - 1
        for table in self.groups:
            if row == last:
                table.clear(row)
            else:
                table.move(last, row)
        return last

    def commit(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Copies of the rows in use on the device, for the kernels of one step."""
        return tuple(table.commit(self.num_rows, device) for table in self.groups)


# -- slots -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interleave:
    """How the tokens of a sequence are dealt to the ranks that share its context.

    A block of the table is `num_ranks` times as long as a rank's own, and `run` tokens in a row
    stay together: of 2 ranks with runs of 2, positions 0, 1, 4, 5 ... are rank 0's.
    """

    num_ranks: int = 1
    rank: int = 0
    run: int = 1


_ALONE: Final = Interleave()


def slot_mapping(
    table: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    block_size: int,
    ranks: Interleave = _ALONE,
) -> torch.Tensor:
    """The slot of each position of each row, -1 for what another rank keeps (S25).

    `block_size` is a rank's own; runs divide it.

    >>> table = torch.tensor([[7, 3], [2, 0]], dtype=torch.int32)
    >>> slot_mapping(table, torch.tensor([0, 0, 1]), torch.tensor([0, 5, 2]), 4)
    tensor([28, 13, 10])
    >>> slot_mapping(table, torch.tensor([0] * 4), torch.arange(4), 4, Interleave(2, rank=1))
    tensor([-1, 28, -1, 29])
    """
    length = block_size * ranks.num_ranks
    starts = table[rows, positions // length].long() * block_size
    within = positions % length
    if ranks.num_ranks == 1:
        return starts + within
    turn, in_run = within // ranks.run, within % ranks.run
    slots = starts + turn // ranks.num_ranks * ranks.run + in_run
    return torch.where(turn % ranks.num_ranks == ranks.rank, slots, -1)


def kernel_blocks(table: torch.Tensor, num_parts: int) -> torch.Tensor:
    """The same table for a kernel whose blocks are so many times smaller: the slots are the same.

    >>> kernel_blocks(torch.tensor([[7, 3]], dtype=torch.int32), 2)
    tensor([[14, 15,  6,  7]], dtype=torch.int32)
    """
    parts = torch.arange(num_parts, dtype=table.dtype, device=table.device)
    return (table.unsqueeze(-1) * num_parts + parts).flatten(-2)
