"""Loads under way, and the holds on blocks that others read or write.

Owns:   which sequence waits for which bytes, and every hold that the scheduler sets or ends.
Knows nothing of: queues, steps, how bytes travel.
Source: rules T2, T8 and T20 of the design; `finished_recving` and its zombies in vLLM 0.32
        (vllm/v1/core/sched/scheduler.py).

    admitted --> PULL --Loaded-----> published, the hold ends
                      --LoadFailed-> QUARANTINE --LoadQuiet--> the hold ends
    finished --> LEASE --BlocksReturned--> the hold ends

A load outlives its sequence: whoever is aborted while bytes land leaves its blocks here until they
have. What comes late, twice or for nobody says so by a None or False, and changes nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvdist.cache import CacheHit, HoldKind, KVCacheManager
from kvdist.errors import LocalMisuse
from kvdist.ids import BlockId, RequestId
from kvdist.sched.sequence import Sequence


@dataclass(slots=True)
class Load:
    """One load."""

    sequence: Sequence
    #: Blocks that bytes land in.
    block_ids: list[BlockId]
    #: Tokens that are there when it is done: local and external ones.
    num_tokens: int
    #: What it adopted locally turned out to be worthless.
    spoilt: bool = False


class Loads:
    """By request id."""

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        self._loads: dict[RequestId, Load] = {}

    def begin(self, sequence: Sequence, hit: CacheHit, num_external_tokens: int) -> None:
        """Its blocks are taken; those behind the hit are held until the bytes are there."""
        tables = self._manager.get_block_ids(sequence.request_id)
        external = [
            block_id
            for table, found in zip(tables, hit.blocks.blocks, strict=True)
            for block_id in table[len(found) :]
            if block_id
        ]
        self._manager.hold_blocks(external, HoldKind.PULL)
        num_tokens = hit.num_tokens + num_external_tokens
        self._loads[sequence.request_id] = Load(sequence, external, num_tokens)

    def loaded(self, request_id: RequestId) -> Load | None:
        """The bytes are there, and worth publishing, even if what is before them is not (T8)."""
        load = self._loads.pop(request_id, None)
        if load is None:
            return None
        request = load.sequence.request
        load.num_tokens = min(load.num_tokens, request.num_tokens - 1)
        self._manager.cache_blocks(request, load.num_tokens)
        self._manager.end_hold(load.block_ids, HoldKind.PULL)
        return load

    def failed(self, request_id: RequestId) -> Load | None:
        """The bytes are worthless, and may still be landing."""
        load = self._loads.pop(request_id, None)
        if load is not None:
            self._manager.change_hold(load.block_ids, HoldKind.PULL, HoldKind.QUARANTINE)
        return load

    def quiet(self, block_ids: Iterable[BlockId]) -> bool:
        """No byte lands in these blocks any more; False if they were not in quarantine."""
        return self._end_hold(block_ids, HoldKind.QUARANTINE)

    def lend(self, block_ids: Iterable[BlockId]) -> None:
        """A peer may read these until they are returned."""
        self._manager.hold_blocks(block_ids, HoldKind.LEASE)

    def returned(self, block_ids: Iterable[BlockId]) -> bool:
        """No peer reads these any more; False if they were not lent."""
        return self._end_hold(block_ids, HoldKind.LEASE)

    def spoil(self, block_ids: set[BlockId]) -> None:
        """These blocks hold nothing of worth: so it is with loads that adopted one of them."""
        for request_id, load in self._loads.items():
            tables = self._manager.get_block_ids(request_id)
            load.spoilt |= any(not block_ids.isdisjoint(table) for table in tables)

    def _end_hold(self, block_ids: Iterable[BlockId], kind: HoldKind) -> bool:
        try:
            self._manager.end_hold(block_ids, kind)
        except LocalMisuse:  # more than are held, or no block of ours: a message gone astray
            return False
        return True

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._loads

    def sequences(self) -> Iterator[Sequence]:
        """Those that wait for their bytes; not those that have ended meanwhile."""
        for load in self._loads.values():
            if not load.sequence.status.finished:
                yield load.sequence

    def __len__(self) -> int:
        return len(self._loads)
