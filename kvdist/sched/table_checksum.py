"""Do the worker's block tables say what the node's do (I5): a checksum of what a step uses.

Owns:   nothing.
Knows nothing of: who keeps tables, and as what.
Units:  table entries; a checksum is CRC-32 over their ids as int32, sequence by sequence in the
        order of the plan, group by group.

Only entries that the step reads or writes count: what has left a window is null in the node's
tables, and the worker doesn't hear of it.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from zlib import crc32

from kvdist.cache import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from kvdist.ids import BlockId, RequestId
from kvdist.sched.plan import ScheduledSequence


def used_entries(spec: KVCacheSpec, turn: ScheduledSequence) -> slice:
    """Entries of a group's table that computing `turn` reads or writes.

    >>> turn = ScheduledSequence("r", num_computed_tokens=40, num_tokens=8, samples=True,
    ...                          new_block_ids=((),))
    >>> used_entries(SlidingWindowSpec(block_size=4, sliding_window=10), turn)
    slice(7, 12, None)
    """
    start = turn.num_computed_tokens
    end = start + turn.num_tokens + len(turn.draft_token_ids)
    match spec:
        case CrossAttentionSpec():
            return slice(None)
        case SlidingWindowSpec(sliding_window=window):
            first = max(0, start - window + 1)
        case ChunkedLocalAttentionSpec(attention_chunk_size=size):
            first = start - start % size
        case MambaSpec():
            first = max(0, start - 1)
        case _:
            first = 0
    return slice(first // spec.block_size, (end - 1) // spec.block_size + 1)


def table_checksum(
    specs: Sequence[KVCacheSpec],
    scheduled: Iterable[ScheduledSequence],
    tables: Callable[[RequestId], Sequence[Sequence[BlockId]]],
) -> int:
    """What a worker should say, if the tables of each sequence are `tables`."""
    checksum = 0
    for turn in scheduled:
        for spec, table in zip(specs, tables(turn.request_id), strict=True):
            checksum = crc32(array("i", table[used_entries(spec, turn)]).tobytes(), checksum)
    return checksum
