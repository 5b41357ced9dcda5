"""Full attention: every block stays until the request ends; hits are found from the left.

Owns:   nothing beyond its base.
Knows nothing of: other groups.
Source: the document's full attention manager; prompt tails as vLLM 0.32.
"""

from collections.abc import Sequence

from kvdist.cache.block import KVCacheBlock
from kvdist.cache.hash_index import BlockHashToBlockMap
from kvdist.cache.managers.base import GroupHit, SingleTypeKVCacheManager, cdiv
from kvdist.cache.request import Request
from kvdist.ids import BlockHash


class FullAttentionManager(SingleTypeKVCacheManager):
    """Keeps all blocks."""

    supports_partial_hits = True

    def find_longest_cache_hit(
        self,
        block_hashes: Sequence[BlockHash],
        max_length: int,
        indexes: Sequence[BlockHashToBlockMap],
        drop_eagle_block: bool,
    ) -> GroupHit:
        """Whole blocks from the start; then, where hits may be partial, the longest tail."""
        block_size, unit = self.block_size, self.alignment
        whole = self.hashes_of_blocks(block_hashes)[: max_length // block_size]
        found = [index.get_longest_prefix(whole) for index in indexes]
        num_blocks = min(map(len, found))
        length = num_blocks * block_size
        if unit < block_size:
            length = self._extend_into_block(block_hashes, max_length, indexes, num_blocks, found)
        if drop_eagle_block and length:
            length -= min(unit, block_size)
        length -= length % unit
        for blocks in found:
            del blocks[cdiv(length, block_size) :]
        return found, length

    def _extend_into_block(
        self,
        block_hashes: Sequence[BlockHash],
        max_length: int,
        indexes: Sequence[BlockHashToBlockMap],
        num_blocks: int,
        found: list[list[KVCacheBlock]],
    ) -> int:
        """Add the block with the longest tail after `num_blocks`; returns the tokens of the hit."""
        scale = self.block_size // self.alignment
        first = num_blocks * scale
        last = min(first + scale - 1, max_length // self.alignment, len(block_hashes))
        for unit in range(last - 1, first - 1, -1):
            tails = [index.get_longest_prefix(block_hashes[unit : unit + 1]) for index in indexes]
            if all(tails):
                for blocks, tail in zip(found, tails, strict=True):
                    blocks[num_blocks:] = tail
                return (unit + 1) * self.alignment
        return num_blocks * self.block_size

    def cache_blocks(
        self, request: Request, num_tokens: int, replay_boundaries: Sequence[int]
    ) -> None:
        """Publish full blocks and, where hits may be partial, the prompt's tail."""
        super().cache_blocks(request, num_tokens, replay_boundaries)
        tail = self._prompt_tail(request)
        if tail and tail <= num_tokens:
            table = self.req_to_blocks.get(request.request_id, [])
            if tail // self.block_size < len(table):
                block = table[tail // self.block_size]
                self.pool.cache_partial_block(request, block, tail, self.block_size, self.group_id)

    def _prompt_tail(self, request: Request) -> int:
        """Last hash boundary of the prompt that a resend can use, if inside a block; else 0."""
        if not self.enable_partial_hits or self.block_size == self.hash_block_size:
            return 0
        limit = request.num_prompt_tokens - (0 if self.use_eagle else 1)
        tail = limit - limit % self.hash_block_size
        return tail if tail % self.block_size else 0

    def next_publication(self, request: Request) -> int:
        """Also the prompt's tail is published, once it is reached."""
        quiet = super().next_publication(request)
        tail = self._prompt_tail(request)
        if not tail or tail >= quiet:
            return quiet
        table = self.req_to_blocks.get(request.request_id, [])
        key = request.block_hashes[tail // self.hash_block_size - 1]
        published = tail // self.block_size < len(table) and self.index.contains(
            key, table[tail // self.block_size]
        )
        return quiet if published else tail
