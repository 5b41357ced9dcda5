"""Chunked local attention: only the chunk of the next token is read.

Owns:   nothing beyond its base.
Knows nothing of: other groups.
Source: the document's local attention; boundaries as vLLM 0.32.

With chunks of 8 and blocks of 4, the next token after 13 computed ones reads 8 .. 13: the first
chunk counts as hit without any block, cached or not.
"""

from collections.abc import Sequence

from kvdist.cache.block_pool import BlockPool
from kvdist.cache.hash_index import BlockHashToBlockMap
from kvdist.cache.managers.base import GroupHit, SingleTypeKVCacheManager, cdiv
from kvdist.cache.spec import ChunkedLocalAttentionSpec, KVCacheConfig
from kvdist.ids import BlockHash, GroupId


class ChunkedLocalAttentionManager(SingleTypeKVCacheManager):
    """Keeps the blocks of the current chunk."""

    recycles = True

    def __init__(self, config: KVCacheConfig, group_id: GroupId, pool: BlockPool) -> None:
        super().__init__(config, group_id, pool)
        spec = config.kv_cache_groups[group_id].kv_cache_spec
        assert isinstance(spec, ChunkedLocalAttentionSpec)
        self.attention_chunk_size = spec.attention_chunk_size
        self.as_vllm = config.as_vllm
        most = min(self.attention_chunk_size + config.max_in_flight_tokens, config.max_model_len)
        self.max_admission_blocks = cdiv(most, self.block_size)

    def find_longest_cache_hit(
        self,
        block_hashes: Sequence[BlockHash],
        max_length: int,
        indexes: Sequence[BlockHashToBlockMap],
        drop_eagle_block: bool,
    ) -> GroupHit:
        """All earlier chunks as null blocks, then what is cached of the chunk of `max_length`."""
        assert not drop_eagle_block, "refused by KVCacheConfig"
        chunk_start = self.get_num_skipped_tokens(max_length)
        num_skipped = chunk_start // self.block_size
        hashes = self.hashes_of_blocks(block_hashes)[num_skipped : max_length // self.block_size]
        found = [index.get_longest_prefix(hashes) for index in indexes]
        num_real = min(map(len, found))
        if not num_real and chunk_start % self.block_size and not self.as_vllm:
            # The hit would end before the chunk begins, and there earlier tokens are read.
            end = num_skipped * self.block_size
            return self.find_longest_cache_hit(block_hashes, end, indexes, drop_eagle_block)
        nulls = [self.pool.null_block] * num_skipped
        return (
            [nulls + blocks[:num_real] for blocks in found],
            (num_skipped + num_real) * self.block_size,
        )

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Tokens of the chunks before that of the next token."""
        return num_computed_tokens // self.attention_chunk_size * self.attention_chunk_size

    def next_skip(self, num_processed_tokens: int) -> int:
        """The next chunk begins."""
        return self.get_num_skipped_tokens(num_processed_tokens) + self.attention_chunk_size
