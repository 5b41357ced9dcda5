"""Is there room for one more? Blocks that admitted sequences still need are nobody else's.

Owns:   how many blocks a sequence can need at most.
Knows nothing of: queues, tokens of a step, transfers.
Units:  blocks, and tokens by name.
Source: ADR-0013: prompt, lookahead and one block of growth. vLLM reserves
        for prefills and loads in flight (vllm/v1/core/sched/scheduler.py, 0.32), but not for slots
        that come later.

A load that is admitted may never need a block that only another load can give back: loads are not
preempted, so two of them that wait for each other would wait for ever. Decodes grow beyond what was
reserved and can be preempted; so whoever is admitted gets what it needs in the end.
"""

from collections.abc import Iterable

from kvdist.cache import (
    CacheHit,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    KVCacheManager,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from kvdist.sched.budget import SchedulerConfig
from kvdist.sched.sequence import Sequence


class Admission:
    """Counts blocks group by group, from above."""

    def __init__(self, manager: KVCacheManager, settings: SchedulerConfig) -> None:
        config = manager.config
        self._manager = manager
        self._config = config
        self._lookahead = settings.num_lookahead_tokens
        self._growth = max(group.kv_cache_spec.block_size for group in config.kv_cache_groups)
        #: Tokens that a window may have behind it: those of steps in flight and of the next.
        self._in_flight = settings.max_num_batched_tokens * settings.max_steps_in_flight
        self._specs = [group.kv_cache_spec for group in config.kv_cache_groups]

    @property
    def longest(self) -> int:
        """Blocks that one longest sequence can need, of an encoder whose length is known all; as if
        somebody read along, so that windows keep everything.
        """
        slots = self._config.max_model_len
        return sum(_whole(spec, slots) for spec in self._specs)

    # -- what is needed --------------------------------------------------------------------------

    def fits_alone(self, sequence: Sequence) -> bool:
        """True if the longest that it can get fits into a pool that nobody else uses."""
        most = sum(self._needed(sequence, sequence.max_len + self._lookahead))
        return most < self._config.num_blocks

    def missing(self, sequence: Sequence) -> int:
        """Blocks that an admitted sequence still needs to begin to decode, and one of growth."""
        tables = self._manager.get_block_ids(sequence.request_id)
        needed = self._needed(sequence, self._slots(sequence))
        return sum(
            max(0, need - sum(map(bool, table))) for need, table in zip(needed, tables, strict=True)
        )

    def needed(self, sequence: Sequence) -> int:
        """Blocks that one who begins needs until it decodes, and one of growth; its hit is not
        taken off.
        """
        return sum(self._needed(sequence, self._slots(sequence)))

    def fits(
        self, sequence: Sequence, hit: CacheHit, admitted: Iterable[Sequence], watermark: int
    ) -> bool:
        """True if `sequence` can have all that, beside what those in `admitted` still need."""
        free = self._manager.block_pool.get_num_free_blocks() - watermark
        for need, found in zip(
            self._needed(sequence, self._slots(sequence)), hit.blocks.blocks, strict=True
        ):
            shared = sum(bool(block.ref_cnt and block.block_id) for block in found)
            free -= max(0, need - shared)
        for other in admitted:
            if free < 0:
                break
            free -= self.missing(other)
        return free >= 0

    def _slots(self, sequence: Sequence) -> int:
        wanted = sequence.request.num_tokens + self._growth
        return min(wanted, sequence.max_len) + self._lookahead

    def _needed(self, sequence: Sequence, num_slots: int) -> list[int]:
        slots = min(num_slots, self._config.max_model_len)
        if sequence.hold_whole_prompt:
            return [_whole(spec, slots) for spec in self._specs]
        encoder = sequence.num_encoder_tokens
        return [self._in_group(spec, encoder, slots) for spec in self._specs]

    def _in_group(self, spec: KVCacheSpec, num_encoder_tokens: int, num_slots: int) -> int:
        """The most blocks at a time."""
        size = spec.block_size
        everything = -(-num_slots // size)
        beyond = self._in_flight + self._lookahead
        match spec:
            case SlidingWindowSpec():
                # One more, because a window need not begin where a block does.
                return min(everything, -(-(spec.sliding_window - 1 + beyond) // size) + 1)
            case ChunkedLocalAttentionSpec():
                return min(everything, -(-(spec.attention_chunk_size + beyond) // size) + 1)
            case MambaSpec(mamba_cache_mode="align"):
                # The state that is read, the one that is written, a private copy.
                states = 2 + self._config.enable_partial_hits
                return min(everything, states) + spec.num_speculative_blocks
            case MambaSpec():
                return everything + spec.num_speculative_blocks
            case CrossAttentionSpec():
                return -(-num_encoder_tokens // size)
            case _:
                return everything


def _whole(spec: KVCacheSpec, num_slots: int) -> int:
    """Blocks of a sequence of which everything is kept."""
    if isinstance(spec, CrossAttentionSpec) and spec.num_encoder_tokens:
        num_slots = spec.num_encoder_tokens
    return -(-num_slots // spec.block_size)
