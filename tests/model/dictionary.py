"""What every block hash means, gathered from the requests that have it (S6, S8)."""

from dataclasses import dataclass, field

from kvdist.cache import Request
from kvdist.ids import BlockHash
from tests.model.content import Content, content


@dataclass
class Dictionary:
    """Two contents never share a hash, and one content has one hash."""

    unit: int
    content_of: dict[BlockHash, Content] = field(default_factory=dict)
    hash_of: dict[Content, BlockHash] = field(default_factory=dict)

    def learn(self, request: Request) -> None:
        hashes = request.block_hashes
        assert len(hashes) == request.num_tokens // self.unit
        for i, block_hash in enumerate(hashes, 1):
            what = content(request, i * self.unit)
            assert self.content_of.setdefault(block_hash, what) == what
            assert self.hash_of.setdefault(what, block_hash) == block_hash
