"""What each kind of layer reads, needs and publishes (S4, S13 and the traces' README, 5.4-5.9).

Owns:   nothing: these are the rules, a function each.
Knows nothing of: pools, tables, requests.
"""

from dataclasses import dataclass

from kvdist.cache import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)


def ceil(a: int, b: int) -> int:
    return (a + b - 1) // b


@dataclass
class Group:
    """One group of a configuration."""

    config: KVCacheConfig
    index: int

    def __post_init__(self) -> None:
        self.spec: KVCacheSpec = self.config.kv_cache_groups[self.index].kv_cache_spec
        self.size = self.spec.block_size
        marked = [
            group.kv_cache_spec
            for i, group in enumerate(self.config.kv_cache_groups)
            if i in self.config.eagle_group_ids
        ]
        #: Gives up the last matched block. States are never given up.
        self.drops = self.spec in marked and not self.is_state

    @property
    def is_full(self) -> bool:
        return isinstance(self.spec, FullAttentionSpec)

    @property
    def is_state(self) -> bool:
        return isinstance(self.spec, MambaSpec)

    @property
    def is_cross(self) -> bool:
        return isinstance(self.spec, CrossAttentionSpec)

    @property
    def scratch(self) -> int:
        return self.spec.num_speculative_blocks if isinstance(self.spec, MambaSpec) else 0

    @property
    def is_aligned_state(self) -> bool:
        return isinstance(self.spec, MambaSpec) and self.spec.mamba_cache_mode == "align"

    def first_read(self, position: int) -> int:
        """The first token that the token at `position` (and so every later one) reads."""
        match self.spec:
            case SlidingWindowSpec(sliding_window=window):
                return max(0, position - (window - 1))
            case ChunkedLocalAttentionSpec(attention_chunk_size=chunk):
                return position - position % chunk
            case MambaSpec():
                return max(0, position - 1)  # the state after the token before it
            case _:
                return 0

    def dead_blocks(self, position: int) -> int:
        """Leading blocks that neither the token at `position` nor a later one reads."""
        return self.first_read(position) // self.size

    def needed_for(self, length: int) -> range:
        """Blocks that must be there to go on after `length` tokens, a multiple of the block."""
        end = length // self.size
        match self.spec:
            case MambaSpec():
                return range(end - 1, end)
            case _:
                # An eagle group must match one block more, which it then gives up.
                return range(self.dead_blocks(length), end + self.drops)

    # -- what is worth publishing --------------------------------------------------------------

    def is_useful(self, block: int, boundaries: list[int]) -> bool:
        """Whether some lookup could use this block, as far as `boundaries` and settings tell."""
        retention = self.config.retention_interval
        unit = self.config.scheduler_block_size if len(self.config.kv_cache_groups) > 1 else 0
        unit = unit or self.size
        if not isinstance(self.spec, SlidingWindowSpec | MambaSpec):
            return True
        interval = unit if retention is None else retention
        if self.is_state and retention is None:
            return True
        if interval and len(self._useful_at(interval)) * self.size >= interval:
            return True  # nothing lies between two of them, and the very first is kept too
        if interval and any(
            block in self._useful_at(position)
            for position in range(interval, (block + 2) * self.size + interval + 1, interval)
        ):
            return True
        if retention is None:
            return False
        return any(block in self._useful_at(boundary // unit * unit) for boundary in boundaries)

    def _useful_at(self, position: int) -> range:
        """The blocks that a hit which ends at `position` needs."""
        end = position // self.size
        if not isinstance(self.spec, SlidingWindowSpec):
            return range(end - 1, end)
        count = ceil(self.spec.sliding_window - 1, self.size)
        return range(end - count, end + self.drops)
