"""Builders: real objects in a known state, never stand-ins."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

from kvdist.cache import (
    BlockHasher,
    BlockPool,
    CacheHit,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheBlock,
    KVCacheBlocks,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    KVCacheSpec,
    MambaSpec,
    Request,
    SlidingWindowSpec,
)
from kvdist.ids import BlockHash, BlockId, GroupId

GROUP = GroupId(0)

# -- specs: blocks of four tokens unless a test is about their size --------------------------------


def full(block_size: int = 4) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block_size)


def window(sliding_window: int, block_size: int = 4) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=block_size, sliding_window=sliding_window)


def chunked(attention_chunk_size: int, block_size: int = 4) -> ChunkedLocalAttentionSpec:
    return ChunkedLocalAttentionSpec(
        block_size=block_size, attention_chunk_size=attention_chunk_size
    )


def mamba(
    block_size: int = 4, *, scratch: int = 0, mode: Literal["align", "none"] = "align"
) -> MambaSpec:
    return MambaSpec(block_size=block_size, mamba_cache_mode=mode, num_speculative_blocks=scratch)


def cross(block_size: int = 4) -> CrossAttentionSpec:
    return CrossAttentionSpec(block_size=block_size)


# -- parts ---------------------------------------------------------------------------------------


def make_config(
    *specs: KVCacheSpec, num_blocks: int = 11, eagle: Collection[int] = (), **settings: Any
) -> KVCacheConfig:
    """One group a spec, full attention if there is none; groups in `eagle` are marked so."""
    groups = tuple(
        KVCacheGroupSpec(spec, is_eagle_group=i in eagle)
        for i, spec in enumerate(specs or (full(),))
    )
    return KVCacheConfig(num_blocks=num_blocks, kv_cache_groups=groups, **settings)


def make_pool(num_blocks: int = 11, num_groups: int = 1, **settings: Any) -> BlockPool:
    return BlockPool(num_blocks, num_groups, hash_block_size=4, **settings)


def make_blocks(count: int) -> list[KVCacheBlock]:
    """Blocks of no pool."""
    return [KVCacheBlock(BlockId(i)) for i in range(count)]


def tokens_of(text: str | Sequence[int]) -> list[int]:
    """Letters as tokens."""
    return list(map(ord, text)) if isinstance(text, str) else list(text)


def key_of(number: int) -> BlockHash:
    """A key that is as good as any."""
    return BlockHash(number.to_bytes(32, "big"))


def ids(blocks: Iterable[KVCacheBlock]) -> list[int]:
    return [block.block_id for block in blocks]


class Node:
    """A block manager, and what a scheduler does with it.

    Its pool has ten usable blocks, 1 to 10, unless a test says otherwise.
    """

    def __init__(self, *specs: KVCacheSpec, algorithm: str = "sha256", **settings: Any) -> None:
        self.config = make_config(*specs, **settings)
        self.manager = self._make_manager()
        self.pool = self.manager.block_pool
        self.hasher = BlockHasher(self.config.hash_block_size, algorithm)

    def _make_manager(self) -> KVCacheManager:
        return KVCacheManager(self.config)

    def request(self, name: str, prompt: str | Sequence[int], **settings: Any) -> Request:
        return Request(name, tokens_of(prompt), self.hasher, **settings)

    def admit(
        self, request: Request, num_new_tokens: int | None = None, **settings: Any
    ) -> CacheHit | None:
        """Look up, allocate all other known tokens or so many, move the count; None: no room."""
        hit = self.manager.get_computed_blocks(request)
        if num_new_tokens is None:
            external = settings.get("num_external_computed_tokens", 0)
            num_new_tokens = request.num_tokens - hit.num_tokens - external
        if self.manager.allocate_slots(request, num_new_tokens, hit, **settings) is None:
            return None
        request.num_computed_tokens = hit.num_tokens + num_new_tokens
        request.num_computed_tokens += settings.get("num_external_computed_tokens", 0)
        return hit

    def start(self, name: str, prompt: str | Sequence[int], **settings: Any) -> Request:
        """A request that runs, its whole prompt computed."""
        request = self.request(name, prompt, **settings)
        assert self.admit(request) is not None
        return request

    def compute(
        self, request: Request, num_new_tokens: int, **settings: Any
    ) -> KVCacheBlocks | None:
        """Allocate for a running request and, if that fits, move its count."""
        new = self.manager.allocate_slots(request, num_new_tokens, **settings)
        if new is not None:
            request.num_computed_tokens += num_new_tokens
        return new

    def say(self, request: Request, text: str | Sequence[int]) -> None:
        """Sampled tokens, each computed in a step of its own."""
        for token in tokens_of(text):
            request.append_output_token_ids(token)
            assert self.compute(request, 1) is not None

    def finish(self, *requests: Request) -> None:
        for request in requests:
            self.manager.free(request)

    def preempt(self, request: Request) -> None:
        self.manager.free(request)
        request.num_computed_tokens = request.num_in_flight_tokens = 0
        request.num_preemptions += 1

    # -- what can be seen ----------------------------------------------------------------------

    @property
    def queue(self) -> list[int]:
        return ids(self.pool.free_block_queue)

    @property
    def cached(self) -> list[int]:
        """Blocks that can be found, ascending."""
        return sorted({block.block_id for _, _, block in self.pool.cached_blocks()})

    @property
    def counts(self) -> dict[int, int]:
        """References of the blocks that have any."""
        return {block.block_id: block.ref_cnt for block in self.pool.blocks[1:] if block.ref_cnt}

    def table(self, request: Request, group: int = 0) -> list[int]:
        return list(map(int, self.manager.get_block_ids(request.request_id)[group]))

    def hit(self, name: str, prompt: str | Sequence[int], **settings: Any) -> tuple[int, ...]:
        """Tokens that a request with this prompt would hit, and its blocks of group 0."""
        found = self.manager.get_computed_blocks(self.request(name, prompt, **settings))
        return found.num_tokens, *ids(found.blocks.blocks[0])
