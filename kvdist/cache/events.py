"""What the block manager tells the world: content stored, removed, all cleared.

Owns:   the events nobody has taken yet, and their sequence numbers.
Knows nothing of: who listens, encodings, sockets.
Units:  `block_size` and `token_ids` are tokens.
Source: the fields of vLLM's KV events (vllm/distributed/kv_events.py, 0.32), so that its
        prefix-aware routers can read them. A copy of content that is already there is no event:
        stored says a key appeared, removed that its last copy went.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kvdist.cache.extra_keys import ExtraKey
from kvdist.ids import BlockHash, GroupId


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Consecutive blocks of one request became findable."""

    seq: int
    group_id: GroupId
    block_hashes: tuple[BlockHash, ...]
    #: Key of what stands right before the first of them; None at the start of a sequence.
    parent_block_hash: BlockHash | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_name: str | None
    #: For each block the keys that are its own, or None.
    extra_keys: tuple[tuple[ExtraKey, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """The last block with each of these keys is gone."""

    seq: int
    group_id: GroupId
    block_hashes: tuple[BlockHash, ...]


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Nothing is findable any more."""

    seq: int


CacheEvent = BlockStored | BlockRemoved | AllBlocksCleared


class EventLog:
    """Events in order, numbered from 0 without gaps.

    It keeps at most `limit` events; the oldest go first, and a listener that sees a gap in the
    numbers has to start over (see `BlockPool.cached_blocks`).
    """

    __slots__ = ("_events", "next_seq")

    def __init__(self, limit: int = 100_000) -> None:
        self._events: deque[CacheEvent] = deque(maxlen=limit)
        self.next_seq = 0

    def take(self) -> list[CacheEvent]:
        """Return and forget all events since the last call."""
        events = list(self._events)
        self._events.clear()
        return events

    def stored(
        self,
        group_id: GroupId,
        block_hashes: Sequence[BlockHash],
        parent: BlockHash | None,
        token_ids: Sequence[int],
        block_size: int,
        lora_name: str | None,
        extra_keys: Sequence[tuple[ExtraKey, ...] | None],
    ) -> None:
        """Say that keys appeared."""
        self._events.append(
            BlockStored(
                self._number(),
                group_id,
                tuple(block_hashes),
                parent,
                tuple(token_ids),
                block_size,
                lora_name,
                tuple(extra_keys),
            )
        )

    def removed(self, group_id: GroupId, block_hashes: Sequence[BlockHash]) -> None:
        """Say that the last copies of keys went."""
        self._events.append(BlockRemoved(self._number(), group_id, tuple(block_hashes)))

    def cleared(self) -> None:
        """Say that all keys went."""
        self._events.append(AllBlocksCleared(self._number()))

    def _number(self) -> int:
        self.next_seq += 1
        return self.next_seq - 1
