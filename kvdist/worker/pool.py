"""The memory of all blocks, and each layer's view of it (S28).

Owns:   one region of bytes, `[block, buffer, page]`.
Knows nothing of: block tables, sequences, attention.
Units:  a page is the bytes of one block in one layer; views count elements.
Source: the layout is the design's: one block is one span over all layers of its group, and within
        a layer it is `[head, token, k | v]`, so that a rank's heads are one span too.

Groups share the region: block 7 belongs to one group at a time, whose i-th layer has page i of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvdist.cache import BlockCopy
from kvdist.cache.grouping import KVCacheLayout
from kvdist.errors import ConfigError
from kvdist.ids import BlockId, GroupId


@dataclass(frozen=True, slots=True)
class Page:
    """Where a layer's page is: its group, and its place in every block of that group."""

    group_id: GroupId
    buffer: int


class KVPool:
    """Blocks 0 .. num_blocks - 1; 0 is the null block, which is written but never counts.

    `memory`: whoever else may read or write it has it, too; else the pool has its own.
    """

    def __init__(
        self,
        layout: KVCacheLayout,
        num_blocks: int,
        device: torch.device,
        memory: memoryview | None = None,
    ) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        if memory is not None:
            self.region = torch.frombuffer(memory, dtype=torch.uint8).view(num_blocks, -1)
        else:
            self.region = _zeros(num_blocks, layout.bytes_per_block, device)
        buffer_of = {name: i for i, names in enumerate(layout.buffers) for name in names}
        self.pages = {
            name: Page(GroupId(group_id), buffer_of[name])
            for group_id, group in enumerate(layout.kv_cache_groups)
            for name in group.layer_names
        }

    @property
    def memory(self) -> memoryview:
        """All bytes, of a pool in this machine's memory."""
        return memoryview(self.region.view(-1).numpy())  # type: ignore[arg-type]

    def elements(self, layer: str, dtype: torch.dtype) -> torch.Tensor:
        """All memory from the layer's first page on, flat: block b begins at b * `block_stride`."""
        begin = self.pages[layer].buffer * self.layout.page_size_bytes
        return self.region.view(-1)[begin:].view(dtype)

    def block_stride(self, dtype: torch.dtype) -> int:
        """Elements from a block to the next."""
        return self.layout.bytes_per_block // dtype.itemsize

    def states(
        self, layer: str, dtype: torch.dtype, shape: Sequence[int], offset: int = 0
    ) -> torch.Tensor:
        """A view `[block, *shape]` of what begins `offset` bytes into the layer's pages.

        Page and offset are multiples of the dtype's size.
        """
        flat = self.elements(layer, dtype)
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * size)
        return flat.as_strided(
            (self.num_blocks, *shape),
            (self.block_stride(dtype), *strides),
            flat.storage_offset() + offset // dtype.itemsize,
        )

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Each target has what its source had, in order."""
        for copy in copies:
            self.region[copy.target] = self.region[copy.source]

    def clear(self, block_ids: Sequence[BlockId]) -> None:
        """These blocks are all zeros: what another kind of layer left there could be no number."""
        self.fill(block_ids, 0)

    def fill(self, block_ids: Sequence[BlockId], byte: int) -> None:
        """Each byte of these blocks is `byte`."""
        if block_ids:
            self.region[torch.tensor(block_ids, device=self.region.device)] = byte


def _zeros(num_blocks: int, bytes_per_block: int, device: torch.device) -> torch.Tensor:
    try:
        return torch.zeros(num_blocks, bytes_per_block, dtype=torch.uint8, device=device)
    except RuntimeError as error:
        size = num_blocks * bytes_per_block
        raise ConfigError(
            f"{num_blocks} blocks take {size / 1e9:.1f} GB, which {device} doesn't have: "
            "use fewer blocks, a shorter context or a smaller dtype"
        ) from error
