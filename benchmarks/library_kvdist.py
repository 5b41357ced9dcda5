"""The work's calls on kvdist.

Owns:   the translation.
Knows nothing of: the work, time, other libraries.
"""

from collections.abc import Sequence
from importlib.metadata import version

from benchmarks.library import OutOfBlocksError, Pool
from benchmarks.prompts import Prompt
from benchmarks.size import BLOCK
from kvdist.cache import (
    BlockHasher,
    CacheHit,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    KVCacheSpec,
    Request,
    SlidingWindowSpec,
)


class KvdistEngine:
    """An `Engine` of `Request` and `CacheHit`."""

    algorithms: tuple[str, ...] = ("sha256", "xxh3_128")

    def __init__(self) -> None:
        self.make(Pool(num_blocks=2))

    def describe(self) -> dict[str, str]:
        """The library's name and version."""
        return {"library": "kvdist", "version": version("kvdist")}

    def make(self, pool: Pool) -> None:
        """A new, empty manager."""
        specs: list[KVCacheSpec] = [FullAttentionSpec(block_size=BLOCK)]
        specs += [SlidingWindowSpec(block_size=BLOCK, sliding_window=w) for w in pool.windows]
        config = KVCacheConfig(
            num_blocks=pool.num_blocks,
            kv_cache_groups=tuple(KVCacheGroupSpec(spec) for spec in specs),
            max_model_len=8_192,
            retention_interval=pool.retention_interval,
        )
        self.manager = KVCacheManager(config)

    def create(self, prompts: Sequence[Prompt], algorithm: str | None) -> list[Request]:
        """One request for each prompt."""
        hasher = BlockHasher(BLOCK, algorithm) if algorithm else None
        return [Request(f"r{i}", prompt, hasher) for i, prompt in enumerate(prompts)]

    def lookup(self, request: Request) -> CacheHit:
        """The longest cached prefix."""
        return self.manager.get_computed_blocks(request)

    def accept(self, request: Request, hit: CacheHit) -> int:
        """Nothing is left to the scheduler."""
        return hit.num_tokens

    def allocate(self, request: Request, hit: CacheHit) -> None:
        """Slots for the whole prompt."""
        new = request.num_tokens - hit.num_tokens
        if self.manager.allocate_slots(request, new, hit) is None:
            raise OutOfBlocksError

    def computed(self, request: Request) -> None:
        """The whole prompt counts as computed."""
        request.num_computed_tokens = request.num_tokens

    def append(self, requests: Sequence[Request], tokens: Sequence[int]) -> None:
        """One output token to each request."""
        for request, token in zip(requests, tokens, strict=True):
            request.append_output_token_ids(token)

    def step(self, requests: Sequence[Request]) -> None:
        """A slot for one more token, computed at once, for each."""
        allocate_slots = self.manager.allocate_slots
        for request in requests:
            if allocate_slots(request, 1) is None:
                raise OutOfBlocksError
            request.num_computed_tokens += 1

    def free(self, request: Request) -> None:
        """Give back all that the request has."""
        self.manager.free(request)

    def used(self) -> int:
        """Blocks held."""
        pool = self.manager.block_pool
        return pool.num_blocks - 1 - pool.get_num_free_blocks()

    def cached(self) -> int:
        """Blocks with a key."""
        return sum(block.block_hash is not None for block in self.manager.block_pool.blocks)
