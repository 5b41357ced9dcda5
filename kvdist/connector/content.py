"""What K/V are of: a digest that owner and reader derive each from its own tokens.

Owns:   nothing.
Knows nothing of: leases, messages.
Why:    a ticket comes by way of a client, who may send it with another prompt than the one that it
        was made for. Whoever serves compares, so that nobody publishes K/V under a wrong hash.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from kvdist.cache.block_hash import pack_tokens
from kvdist.connector.host import KVRequest
from kvdist.ids import BlockHash

DIGEST_BYTES: Final = 32


def digest(request: KVRequest, num_tokens: int) -> bytes:
    """Of a request's first tokens: the hash of its last whole block, and the tokens behind that,
    with their keys. The hash covers adapters, salts and all else that decides K/V.
    """
    size = request.hash_block_size
    count = min(num_tokens // size, len(request.block_hashes)) if size else 0
    last = request.block_hashes[count - 1] if count else b""
    first = count * (size or 0)
    keys = request.key_bytes(first, num_tokens) if first < num_tokens else b""
    return _of(last + keys, request.all_token_ids[first:num_tokens])


def digest_of_hash(last: BlockHash) -> bytes:
    """Of tokens that end a block with this hash."""
    return _of(last, ())


def _of(last: bytes, tail: Sequence[int]) -> bytes:
    return sha256(b"%d:" % len(last) + last + pack_tokens(tail)).digest()
