"""What K/V would be, as one number a token, group and head; and what a perfect worker would say.

Owns:   nothing.
Knows nothing of: blocks that are taken, plans, workers.
Units:  tokens; a cell is a 64-bit number.
Source: the idea of a model whose next token depends on every cell that it reads is ours; the mix is
        CPython's hash of a tuple of numbers, which has no seed.

The cell of a position is a function of all tokens up to it, of the group and the head, as K/V are.
The token that is sampled at a position is a function of the cells that its layers read there. So a
cell that is wrong, stale, torn or poisoned gives another token.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from kvdist.cache import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    MambaSpec,
    SlidingWindowSpec,
)

#: Large, so that a wrong read can hardly give the right token.
VOCABULARY_SIZE: Final = 1 << 31


def chain(tokens: Iterable[int], before: int = 0) -> list[int]:
    """For each token a number that stands for it and all before it."""
    return [before := hash((before, token)) for token in tokens]


class GroupModel:
    """What the layers of one group read and keep."""

    __slots__ = ("_chunk", "_window", "block_size", "group_id", "is_cross", "is_state")

    def __init__(self, config: KVCacheConfig, group_id: int) -> None:
        spec = config.kv_cache_groups[group_id].kv_cache_spec
        self.group_id = group_id
        self.block_size = spec.block_size
        self.is_state = isinstance(spec, MambaSpec)
        self.is_cross = isinstance(spec, CrossAttentionSpec)
        self._window = self._chunk = 0
        match spec:
            case SlidingWindowSpec():
                self._window = spec.sliding_window
            case ChunkedLocalAttentionSpec():
                self._chunk = spec.attention_chunk_size
            case MambaSpec() | CrossAttentionSpec() | FullAttentionSpec():
                pass
            case _:
                raise NotImplementedError(type(spec).__name__)

    def first_read(self, position: int) -> int:
        """The first position that the token at `position` reads; of a state, the last alone."""
        if self.is_state:
            return position
        if self._window:
            return max(0, position - self._window + 1)
        return position // self._chunk * self._chunk if self._chunk else 0

    def cells(self, links: Iterable[int], head: int) -> list[int]:
        """One cell for each link of the chain."""
        salt = (self.group_id + 1) * 1_000_003 + head
        return [hash((link, salt)) for link in links]


class ModelContents:
    """A model of several groups, with `num_heads` heads each."""

    def __init__(
        self, config: KVCacheConfig, num_heads: int = 1, vocabulary_size: int = VOCABULARY_SIZE
    ) -> None:
        self.vocabulary_size = vocabulary_size
        self.groups = tuple(GroupModel(config, i) for i in range(len(config.kv_cache_groups)))
        self.heads = range(num_heads)

    def sample(self, reads: Iterable[Sequence[int]]) -> int:
        """The token that follows from what was read, group by group, head by head."""
        return hash(tuple([hash(tuple(cells)) for cells in reads])) % self.vocabulary_size

    def perfect_tokens(
        self, prompt: Sequence[int], num_tokens: int, encoder_tokens: Sequence[int] = ()
    ) -> list[int]:
        """What a worker says that never reads a wrong cell."""
        links, tokens = chain(prompt), []
        encoder = chain(encoder_tokens)
        columns = [
            (group, group.cells(encoder if group.is_cross else links, head), head)
            for group in self.groups
            for head in self.heads
        ]
        for _ in range(num_tokens):
            last = len(links) - 1
            reads = [
                cells if group.is_cross else cells[group.first_read(last) :]
                for group, cells, _ in columns
            ]
            tokens.append(self.sample(reads))
            links += chain(tokens[-1:], links[-1])
            for group, cells, head in columns:
                if not group.is_cross:
                    cells += group.cells(links[-1:], head)
        return tokens
