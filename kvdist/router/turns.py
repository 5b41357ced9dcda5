"""Conversations: which nodes a request's earlier turn was answered by, and have its K/V.

Owns:   a bounded table of what was answered last.
Knows nothing of: HTTP, what becomes of what it says: it may be wrong, and costs little then.

A request is a chain of pieces: a message each, or 256 characters, or 64 tokens of a prompt. What is
remembered of an answered one is the digest of its last whole piece, which holds all before it. A
later turn is longer, and its chain goes through that digest.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence as Listing
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from kvdist.router.bodies import Asked
from kvdist.router.nodes import Node

_MAX_TURNS: Final = 1 << 14
#: Pieces of one request; what comes after them tells nothing any more.
_MAX_PIECES: Final = 1024
_PIECE_CHARS: Final = 256
_PIECE_TOKENS: Final = 64


@dataclass(frozen=True, slots=True)
class Turn:
    """Who has answered it. `prefill` None: the decode node computed the prompt itself."""

    decode: Node
    prefill: Node | None
    num_chars: int


class Turns:
    """Of all clients: who sends the same as another one sends a guess that is right for both."""

    def __init__(self) -> None:
        self._turns: OrderedDict[bytes, Turn] = OrderedDict()

    def __len__(self) -> int:
        return len(self._turns)

    def before(self, chain: Listing[bytes], num_chars: int) -> Turn | None:
        """The latest that a request goes on from which has that chain and so many characters."""
        turns = map(self._turns.get, reversed(chain))
        return next((turn for turn in turns if turn and turn.num_chars < num_chars), None)

    def answered(self, chain: Listing[bytes], turn: Turn) -> None:
        """So was a request with that chain."""
        if chain:
            self._turns[chain[-1]] = turn
            self._turns.move_to_end(chain[-1])
            if len(self._turns) > _MAX_TURNS:
                self._turns.popitem(last=False)


def chain_of(asked: Asked) -> Listing[bytes]:
    """A digest for each piece, of it and all before it."""
    body, digests = asked.body, []
    chain = blake2b(json.dumps([body.get("model"), body.get("cache_salt")]).encode())
    for piece in _pieces(body):
        chain.update(b"\0" + piece)
        digests.append(chain.digest()[:16])
    return digests


def _pieces(body: dict[str, Any]) -> Iterator[bytes]:
    if isinstance(messages := body.get("messages"), list):
        for message in messages[:_MAX_PIECES]:
            yield _written(message)
        return
    prompt = body.get("prompt")
    size = _PIECE_CHARS if isinstance(prompt, str) else _PIECE_TOKENS
    if isinstance(prompt, str | list):
        for first in range(0, min(len(prompt), _MAX_PIECES * size) - size + 1, size):
            yield _written(prompt[first : first + size])


def _written(piece: object) -> bytes:
    try:
        return json.dumps(piece, sort_keys=True).encode()
    except RecursionError:  # no node reads it
        return b""
