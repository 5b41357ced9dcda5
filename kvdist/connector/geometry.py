"""Which bytes of a node's blocks are which: groups, heads, ranks; and what a pull has to move.

Owns:   nothing; all values are plain numbers.
Knows nothing of: tensors, transports.
Units:  tokens, blocks, slots (a token's place in a block) and KV heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from kvdist.cache.spec import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from kvdist.connector.messages import Blocks, Heads, TokenSpan, TokenSpans
from kvdist.errors import ConfigError
from kvdist.ids import BlockId, Rank


@dataclass(frozen=True, slots=True)
class Group:
    """Of layers: what one block of it holds."""

    kind: Literal["tokens", "state", "encoder"]
    block_size: int
    #: Where a token reads a window, or its own chunk, and no more; 0: all before it.
    window: int = 0
    chunk: int = 0
    #: Of an encoder: what it makes of any input. These are its own tokens, which every token of the
    #: sequence reads; they are one request's, and of use all together only.
    num_tokens: int = 0

    def first_needed(self, resume: int) -> int:
        """The first token whose K/V a sequence needs to go on at token `resume`."""
        if self.kind == "state":
            return max(0, resume - 1)
        if self.window:
            return max(0, resume - self.window + 1)
        return resume // self.chunk * self.chunk if self.chunk else 0

    def last_needed(self, resume: int) -> int:
        """One past the last of those."""
        return self.num_tokens if self.kind == "encoder" else resume

    def written(self, settled: int) -> int:
        """So many tokens of this group are there once `settled` of the sequence are: an encoder has
        run before its first one is computed.
        """
        if self.kind == "encoder":
            return self.num_tokens if settled else 0
        return settled


@dataclass(frozen=True, slots=True)
class Geometry:
    """Of one node's KV. Raises: ConfigError for ranks that can't share the heads."""

    groups: tuple[Group, ...]
    num_heads: int = 1
    #: Ranks that share the heads; with more ranks than heads, each head has several copies.
    num_ranks: int = 1

    def __post_init__(self) -> None:
        if not can_share(self.num_heads, self.num_ranks):
            raise ConfigError(f"{self.num_ranks} ranks can't share {self.num_heads} heads")

    @classmethod
    def of(cls, config: KVCacheConfig, num_heads: int = 1, num_ranks: int = 1) -> "Geometry":
        """The geometry of a block manager's groups."""
        specs = (group.kv_cache_spec for group in config.kv_cache_groups)
        return cls(tuple(map(_group_of, specs)), num_heads, num_ranks)

    @property
    def resumes_anywhere(self) -> bool:
        """True if any shorter prefix of a lease can be resumed at: all groups keep everything."""
        return all(
            group.kind == "tokens" and not group.window and not group.chunk for group in self.groups
        )

    @property
    def streams(self) -> bool:
        """True if the blocks of a prompt can be taken before it is computed: a state's can't, and
        an encoder's aren't.
        """
        return all(group.kind == "tokens" for group in self.groups)

    @property
    def num_encoder_tokens(self) -> int:
        """Tokens of an encoder that come with every pull."""
        return max((group.num_tokens for group in self.groups), default=0)

    def shares_heads(self, num_ranks: int) -> bool:
        """True if so many ranks, of another node, can share the same heads."""
        return can_share(self.num_heads, num_ranks)

    def heads_of(self, rank: int) -> Heads:
        """KV heads [first, last) that a rank keeps."""
        if self.num_ranks <= self.num_heads:
            share = self.num_heads // self.num_ranks
            return rank * share, (rank + 1) * share
        head = rank * self.num_heads // self.num_ranks
        return head, head + 1


def can_share(num_heads: int, num_ranks: int) -> bool:
    """True if each rank gets as many heads, or each head as many ranks."""
    few, many = sorted((num_heads, num_ranks))
    return few >= 1 and not many % few


def _group_of(spec: KVCacheSpec) -> Group:
    match spec:
        case MambaSpec():
            return Group("state", spec.block_size)
        case SlidingWindowSpec():
            return Group("tokens", spec.block_size, window=spec.sliding_window)
        case ChunkedLocalAttentionSpec():
            return Group("tokens", spec.block_size, chunk=spec.attention_chunk_size)
        case FullAttentionSpec():
            return Group("tokens", spec.block_size)
        case CrossAttentionSpec() if spec.num_encoder_tokens:
            return Group("encoder", spec.block_size, num_tokens=spec.num_encoder_tokens)
        case _:
            raise ConfigError(f"{type(spec).__name__}: nobody else can use what it keeps")


class Cut(NamedTuple):
    """What one of the reader's ranks gets from one of the owner's."""

    reader: Rank
    owner: Rank
    heads: Heads


def cuts(reader: Geometry, owner_ranks: int) -> list[Cut]:
    """A pull's parts: for each of the reader's ranks, its heads from as few owners as have them.

    With as many ranks on both sides each reads of its like: of states, which aren't cut, a rank has
    a share of its own even where heads have copies.

    >>> cuts(Geometry((), num_heads=4, num_ranks=1), 2)
    [Cut(reader=0, owner=0, heads=(0, 2)), Cut(reader=0, owner=1, heads=(2, 4))]
    >>> cuts(Geometry((), num_heads=4, num_ranks=2), 1)
    [Cut(reader=0, owner=0, heads=(0, 2)), Cut(reader=1, owner=0, heads=(2, 4))]
    """
    if owner_ranks == reader.num_ranks:
        ranks = map(Rank, range(owner_ranks))
        return [Cut(rank, rank, reader.heads_of(rank)) for rank in ranks]
    owner = Geometry(reader.groups, reader.num_heads, owner_ranks)
    found = []
    for rank in range(reader.num_ranks):
        head, end = reader.heads_of(rank)
        while head < end:
            there = head * owner_ranks // owner.num_heads  # the first that has it
            last = min(end, owner.heads_of(there)[1])
            found.append(Cut(Rank(rank), Rank(there), (head, last)))
            head = last
    return found


def wanted(geometry: Geometry, first: int, resume: int) -> TokenSpans:
    """What has to come so that a reader who has `first` tokens can resume at token `resume`.

    Whole blocks, as far as they hold tokens, since they will be published; of a state group the
    state at `resume`, of an encoder's all.
    """
    spans = []
    for group in geometry.groups:
        if group.kind == "encoder":
            spans.append((0, group.num_tokens))
            continue
        start = group.first_needed(resume)
        if group.kind == "tokens":
            start = start // group.block_size * group.block_size
        spans.append((min(max(first, start), resume), resume))
    return tuple(spans)


def kept(geometry: Geometry, tables: Blocks, resume: int) -> Blocks:
    """The tables without blocks that nobody needs who resumes at `resume`."""
    return tuple(
        tuple(
            block if (index + 1) * group.block_size > group.first_needed(resume) else BlockId(0)
            for index, block in enumerate(table)
        )
        for group, table in zip(geometry.groups, tables, strict=True)
    )


def listed(geometry: Geometry, tables: Blocks, spans: TokenSpans) -> Blocks:
    """The tables as far as who reads these spans has to know them: nothing else's blocks."""
    rows = []
    for group, table, (first, last) in zip(geometry.groups, tables, spans, strict=True):
        begin = (last - 1 if group.kind == "state" else first) // group.block_size
        end = -(-last // group.block_size)
        rows.append((BlockId(0),) * begin + table[begin:end] if first < last else ())
    return tuple(rows)


class Piece(NamedTuple):
    """Slots [first, first + num_slots) of one block."""

    block: BlockId
    first: int
    num_slots: int


def pieces(group: Group, table: Sequence[BlockId], span: TokenSpan) -> list[Piece] | None:
    """Where the K/V of a span of tokens lie; None if the table hasn't all of them."""
    first, last = span
    if first >= last:
        return []
    if group.kind == "state":
        index = (last - 1) // group.block_size
        return [Piece(table[index], 0, 1)] if index < len(table) and table[index] else None
    found = []
    while first < last:
        index, slot = divmod(first, group.block_size)
        if index >= len(table) or not table[index]:
            return None
        count = min(group.block_size - slot, last - first)
        found.append(Piece(table[index], slot, count))
        first += count
    return found


def covers(geometry: Geometry, tables: Blocks, resume: int) -> bool:
    """True if the tables have all blocks that somebody needs who resumes at `resume`."""
    return all(
        pieces(group, table, (group.first_needed(resume), group.last_needed(resume))) is not None
        for group, table in zip(geometry.groups, tables, strict=True)
    )


def sized(groups: tuple[Group, ...], block_sizes: tuple[int, ...]) -> tuple[Group, ...]:
    """The groups as another node has them: its block sizes, or none given: ours.

    What makes no sense gives no groups: nothing of them can be found.
    """
    if not block_sizes:
        return groups
    if len(block_sizes) != len(groups) or min(block_sizes) < 1:
        return ()
    return tuple(
        replace(group, block_size=size) for group, size in zip(groups, block_sizes, strict=True)
    )


def external_blocks(geometry: Geometry, table: Blocks, first: int) -> list[BlockId]:
    """The blocks behind the first `first` tokens, which end a block in every group; an encoder's
    are behind none.
    """
    return [
        block
        for group, row in zip(geometry.groups, table, strict=True)
        for block in row[0 if group.kind == "encoder" else -(-first // group.block_size) :]
        if block
    ]
