"""Where in a worker's memory the bytes of a pull are.

Owns:   nothing; all values are plain numbers.
Knows nothing of: links, tensors, whose memory it is.
Units:  bytes, but for tokens, slots and heads by name.
Source: the layout is the worker's (`kvdist/worker/pool.py`): `[block, layer, head, token, k | v]`,
        and the layers of a group have the first pages of its blocks.

Both ends of a transfer list the same bytes in the same order, whatever their block sizes: tokens
are cut wherever a block ends on either side, and of such a cut come all layers, heads and tokens.
With equal blocks a cut is a block, and one span.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from kvdist.connector.geometry import Piece
from kvdist.connector.messages import Heads, TokenSpans
from kvdist.errors import ConfigError


class Bytes(NamedTuple):
    """Bytes [first, first + size) of a worker's memory."""

    first: int
    size: int


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """Of one group's blocks."""

    num_layers: int
    #: Tokens; of a state group 0.
    block_size: int
    #: KV heads of one layer in this rank.
    num_heads: int
    #: k and v of one token, one head and one layer; of a state all of one layer.
    item_bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Of one worker's memory. Raises: ConfigError for pages that don't hold what they should."""

    groups: tuple[GroupLayout, ...]
    #: That this rank keeps, of the whole model's: [first, last). Where layers differ in their
    #: number all of them count as one.
    heads: Heads
    #: Of one block in one layer.
    page_bytes: int
    #: From one block to the next.
    block_bytes: int

    def __post_init__(self) -> None:
        if not 0 <= self.heads[0] < self.heads[1]:
            raise ConfigError(f"heads: {self.heads[0]} to {self.heads[1]} are none")
        for number, group in enumerate(self.groups):
            held = group.item_bytes * max(1, group.block_size * group.num_heads)
            if held > self.page_bytes:
                raise ConfigError(
                    f"page_bytes: {self.page_bytes} don't hold {held} of group {number}"
                )
            if group.num_layers * self.page_bytes > self.block_bytes:
                raise ConfigError(
                    f"block_bytes: {self.block_bytes} don't hold the pages of group {number}"
                )

    def has(self, heads: Heads) -> bool:
        """Whether this rank keeps all of these."""
        return self.heads[0] <= heads[0] < heads[1] <= self.heads[1]

    def of_peer(
        self, heads: Heads, block_sizes: Sequence[int], page_bytes: int, block_bytes: int
    ) -> "Layout":
        """Another worker's, whose layers are the same: of its own share of heads.

        Raises: ConfigError, naming the field that can't be.
        """
        kinds = ["tokens" if size else "state" for size in block_sizes]
        ours = ["tokens" if size else "state" for size in self.block_sizes]
        if kinds != ours:
            raise ConfigError(f"block_sizes: of groups {kinds}, ours are {ours}")
        if any(kind == "state" for kind in ours) and _count(heads) != _count(self.heads):
            raise ConfigError(f"heads: {heads}, ours {self.heads}, and states can't be cut")
        groups = []
        for number, (group, size) in enumerate(zip(self.groups, block_sizes, strict=True)):
            num_heads, rest = divmod(group.num_heads * _count(heads), _count(self.heads))
            if rest:
                raise ConfigError(f"heads: {heads} are no share of those of group {number}")
            groups.append(replace(group, block_size=size, num_heads=num_heads))
        return Layout(tuple(groups), heads, page_bytes, block_bytes)

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Of each group, in tokens; 0: states."""
        return tuple(group.block_size for group in self.groups)

    def spans(
        self,
        spans: TokenSpans,
        pieces: Sequence[Piece],
        heads: Heads,
        other_sizes: Sequence[int],
    ) -> list[Bytes]:
        """The bytes of these tokens, which lie in `pieces`, group by group; neighbours are one.

        `heads`: this rank keeps them (`has`). `other_sizes`: the block sizes of whoever has the
        other end.
        """
        left = iter(pieces)
        found: list[Bytes] = []
        for group, (first, last), other in zip(self.groups, spans, other_sizes, strict=True):
            if first >= last:
                continue
            if not group.block_size:
                found.append(self._state(group, next(left)))
            elif other == group.block_size and self._is_dense(group, heads):
                found += self._blocks(group, left, (first, last), heads)
            else:
                for cut in _cuts(left, first, last, other):
                    found += self._tokens(group, cut, heads)
        return _merged(found)

    def _is_dense(self, group: GroupLayout, heads: Heads) -> bool:
        """A block without holes, all of whose heads are wanted: as it mostly is."""
        held = group.block_size * group.num_heads * group.item_bytes
        return heads == self.heads and held == self.page_bytes

    def _blocks(
        self, group: GroupLayout, pieces: Iterator[Piece], tokens: tuple[int, int], heads: Heads
    ) -> Iterator[Bytes]:
        """Of dense blocks, as large on both sides: there may be thousands."""
        first, last = tokens
        size, from_one_to_next = group.num_layers * self.page_bytes, self.block_bytes
        while first < last:
            piece = next(pieces)
            if piece.num_slots == group.block_size:
                yield Bytes(piece.block * from_one_to_next, size)
            else:
                yield from self._tokens(group, piece, heads)
            first += piece.num_slots

    def _state(self, group: GroupLayout, piece: Piece) -> Bytes:
        return Bytes(piece.block * self.block_bytes, group.num_layers * self.page_bytes)

    def _tokens(self, group: GroupLayout, cut: Piece, heads: Heads) -> Iterator[Bytes]:
        begin = cut.block * self.block_bytes
        head_bytes = group.block_size * group.item_bytes
        all_heads = heads == self.heads
        if cut.num_slots == group.block_size and self._is_dense(group, heads):
            yield Bytes(begin, group.num_layers * self.page_bytes)
            return
        some = (heads[0] - self.heads[0], heads[1] - self.heads[0])
        for layer in range(group.num_layers):
            for head in range(group.num_heads) if all_heads else range(*some):
                line = begin + layer * self.page_bytes + head * head_bytes
                yield Bytes(line + cut.first * group.item_bytes, cut.num_slots * group.item_bytes)


def _count(heads: Heads) -> int:
    return heads[1] - heads[0]


def _cuts(pieces: Iterator[Piece], first: int, last: int, other_size: int) -> Iterator[Piece]:
    """The pieces of tokens [first, last), cut where the other side's blocks end."""
    while first < last:
        piece = next(pieces)
        end = first + piece.num_slots
        edges = range(first // other_size * other_size + other_size, end, other_size)
        slot = piece.first - first
        for begin, until in pairwise([first, *edges, end]):
            yield Piece(piece.block, begin + slot, until - begin)
        first = end


def _merged(found: Iterable[Bytes]) -> list[Bytes]:
    """The same bytes in the same order, with neighbours as one."""
    merged: list[Bytes] = []
    for span in found:
        if merged and merged[-1].first + merged[-1].size == span.first:
            merged[-1] = Bytes(merged[-1].first, merged[-1].size + span.size)
        else:
            merged.append(span)
    return merged
