"""A model whose next token depends on every cell that it reads, for hosts that aren't ours.

Owns:   nothing.
Units:  tokens. The cell of a position is a function of all tokens up to it, group and head.
"""

from collections.abc import Sequence

from kvdist.connector.geometry import Group
from kvdist.ids import BlockId
from kvdist.sim.memory import Memory

NUM_HEADS = 4


def cells(tokens: Sequence[int], group: int, head: int) -> list[int]:
    link, found = 0, []
    for token in tokens:
        link = hash((link, token))
        found.append(hash((link, group, head)))
    return found


def sample(reads: list[list[int]]) -> int:
    return hash(tuple(map(tuple, reads))) % (1 << 31)


def perfect_tokens(groups: Sequence[Group], prompt: Sequence[int], count: int) -> list[int]:
    """What a host says that never reads a wrong cell."""
    tokens = list(prompt)
    for _ in range(count):
        last = len(tokens) - 1
        tokens.append(
            sample(
                [
                    cells(tokens, index, head)[_first_read(group, last) :]
                    for index, group in enumerate(groups)
                    for head in range(NUM_HEADS)
                ]
            )
        )
    return tokens[len(prompt) :]


def compute(
    groups: Sequence[Group],
    memories: Sequence[Memory],
    tables: Sequence[Sequence[BlockId]],
    tokens: Sequence[int],
    first: int,
) -> int:
    """Write the cells of tokens [first, all) and sample what follows them."""
    reads = []
    for index, group in enumerate(groups):
        table, start = tables[index], _first_read(group, len(tokens) - 1)
        for head in range(NUM_HEADS):
            (memory,) = {id(m): m for m in memories if head in m.heads}.values()
            values = cells(tokens, index, head)
            for position in range(first, len(tokens)):
                block, slot = divmod(position, group.block_size)
                if table[block]:
                    memory.cells(table[block], head)[slot] = values[position]
            reads.append(
                [
                    memory.cells(table[position // group.block_size], head)[
                        position % group.block_size
                    ]
                    for position in range(start, len(tokens))
                ]
            )
    return sample(reads)


def _first_read(group: Group, position: int) -> int:
    return max(0, position - group.window + 1) if group.window else 0
