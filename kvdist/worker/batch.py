"""One call of the model: which tokens, and where their K/V are written and read (S25).

Owns:   nothing; what a call needs is made here once, for all its layers.
Knows nothing of: plans, models, sampling.
Units:  tokens. A *slot* is a token's place in a group, as vLLM numbers it: block * block size +
        place in the block. A *line* is one block and head of a layer.
Source: vLLM's `GPUModelRunner._prepare_inputs` (vllm/v1/worker/gpu_model_runner.py, 0.32).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from kvdist.ids import BlockId, GroupId
from kvdist.worker.attention import AttentionCall, GroupCall, LayerMemory, SingleTokens, Tile
from kvdist.worker.rows import Row
from kvdist.worker.tables import BlockTables, slot_mapping

#: A chunk reads in tiles of so many tokens: that bounds the mask, and what is masked in vain.
TILE: Final = 256


@dataclass(frozen=True, slots=True)
class Piece:
    """What one call computes of one sequence."""

    row: Row
    start: int
    num_tokens: int
    samples: bool

    @property
    def end(self) -> int:
        """The position after the last."""
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True)
class GroupGeometry:
    """How a group of attention layers lies in the pool."""

    block_size: int
    #: None: every earlier token is read.
    window: int | None
    num_heads: int
    #: Lines from a block to the next, those of other layers included.
    block_stride: int
    #: Its K/V are an encoder's, and there before the call.
    is_cross: bool = False

    def first_block(self, position: int) -> int:
        """The first block that the token at `position` reads."""
        first = 0 if self.window is None else max(0, position - self.window + 1)
        return first // self.block_size

    def lines(self, blocks: torch.Tensor) -> torch.Tensor:
        """`[..., blocks]` to the lines of all heads, flat: `[... * H * blocks]`."""
        heads = torch.arange(self.num_heads, device=blocks.device).unsqueeze(-1)
        return (blocks.long().unsqueeze(-2) * self.block_stride + heads).flatten()

    def places(self, slots: torch.Tensor) -> torch.Tensor:
        """Of each slot and head, where in the layer's `[n, 2 D]` view; flat, `[T * H]`."""
        size = self.block_size
        heads = torch.arange(self.num_heads, device=slots.device)
        lines = (slots // size * self.block_stride).unsqueeze(-1) + heads
        return (lines * size + (slots % size).unsqueeze(-1)).flatten()

    def mask(self, queries: torch.Tensor, keys: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """0 where a token at position `queries` reads the one at `keys`, else minus infinity."""
        unread = keys > queries
        if self.window is not None:
            unread |= keys <= queries - self.window
        mask = torch.zeros(unread.shape, dtype=dtype, device=unread.device)
        return mask.masked_fill_(unread, float("-inf"))


class Packing:
    """The tokens of some pieces, one after the other."""

    def __init__(self, pieces: Sequence[Piece], device: torch.device) -> None:
        counts = np.array([piece.num_tokens for piece in pieces])
        #: Of each piece, where its tokens begin in the call.
        self.begins = (np.cumsum(counts) - counts).tolist()
        self.pieces = pieces
        rows = np.repeat([piece.row.number for piece in pieces], counts)
        positions = np.concatenate([np.arange(piece.start, piece.end) for piece in pieces])
        tokens = np.concatenate([piece.row.tokens[piece.start : piece.end] for piece in pieces])
        #: `[T]` each.
        self.rows = torch.from_numpy(rows).to(device)
        self.positions = torch.from_numpy(positions).to(device)
        self.tokens = torch.from_numpy(tokens).to(device)
        #: Places of the tokens after which one is sampled.
        self.samples = torch.tensor(
            [
                begin + piece.num_tokens - 1
                for begin, piece in zip(self.begins, pieces, strict=True)
                if piece.samples
            ],
            dtype=torch.int64,
            device=device,
        )

    @property
    def all_single(self) -> bool:
        """True if it has one token of each sequence."""
        return len(self.pieces) == len(self.tokens)

    def by_encoder(self) -> Mapping[int, list[int]]:
        """Places of single tokens, by how many tokens of an encoder they read."""
        classes: dict[int, list[int]] = {}
        for begin, piece in zip(self.begins, self.pieces, strict=True):
            if piece.num_tokens == 1:
                classes.setdefault(piece.row.num_encoder_tokens, []).append(begin)
        return classes

    def chosen(self, places: list[int]) -> slice | torch.Tensor:
        """An index of these places: a slice if they are neighbours."""
        if len(places) == places[-1] - places[0] + 1:
            return slice(places[0], places[-1] + 1)
        return torch.tensor(places, device=self.positions.device)

    def tiles(self) -> Iterator[tuple[int, int, int, int]]:
        """Row, first and last + 1 position, place in the call, of at most `TILE` tokens each."""
        for begin, piece in zip(self.begins, self.pieces, strict=True):
            if piece.num_tokens == 1:
                continue
            for start in range(piece.start, piece.end, TILE):
                end = min(start + TILE, piece.end)
                yield piece.row.number, start, end, begin + start - piece.start

    def alike(self, geometry: GroupGeometry) -> Iterator[list[int]]:
        """Places of single tokens, by how many blocks they read: within a factor of two."""
        classes: dict[int, list[int]] = {}
        for begin, piece in zip(self.begins, self.pieces, strict=True):
            if piece.num_tokens == 1:
                first = geometry.first_block(piece.start)
                count = piece.start // geometry.block_size + 1 - first
                classes.setdefault(count.bit_length(), []).append(begin)
        yield from classes.values()


class CallBuilder:
    """Makes the metadata of calls, for one pool and one model."""

    def __init__(
        self,
        layers: Mapping[int, LayerMemory],
        groups: Mapping[GroupId, GroupGeometry],
        dtype: torch.dtype,
        cross: Mapping[int, LayerMemory] | None = None,
    ) -> None:
        self.layers = layers
        #: By the layer's index: where its K/V of the encoder are.
        self.cross = cross or {}
        self.groups = groups
        self._dtype = dtype

    def build(self, packing: Packing, tables: Sequence[torch.Tensor]) -> AttentionCall:
        """The metadata of one call; `tables` are what was committed for this step."""
        return AttentionCall(
            self.layers,
            self.cross,
            {
                group_id: self._group(geometry, packing, tables[group_id])
                for group_id, geometry in self.groups.items()
            },
        )

    def encoder_writes(self, memory: LayerMemory, table: torch.Tensor, num: int) -> torch.Tensor:
        """Where the K/V of an encoder's `num` tokens go in a sequence's blocks."""
        geometry = self.groups[memory.group_id]
        positions = torch.arange(num, device=table.device)
        rows = torch.zeros_like(positions)
        return geometry.places(slot_mapping(table[None], rows, positions, geometry.block_size))

    def begun_blocks(self, pieces: Sequence[Piece], tables: BlockTables) -> list[BlockId]:
        """Blocks of attention groups whose first token is among these pieces."""
        begun: list[BlockId] = []
        for group_id, geometry in self.groups.items():
            size, blocks = geometry.block_size, tables.groups[group_id].blocks
            for piece in pieces:
                first, last = -(-piece.start // size), (piece.end - 1) // size
                begun += blocks[piece.row.number, first : last + 1].tolist()
        return begun

    def _group(self, geometry: GroupGeometry, packing: Packing, table: torch.Tensor) -> GroupCall:
        if geometry.is_cross:
            return self._cross_group(geometry, packing, table)
        slots = slot_mapping(table, packing.rows, packing.positions, geometry.block_size)
        return GroupCall(
            geometry.places(slots),
            tuple(
                self._singles(geometry, packing, table, places)
                for places in packing.alike(geometry)
            ),
            tuple(self._tile(geometry, table, *tile) for tile in packing.tiles()),
        )

    def _cross_group(
        self, geometry: GroupGeometry, packing: Packing, table: torch.Tensor
    ) -> GroupCall:
        """Every token reads all of its encoder's."""
        singles, tiles = [], []
        for number, places in packing.by_encoder().items():
            chosen = packing.chosen(places)
            lines, mask = self._whole(geometry, table[packing.rows[chosen]], number)
            singles.append(SingleTokens(chosen, lines, mask.expand(len(places), 1, 1, -1)))
        for begin, piece in zip(packing.begins, packing.pieces, strict=True):
            if piece.num_tokens > 1:
                blocks = table[piece.row.number]
                lines, mask = self._whole(geometry, blocks, piece.row.num_encoder_tokens)
                tiles.append(Tile(begin, begin + piece.num_tokens, lines, mask))
        return GroupCall(None, tuple(singles), tuple(tiles))

    def _whole(
        self, geometry: GroupGeometry, blocks: torch.Tensor, num_tokens: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Lines of these tables as far as `num_tokens` reach, and the mask of their last block."""
        count = -(-num_tokens // geometry.block_size)
        keys = torch.arange(count * geometry.block_size, device=blocks.device)
        mask = torch.zeros(keys.shape, dtype=self._dtype, device=blocks.device)
        mask.masked_fill_(keys >= num_tokens, float("-inf"))
        return geometry.lines(blocks[..., :count]), mask[None, None, None]

    def _singles(
        self, geometry: GroupGeometry, packing: Packing, table: torch.Tensor, places: list[int]
    ) -> SingleTokens:
        chosen = packing.chosen(places)
        rows, positions = packing.rows[chosen], packing.positions[chosen].unsqueeze(-1)
        size, window = geometry.block_size, geometry.window
        first = torch.zeros_like(positions)
        if window is not None:
            first = (positions - window + 1).clamp(min=0) // size
        count = int((positions // size + 1 - first).max())
        columns = first + torch.arange(count, device=table.device)
        blocks = table[rows.unsqueeze(-1), columns.clamp(max=table.shape[1] - 1)]
        keys = first * size + torch.arange(count * size, device=table.device)
        mask = geometry.mask(positions, keys, self._dtype)
        return SingleTokens(chosen, geometry.lines(blocks), mask[:, None, None])

    def _tile(
        self, geometry: GroupGeometry, table: torch.Tensor, row: int, start: int, end: int, at: int
    ) -> Tile:
        size = geometry.block_size
        first, last = geometry.first_block(start), (end - 1) // size
        keys = torch.arange(first * size, (last + 1) * size, device=table.device)
        queries = torch.arange(start, end, device=table.device).unsqueeze(-1)
        return Tile(
            at,
            at + end - start,
            geometry.lines(table[row, first : last + 1]),
            geometry.mask(queries, keys, self._dtype)[None, None],
        )
