"""From one request to many groups: the hit that all agree on, and allocation over all (S3, S14).

Owns:   the managers of all groups and the pool they share.
Knows nothing of: the scheduler, when to refuse.
Source: the document's `KVCacheCoordinator`; the shrinking of a candidate as vLLM 0.32
        (vllm/v1/core/kv_cache_coordinator.py).

`KVCacheCoordinator` itself serves without prefix caching; unitary is one group, hybrid several.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvdist.cache.block import KVCacheBlock
from kvdist.cache.block_pool import BlockPool
from kvdist.cache.managers import make_manager
from kvdist.cache.managers.base import GroupHit, SingleTypeKVCacheManager, cdiv
from kvdist.cache.request import Request
from kvdist.cache.spec import FullAttentionSpec, KVCacheConfig, KVCacheSpec, MambaSpec
from kvdist.cache.token_space import TokenSpace
from kvdist.ids import BlockHash, GroupId, RequestId

#: Blocks for each group.
PerGroup = tuple[Sequence[KVCacheBlock], ...]


class CommonHit(NamedTuple):
    """A prefix at whose end every group can resume."""

    blocks: PerGroup
    num_tokens: int
    #: How far the longest hit of a group went when that is further, else 0.
    junction: int


class KVCacheCoordinator:
    """All groups of one request, without prefix caching."""

    def __init__(self, config: KVCacheConfig, pool: BlockPool) -> None:
        self.config = config
        self.pool = pool
        self.managers: tuple[SingleTypeKVCacheManager, ...] = tuple(
            make_manager(config, GroupId(i), pool) for i in range(len(config.kv_cache_groups))
        )
        self.no_blocks: PerGroup = tuple(() for _ in self.managers)
        self._recycling = tuple(manager for manager in self.managers if manager.recycles)

    # -- lookup --------------------------------------------------------------------------------

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_length: int
    ) -> CommonHit:
        """The longest prefix of at most `max_length` tokens that all groups can resume at."""
        return CommonHit(self.no_blocks, 0, 0)

    def get_num_cacheable_tokens(self, num_tokens: int, manager: SingleTypeKVCacheManager) -> int:
        """How many of the first `num_tokens` can be of use to a later lookup in this group."""
        return num_tokens

    # -- allocation ----------------------------------------------------------------------------

    def owns_blocks(self, request_id: RequestId) -> bool:
        """True if some table of the request has entries."""
        return any(manager.req_to_blocks.get(request_id) for manager in self.managers)

    def is_tracked(self, request_id: RequestId) -> bool:
        """True if the request has adopted a hit or published blocks."""
        return any(request_id in manager.num_cached_block for manager in self.managers)

    def get_num_blocks_to_allocate(
        self, space: TokenSpace, hit_blocks: PerGroup, apply_admission_cap: bool = False
    ) -> int:
        """Blocks that the allocation takes out of the free queue, over all groups (S12)."""
        num_blocks = 0
        for manager, blocks in zip(self.managers, hit_blocks, strict=True):
            num_blocks += manager.get_num_blocks_to_allocate(space, blocks, apply_admission_cap)
        return num_blocks

    def get_num_blocks_taken(self, space: TokenSpace, hit_blocks: PerGroup) -> int:
        """Blocks that really leave the free queue, also where prediction follows vLLM's count."""
        return sum(
            manager.get_num_blocks_taken(space, blocks)
            for manager, blocks in zip(self.managers, hit_blocks, strict=True)
        )

    def allocate_new_computed_blocks(self, space: TokenSpace, hit_blocks: PerGroup) -> None:
        """Adopt the hits of all groups; only then take blocks for external tokens (S14)."""
        for manager, blocks in zip(self.managers, hit_blocks, strict=True):
            manager.add_local_computed_blocks(space, blocks)
        if space.total > space.local:
            for manager in self.managers:
                manager.allocate_external_computed_blocks(space)

    def allocate_new_blocks(self, space: TokenSpace) -> tuple[list[KVCacheBlock], ...]:
        """Take blocks for new and lookahead tokens, group by group; returns the new entries."""
        return tuple([manager.allocate_new_blocks(space) for manager in self.managers])

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Publish the full blocks within the first `num_tokens` of the request."""
        boundaries = self._replay_boundaries(request)
        for manager in self.managers:
            cacheable = self.get_num_cacheable_tokens(num_tokens, manager)
            manager.cache_blocks(request, cacheable, boundaries)

    def _replay_boundaries(self, request: Request) -> Sequence[int]:
        """Where a later request with the same prompt, or a longer one, resumes (tokens)."""
        if self.config.retention_interval is None:
            return ()
        num_prompt, unit = request.num_prompt_tokens, self.config.scheduler_block_size
        if not self.config.eagle_group_ids:
            return (num_prompt - 1,)
        return [max(n // unit * unit - unit, 0) for n in (num_prompt - 1, num_prompt)]

    # -- giving back ---------------------------------------------------------------------------

    def remove_skipped_blocks(
        self, request_id: RequestId, num_processed_tokens: int, last_step: int
    ) -> None:
        """Give back what no later step reads, in all groups (S13), once `last_step` is over."""
        for manager in self._recycling:
            manager.remove_skipped_blocks(request_id, num_processed_tokens, last_step)

    def pop_blocks_for_free(self, request_id: RequestId) -> list[list[KVCacheBlock]]:
        """Forget the request; its blocks, still referenced, group by group in order of reuse."""
        return [manager.pop_blocks_for_free(request_id) for manager in self.managers]


class UnitaryKVCacheCoordinator(KVCacheCoordinator):
    """One group."""

    def __init__(self, config: KVCacheConfig, pool: BlockPool) -> None:
        super().__init__(config, pool)
        self.manager = self.managers[0]
        self.manager.use_eagle = bool(config.eagle_group_ids)

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_length: int
    ) -> CommonHit:
        """The group's own longest hit."""
        manager = self.manager
        blocks, num_tokens = manager.find_longest_cache_hit(
            block_hashes, max_length, (manager.index,), manager.use_eagle
        )
        return CommonHit(tuple(blocks), num_tokens, 0)


@dataclass(slots=True)
class _SpecGroup:
    """Groups with one spec: a hit counts only where all of them have the block."""

    spec: KVCacheSpec
    managers: list[SingleTypeKVCacheManager] = field(default_factory=list)
    use_eagle: bool = False
    #: Tokens that a lookup may match beyond the candidate because it drops them again.
    eagle_margin: int = 0

    @property
    def is_full_attention(self) -> bool:
        return isinstance(self.spec, FullAttentionSpec)

    def find(self, hashes: Sequence[BlockHash], max_length: int, drop: bool) -> GroupHit:
        indexes = [manager.index for manager in self.managers]
        return self.managers[0].find_longest_cache_hit(hashes, max_length, indexes, drop)


class HybridKVCacheCoordinator(KVCacheCoordinator):
    """Several groups that share one pool."""

    def __init__(self, config: KVCacheConfig, pool: BlockPool) -> None:
        super().__init__(config, pool)
        self.partial_hits = config.enable_partial_hits and self._can_hit_partially()
        if self.partial_hits:
            for manager in self.managers:
                manager.alignment = config.hash_block_size
        self.spec_groups = self._group_by_spec()

    def _can_hit_partially(self) -> bool:
        """A state group has blocks larger than a hash, and all other groups can follow."""
        unit = self.config.hash_block_size
        specs = [group.kv_cache_spec for group in self.config.kv_cache_groups]
        return any(isinstance(s, MambaSpec) and s.block_size > unit for s in specs) and all(
            m.supports_partial_hits or m.block_size == unit for m in self.managers
        )

    def _group_by_spec(self) -> list[_SpecGroup]:
        """Full attention first: its hit bounds the others'."""
        by_spec: dict[KVCacheSpec, _SpecGroup] = {}
        for i, manager in enumerate(self.managers):
            spec = self.config.kv_cache_groups[i].kv_cache_spec
            group = by_spec.setdefault(spec, _SpecGroup(spec))
            group.managers.append(manager)
            group.use_eagle |= i in self.config.eagle_group_ids
        for group in by_spec.values():
            for manager in group.managers:
                manager.use_eagle = group.use_eagle
            # States are never dropped: draft models have none.
            if not isinstance(group.spec, MambaSpec):
                unit = self.config.hash_block_size
                finer = self.partial_hits and group.managers[0].supports_partial_hits
                group.eagle_margin = unit if finer else group.spec.block_size
        return sorted(by_spec.values(), key=lambda group: not group.is_full_attention)

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_length: int
    ) -> CommonHit:
        """Shrink a candidate until every group can resume at it (S29).

        Each spec either accepts the candidate or lowers it. An eagle spec drops its last unit once
        for each candidate: when another lowers it, the drop has to be made again.
        """
        hashed_tokens = len(block_hashes) * self.config.hash_block_size
        hits: dict[int, GroupHit] = {}
        dropped: set[int] = set()
        length, longest = max_length, 0
        settled = False
        while not settled:
            candidate = length
            for i, group in enumerate(self.spec_groups):
                if group.is_full_attention and i in hits:
                    candidate = min(candidate, hits[i][1])  # whatever ends earlier is there too
                    continue
                drop = group.use_eagle and i not in dropped
                margin = group.eagle_margin if drop else 0
                limit = min(candidate + margin, hashed_tokens) if margin else candidate
                hits[i] = group.find(block_hashes, limit, drop)
                found = hits[i][1]
                if drop:
                    dropped.add(i)
                elif found < candidate:
                    dropped.clear()
                candidate = found
                longest = max(longest, found)
            # Full attention has every shorter prefix: with one more spec one round is enough.
            settled = candidate >= length or self._one_round_is_enough
            length = min(length, candidate)
        return self._combine(hits, length, longest)

    @property
    def _one_round_is_enough(self) -> bool:
        return len(self.spec_groups) == 2 and self.spec_groups[0].is_full_attention

    def _combine(self, hits: dict[int, GroupHit], length: int, longest: int) -> CommonHit:
        blocks: list[Sequence[KVCacheBlock]] = [()] * len(self.managers)
        for i, group in enumerate(self.spec_groups):
            for manager, found in zip(group.managers, hits[i][0], strict=True):
                if group.is_full_attention:
                    del found[cdiv(length, manager.block_size) :]
                blocks[manager.group_id] = found
        return CommonHit(tuple(blocks), length, longest if longest != length else 0)

    def get_num_cacheable_tokens(self, num_tokens: int, manager: SingleTypeKVCacheManager) -> int:
        """Hits end at aligned positions only; an eagle group matches one block past them."""
        if self.partial_hits:
            return num_tokens
        aligned = num_tokens - num_tokens % self.config.scheduler_block_size
        if manager.use_eagle and aligned:
            return min(num_tokens, aligned + manager.block_size)
        return aligned


def make_coordinator(config: KVCacheConfig, pool: BlockPool) -> KVCacheCoordinator:
    """The coordinator that fits the settings."""
    if not config.enable_caching:
        return KVCacheCoordinator(config, pool)
    if len(config.kv_cache_groups) == 1:
        return UnitaryKVCacheCoordinator(config, pool)
    return HybridKVCacheCoordinator(config, pool)
