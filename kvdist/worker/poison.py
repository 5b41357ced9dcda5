"""At check level 2: whoever reads a place of the pool that nobody has written is told.

Owns:   the pattern of such places.
Knows nothing of: the scheduler; which blocks are free.
Units:  bytes, tokens.

A block that a plan gives a sequence for new content is filled with the pattern, and so is the whole
pool at the beginning. After a call, what its tokens have read must not have it. The pattern is no
NaN, though that would show by itself: behind the last token of a block are places that are read
and masked, and no weight is small enough for a NaN.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import torch

from kvdist.cache import CrossAttentionSpec
from kvdist.errors import InvariantViolation
from kvdist.ids import BlockId, GroupId
from kvdist.sched.plan import StepPlan
from kvdist.worker.batch import CallBuilder, Piece
from kvdist.worker.pool import KVPool
from kvdist.worker.tables import slot_mapping

#: As float32 and bfloat16 3156, as float16 5.3: nothing overflows where it is masked.
PATTERN: Final = 0x45


class Poison:
    """One pool's. What an encoder left isn't looked at: it is written whole, before all else."""

    def __init__(self, pool: KVPool, builder: CallBuilder) -> None:
        self._pool, self._builder = pool, builder
        self._specs = [group.kv_cache_spec for group in pool.layout.kv_cache_groups]
        pool.region.fill_(PATTERN)

    def spread(self, plan: StepPlan) -> None:
        """Blocks for what this plan's sequences will compute hold the pattern."""
        computed = {turn.request_id: turn.num_computed_tokens for turn in plan.scheduled}
        fresh: list[BlockId] = []
        for group_id, spec in enumerate(self._specs):
            if isinstance(spec, CrossAttentionSpec):
                continue
            for new in plan.new_sequences:
                num_kept = -(-computed.get(new.request_id, 0) // spec.block_size)
                fresh += new.block_ids[group_id][num_kept:]
            for turn in plan.scheduled:
                fresh += turn.new_block_ids[group_id]
        self._pool.fill([block_id for block_id in fresh if block_id], PATTERN)

    def check_states(self, block_ids: Iterable[BlockId]) -> None:
        """States are about to be read there. Raises: InvariantViolation."""
        for block_id in block_ids:
            if bool((self._pool.region[block_id] == PATTERN).all()):
                raise InvariantViolation(
                    f"the state in block {block_id} is read, and was never left"
                )

    def check(self, pieces: Sequence[Piece], tables: Sequence[torch.Tensor]) -> None:
        """All that was read before these pieces was written. Raises: InvariantViolation."""
        for piece in pieces:
            for group_id in self._builder.groups:
                self._check(piece, group_id, tables[group_id])

    def _check(self, piece: Piece, group_id: GroupId, table: torch.Tensor) -> None:
        geometry = self._builder.groups[group_id]
        if geometry.is_cross or not piece.start:
            return
        first = 0 if geometry.window is None else max(0, piece.start - geometry.window + 1)
        positions = torch.arange(first, piece.start, device=table.device)
        rows = torch.full_like(positions, piece.row.number)
        places = geometry.places(slot_mapping(table, rows, positions, geometry.block_size))
        for index, layer in self._builder.layers.items():
            if layer.group_id != group_id:
                continue
            found = layer.tokens[places].view(torch.uint8)
            unwritten = (found == PATTERN).all(-1).nonzero().flatten()
            if len(unwritten):
                position = first + int(unwritten[0]) // geometry.num_heads
                block = int(table[piece.row.number, position // geometry.block_size])
                raise InvariantViolation(
                    f"layer {index} reads token {position} of a sequence in block {block}, "
                    "where nobody has written it"
                )
