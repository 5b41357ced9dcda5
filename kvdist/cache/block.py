"""Metadata of one physical block (S5).

Owns:   nothing; each field has one writer, named below.
Knows nothing of: requests, tokens, bytes.
Source: the document's `KVCacheBlock`; `generation` and `step` are ours (T1, ADR-0005).
"""

from typing import Final

from kvdist.ids import BlockHash, BlockId, GroupId

#: Count of the null block: it is held for ever and its count is not maintained (S5).
NULL_REF_CNT: Final = 1 << 40


class KVCacheBlock:
    """One block of the pool. Equal only to itself; `blocks[i].block_id == i` for ever."""

    __slots__ = ("_place", "block_hash", "block_id", "generation", "group_id", "ref_cnt", "step")

    #: Where its bytes are.
    block_id: BlockId
    #: How many holds of any kind there are (I1). Written by `BlockPool`.
    ref_cnt: int
    #: The key under which lookups find it, or None. Written by `BlockPool`.
    block_hash: BlockHash | None
    #: The group whose K/V it holds, since it was taken. Written by `BlockPool`.
    group_id: GroupId
    #: How often it has been taken for new content. Written by `BlockPool`.
    generation: int
    #: The step that took it or, later, that fills what its hash names (T1). Written by `BlockPool`.
    step: int
    #: Where in the free queue it is, None outside. Written by `FreeKVCacheBlockQueue`.
    _place: int | None

    def __init__(self, block_id: BlockId) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash = None
        self.group_id = GroupId(0)
        self.generation = 0
        self.step = 0
        self._place = None

    def __repr__(self) -> str:
        key = self.block_hash.hex()[:8] if self.block_hash else None
        return (
            f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt}, "
            f"block_hash={key}, generation={self.generation})"
        )
