"""Cross attention: blocks for the encoder's tokens, taken once and never shared.

Owns:   nothing beyond its base.
Knows nothing of: the decoder's tokens.
Source: the document's cross attention manager.
"""

from collections.abc import Sequence

from kvdist.cache.block import KVCacheBlock
from kvdist.cache.hash_index import BlockHashToBlockMap
from kvdist.cache.managers.base import NEVER, GroupHit, SingleTypeKVCacheManager
from kvdist.cache.request import Request
from kvdist.cache.token_space import TokenSpace
from kvdist.ids import BlockHash, RequestId


def _of_encoder(space: TokenSpace) -> TokenSpace:
    """The same allocation, counted in the encoder's tokens."""
    encoder = space.encoder
    return TokenSpace(space.request_id, local=0, total=0, main=encoder, slots=encoder)


class CrossAttentionManager(SingleTypeKVCacheManager):
    """Sized by the encoder's length. `KVCacheConfig` refuses it together with prefix caching."""

    def find_longest_cache_hit(
        self,
        block_hashes: Sequence[BlockHash],
        max_length: int,
        indexes: Sequence[BlockHashToBlockMap],
        drop_eagle_block: bool,
    ) -> GroupHit:
        """Nothing: the encoder's input is the request's own."""
        return [[] for _ in indexes], 0

    def get_num_blocks_to_allocate(
        self, space: TokenSpace, hit_blocks: Sequence[KVCacheBlock], apply_admission_cap: bool
    ) -> int:
        """Blocks for the encoder's tokens that aren't there yet."""
        return super().get_num_blocks_to_allocate(_of_encoder(space), (), apply_admission_cap)

    def add_local_computed_blocks(
        self, space: TokenSpace, hit_blocks: Sequence[KVCacheBlock]
    ) -> None:
        """There are none."""

    def allocate_external_computed_blocks(self, space: TokenSpace) -> None:
        """External tokens are the decoder's."""

    def allocate_new_blocks(self, space: TokenSpace) -> list[KVCacheBlock]:
        """All blocks at the first call, none later."""
        return super().allocate_new_blocks(_of_encoder(space))

    def cache_blocks(
        self, request: Request, num_tokens: int, replay_boundaries: Sequence[int]
    ) -> None:
        """Never published."""

    def num_slots(self, request_id: RequestId) -> int:
        """The decoder's tokens need nothing here."""
        return NEVER

    def next_publication(self, request: Request) -> int:
        """Never."""
        return NEVER

    def resumable_blocks(self, num_computed_tokens: int) -> range:
        """None: the decoder's tokens have no blocks here."""
        return range(0)
