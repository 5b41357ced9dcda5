"""Recurrent states: from their blocks into a model's call, and back.

Owns:   nothing; views of the pool, and the cache objects that live as long as one call.
Knows nothing of: plans, attention; what a state means.
Units:  blocks hold one state each, that after the last token computed so far in them.
Source: transformers' `Cache` of layers (5.19): modules read a layer's `conv_states[0]` and
        `recurrent_states[0]` and leave the next ones there.

A state is read from the block of the last token before a piece, and written to the block of the
piece's last token: so the state at a block's end stays, and can be shared.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

from kvdist.errors import ConfigError
from kvdist.ids import BlockId, GroupId
from kvdist.worker.batch import Piece
from kvdist.worker.pool import KVPool
from kvdist.worker.rows import Row
from kvdist.worker.tables import BlockTables

#: Parts begin at multiples of so many bytes, which any dtype can.
_ALIGNMENT: Final = 16


@dataclass(frozen=True, slots=True)
class StatePart:
    """One tensor of a layer's state."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Of one sequence, up to where the next part can begin."""
        size = self.dtype.itemsize
        for length in self.shape:
            size *= length
        return -(-size // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True, slots=True)
class StateLayer:
    """What one layer keeps of a whole sequence."""

    index: int
    conv: StatePart
    conv_kernel_size: int
    #: None: it has a convolution only.
    recurrent: StatePart | None

    @property
    def name(self) -> str:
        """Its name among the layers with a cache."""
        return f"layers.{self.index}.state"

    @property
    def num_bytes(self) -> int:
        """Of one sequence."""
        return self.conv.num_bytes + (self.recurrent.num_bytes if self.recurrent else 0)


@torch.inference_mode()
def state_layers(network: PreTrainedModel, cache_keyword: str) -> tuple[StateLayer, ...]:
    """What layers leave after one token. Raises: ConfigError if it is nothing known."""
    output = network(
        input_ids=torch.zeros(1, 1, dtype=torch.int64, device=network.device), use_cache=True
    )
    found = []
    for index, layer in enumerate(output[cache_keyword].layers):
        if not isinstance(layer, LinearAttentionCacheLayerMixin):
            continue
        conv, recurrent = layer.conv_states[0], layer.recurrent_states[0]
        if conv is None and recurrent is None:
            continue
        if layer.number_of_states != 1 or conv is None:
            raise ConfigError(f"layer {index} has other states than one convolution and recurrence")
        found.append(
            StateLayer(
                index,
                _part(conv),
                layer.conv_kernel_size[0],
                None if recurrent is None else _part(recurrent),
            )
        )
    return tuple(found)


def _part(state: torch.Tensor) -> StatePart:
    return StatePart(tuple(state.shape[1:]), state.dtype)


class PassesThrough(CacheLayerMixin):  # type: ignore[misc]
    """A layer that attends: its K/V are in the pool, and pass through here."""

    is_sliding = False

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> Any:
        """What came."""
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Nobody makes a mask."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Positions come with the call."""
        return 0

    def get_max_length(self) -> int:
        """None."""
        return -1


class _Both(LinearAttentionLayer, PassesThrough):  # type: ignore[misc]
    """A layer that attends and has a state."""

    def __init__(self) -> None:
        PassesThrough.__init__(self)
        LinearAttentionLayer.__init__(self)


@dataclass(frozen=True, slots=True)
class _Memory:
    """Views of one layer's blocks."""

    layer: StateLayer
    group_id: GroupId
    #: `[block, *shape]` each.
    conv: torch.Tensor
    recurrent: torch.Tensor | None

    def load(self, into: Any, blocks: torch.Tensor) -> None:
        """`into` goes on from the states in these blocks."""
        into.conv_states[0] = self.conv[blocks]
        into.is_conv_states_initialized[0] = True
        into.conv_kernel_size[0] = self.layer.conv_kernel_size
        if self.recurrent is not None:
            into.recurrent_states[0] = self.recurrent[blocks]
            into.is_recurrent_states_initialized[0] = True
        into.has_previous_state[0] = True

    def store(self, source: Any, blocks: torch.Tensor) -> None:
        """These blocks have the states that a call left in `source`."""
        self.conv[blocks] = source.conv_states[0]
        if self.recurrent is not None:
            self.recurrent[blocks] = source.recurrent_states[0]


def _memory(layer: StateLayer, pool: KVPool) -> _Memory:
    conv, recurrent = layer.conv, layer.recurrent
    return _Memory(
        layer,
        pool.pages[layer.name].group_id,
        pool.states(layer.name, conv.dtype, conv.shape),
        pool.states(layer.name, recurrent.dtype, recurrent.shape, conv.num_bytes)
        if recurrent is not None
        else None,
    )


class States:
    """The states of all layers, in one pool."""

    def __init__(self, layers: Sequence[StateLayer], num_layers: int, pool: KVPool) -> None:
        self._device = pool.region.device
        self._num_layers = num_layers
        self._memories = {layer.index: _memory(layer, pool) for layer in layers}
        self._block_sizes = {
            memory.group_id: pool.layout.kv_cache_groups[memory.group_id].kv_cache_spec.block_size
            for memory in self._memories.values()
        }
        self._attending = {
            index for index in range(num_layers) if f"layers.{index}.attention" in pool.pages
        }

    def calls(self, pieces: Sequence[Piece], tables: BlockTables) -> Iterator[list[Piece]]:
        """What can go into one call, in order: one chunk, or single tokens that go on.

        A call ends before a piece that reads what the call writes.
        """
        together: list[Piece] = []
        written: set[BlockId] = set()
        for piece in pieces:
            alone = piece.num_tokens > 1 or not piece.start
            if together and (
                alone or not written.isdisjoint(self._blocks(piece.row, piece.start - 1, tables))
            ):
                yield together
                together, written = [], set()
            if alone:
                yield [piece]
            else:
                together.append(piece)
                written.update(self._blocks(piece.row, piece.end - 1, tables))
        if together:
            yield together

    def _blocks(self, row: Row, position: int, tables: BlockTables) -> list[BlockId]:
        """Where the state after the token at `position` is, in each group."""
        return [
            BlockId(int(tables.groups[group_id].blocks[row.number, position // size]))
            for group_id, size in self._block_sizes.items()
        ]

    def sources(self, pieces: Sequence[Piece], tables: BlockTables) -> Iterator[BlockId]:
        """Where the states are that `load` reads."""
        for piece in pieces:
            if piece.start:
                yield from self._blocks(piece.row, piece.start - 1, tables)

    def load(self, pieces: Sequence[Piece], tables: BlockTables) -> Cache:
        """The states before the first token of each piece, as a model's call takes them."""
        goes_on = pieces[0].start > 0
        sources = self._by_group(pieces, [piece.start - 1 for piece in pieces], tables)
        layers: list[Any] = []
        for index in range(self._num_layers):
            memory = self._memories.get(index)
            if memory is None:
                layers.append(PassesThrough())
                continue
            layer = _Both() if index in self._attending else LinearAttentionLayer()
            if goes_on:
                memory.load(layer, sources[memory.group_id])
            layers.append(layer)
        return Cache(layers=layers)

    def store(self, cache: Cache, pieces: Sequence[Piece], tables: BlockTables) -> None:
        """Each piece's block has the state after its last token."""
        targets = self._by_group(pieces, [piece.end - 1 for piece in pieces], tables)
        for index, memory in self._memories.items():
            memory.store(cache.layers[index], targets[memory.group_id])

    def _by_group(
        self, pieces: Sequence[Piece], positions: Sequence[int], tables: BlockTables
    ) -> dict[GroupId, torch.Tensor]:
        """The blocks of `_blocks`, of all pieces, for each group."""
        rows = [piece.row.number for piece in pieces]
        return {
            group_id: torch.from_numpy(
                tables.groups[group_id].blocks[rows, np.array(positions) // size]
            ).to(self._device)
            for group_id, size in self._block_sizes.items()
        }
