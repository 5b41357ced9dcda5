"""Scattered blocks: where they lie on both sides, what is in them, and whether they arrived.

Owns:   nothing; a pool belongs to whoever has its memory.
Knows nothing of: transports, processes, time.
Units:  bytes.

A pool has twice the blocks that move. Which move, and where to, are seeded permutations: on average
no two neighbours go together. Both sides know what is in every block, so that either can tell
whether a transfer was right without asking the other.
"""

import functools
import mmap
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_SEED: Final = 20_261
#: Bytes that are looked at in each block, besides its checksum.
_SAMPLES: Final = 8
_NUMBER_BYTES: Final = 8


class WrongBytesError(Exception):
    """A block didn't arrive as it was sent: whatever time that took means nothing."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """`blocks` blocks of `block_bytes` each, from one pool to another."""

    name: str
    blocks: int
    block_bytes: int

    @property
    def slots(self) -> int:
        """Blocks of a pool."""
        return 2 * self.blocks

    @property
    def num_bytes(self) -> int:
        """Bytes that move."""
        return self.blocks * self.block_bytes

    @property
    def pool_bytes(self) -> int:
        """Bytes of a pool."""
        return self.slots * self.block_bytes

    def sources(self) -> list[int]:
        """Block numbers in the sender's pool, in the order in which they move."""
        return self._chosen(_SEED)

    def targets(self) -> list[int]:
        """Where they go in the receiver's pool."""
        return self._chosen(_SEED + 1)

    def _chosen(self, seed: int) -> list[int]:
        return random.Random(seed).sample(range(self.slots), self.blocks)


PATTERNS: Final = {
    pattern.name: pattern
    for pattern in (
        Pattern("128 x 2 MiB", 128, 2 << 20),
        Pattern("4096 x 64 KiB", 4096, 64 << 10),
        Pattern("4096 x 16 KiB", 4096, 16 << 10),
    )
}
#: For tests: nothing that a time could be taken of. Larger than what travels with its message.
SMALL_PATTERNS: Final = {
    pattern.name: pattern
    for pattern in (Pattern("4 x 64 KiB", 4, 64 << 10), Pattern("64 x 4 KiB", 64, 4 << 10))
}


def memory(size: int) -> memoryview:
    """Memory as torch gets it for large tensors: its own mapping. It has small pages wherever huge
    ones must be asked for; with those all would be faster, and reads by the kernel most.
    """
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def cut(pool: memoryview, pattern: Pattern) -> list[memoryview]:
    """Views of a pool's blocks, by number."""
    size = pattern.block_bytes
    return [pool[number * size : (number + 1) * size] for number in range(pattern.slots)]


def fill(blocks: Sequence[memoryview], pattern: Pattern) -> None:
    """Give each block its own content."""
    for number, block in enumerate(blocks):
        block[:] = _content(pattern, number)
        block[:_NUMBER_BYTES] = number.to_bytes(_NUMBER_BYTES, "little")


def clear(blocks: Sequence[memoryview], pattern: Pattern) -> None:
    """Nothing of an earlier transfer is left; every page has been touched."""
    zeros = bytes(pattern.block_bytes)
    for block in blocks:
        block[:] = zeros


def check(blocks: Sequence[memoryview], pattern: Pattern) -> None:
    """Look at everything that should have arrived. Raises: WrongBytesError."""
    crcs, step = _crcs(pattern), pattern.block_bytes // _SAMPLES
    for source, target in zip(pattern.sources(), pattern.targets(), strict=True):
        block, content = blocks[target], _content(pattern, source)
        number = int.from_bytes(block[:_NUMBER_BYTES], "little")
        if number != source:
            raise WrongBytesError(f"{pattern.name}: in {target} lies {number}, not {source}")
        if any(block[at] != content[at] for at in range(step - 1, pattern.block_bytes, step)):
            raise WrongBytesError(f"{pattern.name}: block {source} has other bytes")
        if zlib.crc32(block) != crcs[source]:
            raise WrongBytesError(f"{pattern.name}: block {source} has another checksum")


def _content(pattern: Pattern, number: int) -> memoryview:
    """What is in a block, behind its number."""
    start = number * _NUMBER_BYTES
    return memoryview(_noise(pattern))[start : start + pattern.block_bytes]


@functools.lru_cache(maxsize=1)
def _noise(pattern: Pattern) -> bytes:
    size = pattern.block_bytes + pattern.slots * _NUMBER_BYTES
    return random.Random(_SEED + pattern.block_bytes).randbytes(size)


@functools.lru_cache(maxsize=1)
def _crcs(pattern: Pattern) -> dict[int, int]:
    """Checksums of the blocks that move, by number."""
    return {
        number: zlib.crc32(
            _content(pattern, number)[_NUMBER_BYTES:],
            zlib.crc32(number.to_bytes(_NUMBER_BYTES, "little")),
        )
        for number in pattern.sources()
    }
