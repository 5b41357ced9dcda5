"""From tokens to the chain of block hashes (S6-S8).

Owns:   the hashed stream of a request and how far it has been hashed.
Knows nothing of: blocks, groups, pools.
Cost:   one update and one digest a block; nothing is hashed twice.
Source: the document's chained block hash. The chain is a running hash over the framed prefix,
        digested at each block's end (ADR-0003), not a hash over pickled tuples.

The stream: a header of 64 bytes, a frame with the keys of the whole request if it has any, then
block by block an optional frame and the tokens as little-endian u32. Each digest therefore names
everything before it, and a chain over small blocks serves every multiple of them.
"""

import hashlib
import struct
import sys
from array import array
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from kvdist.cache.extra_keys import FRAME_MARKER, ExtraKeys, frame
from kvdist.cache.numbers import check_number
from kvdist.errors import ConfigError, InvalidRequest
from kvdist.ids import BlockHash

#: Tokens; far above any real block.
MAX_HASH_BLOCK_SIZE: Final = 1 << 24

_NO_TOKEN: Final = struct.pack("<I", FRAME_MARKER)


class RunningHash(Protocol):
    """What the chain needs of a hash: `hashlib`'s interface."""

    def update(self, data: bytes, /) -> None:
        """Hash `data` after all before it."""

    def digest(self) -> bytes:
        """Digest of all so far; the hash can go on."""
        ...

    def copy(self) -> "RunningHash":
        """A hash that goes on from here by itself."""
        ...


def _xxh3_128() -> RunningHash:
    try:
        import xxhash
    except ImportError as error:
        raise ConfigError("the hash xxh3_128 needs the package xxhash") from error
    hash_: RunningHash = xxhash.xxh3_128()
    return hash_


def _sha256() -> RunningHash:
    return hashlib.sha256()


#: By name. `sha256` is the default: nobody can make two prefixes share a key. `xxh3_128` is faster
#: but not cryptographic: who may choose prompts can build collisions and so read or poison K/V of
#: others. It is for single nodes whose users trust each other, never between nodes (S7).
ALGORITHMS: Final[dict[str, Callable[[], RunningHash]]] = {
    "sha256": _sha256,
    "xxh3_128": _xxh3_128,
}


class BlockHasher:
    """Hashes requests in blocks of `hash_block_size` tokens; one for all requests of a node.

    Raises: ConfigError for an unknown algorithm or a block size below 1.

    >>> hasher = BlockHasher(4)
    >>> chain = hasher.start(ExtraKeys())
    >>> [digest.hex()[:6] for digest in chain.extend([1, 2, 3, 4, 5, 6, 7, 8, 9])]
    ['a9402d', '9237ca']
    """

    def __init__(self, hash_block_size: int, algorithm: str = "sha256") -> None:
        check_number(ConfigError, "hash_block_size", hash_block_size, 1, MAX_HASH_BLOCK_SIZE)
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            known = ", ".join(ALGORITHMS)
            raise ConfigError(f"no block hash named {algorithm!r}; there are {known}")
        self.hash_block_size = hash_block_size
        self.algorithm = algorithm
        self._root = ALGORITHMS[algorithm]()
        header = struct.pack("<16sI", b"kvdist chain 1", hash_block_size)
        self._root.update(header.ljust(64, b"\0"))

    def start(self, keys: ExtraKeys) -> "HashChain":
        """A chain for one request."""
        running = self._root.copy()
        if request_keys := keys.of_request():
            running.update(frame(request_keys))
        return HashChain(running, self.hash_block_size, keys if keys.per_block else None)


class HashChain:
    """The running hash of one request."""

    __slots__ = ("_block", "_block_keys", "_hashed_tokens", "_running", "block_size")

    def __init__(self, running: RunningHash, size: int, block_keys: ExtraKeys | None) -> None:
        self._running = running
        #: Tokens a hash.
        self.block_size = size
        self._block = struct.Struct(f"{4 * size}s")
        self._block_keys = block_keys
        self._hashed_tokens = 0

    def extend(self, tokens: Iterable[int]) -> list[BlockHash]:
        """Hash the whole blocks at the start of `tokens`, which go on where the last call ended.

        The rest, less than a block, is only checked and has to be passed again. Raises:
        InvalidRequest if something isn't a token id (0 .. 2**32 - 2); nothing has changed then.
        """
        packed = pack_tokens(tokens)
        whole = len(packed) // self._block.size * self._block.size
        update, digest = self._running.update, self._running.digest
        pieces = self._block.iter_unpack(packed[:whole] if whole < len(packed) else packed)
        if self._block_keys is None:
            # `update` returns None: one expression hashes a block and reads the digest.
            hashes = [BlockHash(update(piece) or digest()) for (piece,) in pieces]
        else:
            hashes = []
            for index, (piece,) in enumerate(pieces):
                start = self._hashed_tokens + index * self.block_size
                end = start + self.block_size
                update(frame(self._block_keys.of_block(start, end)))
                update(piece)
                hashes.append(BlockHash(digest()))
        self._hashed_tokens += len(hashes) * self.block_size
        return hashes


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """Token ids as little-endian u32. Raises: InvalidRequest for anything but 0 .. 2**32 - 2.

    >>> pack_tokens([1, 258]).hex()
    '0100000002010000'
    """
    if isinstance(tokens, bytes | bytearray | memoryview | str):
        raise InvalidRequest(f"token ids are whole numbers, not {type(tokens).__name__}")
    try:
        packed = array("I", tokens)
    except (TypeError, OverflowError) as error:
        raise InvalidRequest(f"not a token id: {error}") from error
    if sys.byteorder == "big":
        packed.byteswap()
    data = packed.tobytes()
    if _NO_TOKEN in data and FRAME_MARKER in packed:
        raise InvalidRequest(f"token id {FRAME_MARKER} is reserved")
    return data
