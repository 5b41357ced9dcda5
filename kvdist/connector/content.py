"""What K/V are of: a digest that owner and reader derive each from its own tokens.

Owns:   nothing.
Knows nothing of: leases, messages.
Why:    a ticket comes by way of a client, who may send it with another prompt than the one that it
        was made for. Whoever serves compares, so that nobody publishes K/V under a wrong hash.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final, Protocol

from kvdist.cache.block_hash import pack_tokens
from kvdist.cache.extra_keys import ExtraKeys, frame
from kvdist.ids import BlockHash

DIGEST_BYTES: Final = 32


class Known(Protocol):
    """What is asked of a request."""

    block_hashes: list[BlockHash]
    extra_keys: ExtraKeys

    @property
    def all_token_ids(self) -> Sequence[int]:
        """Prompt and output."""

    @property
    def hash_block_size(self) -> int | None:
        """Tokens a hash; None: it has none."""


def digest(request: Known, num_tokens: int) -> bytes:
    """Of a request's first tokens: the hash of its last whole block, and the tokens behind that,
    with their images and embeddings.

    The hash covers adapters, salts and all else that decides K/V; without one they are named.
    """
    size = request.hash_block_size
    count = min(num_tokens // size, len(request.block_hashes)) if size else 0
    last = request.block_hashes[count - 1] if count else repr(request.extra_keys).encode()
    first = count * (size or 0)
    keys = frame(request.extra_keys.of_block(first, num_tokens)) if count else b""
    return _of(last + keys, request.all_token_ids[first:num_tokens])


def digest_of_hash(last: BlockHash) -> bytes:
    """Of tokens that end a block with this hash."""
    return _of(last, ())


def _of(last: bytes, tail: Sequence[int]) -> bytes:
    return sha256(b"%d:" % len(last) + last + pack_tokens(tail)).digest()
