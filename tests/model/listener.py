"""One who hears the events and nothing else, and so must know what can be found."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvdist.cache import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent
from kvdist.ids import BlockHash


@dataclass
class Listener:
    """`known` are the (group, key) pairs that the events so far leave findable."""

    known: set[tuple[int, BlockHash]] = field(default_factory=set)
    next_seq: int = 0

    def hear(self, events: Iterable[CacheEvent]) -> None:
        for event in events:
            assert event.seq == self.next_seq, f"event {event.seq} after {self.next_seq - 1}"
            self.next_seq += 1
            match event:
                case AllBlocksCleared():
                    self.known.clear()
                case BlockStored():
                    keys = {(int(event.group_id), key) for key in event.block_hashes}
                    assert len(keys) == len(event.block_hashes) > 0
                    assert len(event.token_ids) == event.block_size * len(keys)
                    assert len(event.extra_keys) == len(keys)
                    assert not keys & self.known, "stored twice"
                    self.known |= keys
                case BlockRemoved():
                    keys = {(int(event.group_id), key) for key in event.block_hashes}
                    assert keys <= self.known, "removed without having been there"
                    self.known -= keys
