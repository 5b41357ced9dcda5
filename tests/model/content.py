"""What a block's content is, said without hashes (S6).

Owns:   nothing.
Knows nothing of: how content is hashed.
"""

from typing import NamedTuple

from kvdist.cache import Request


class Content(NamedTuple):
    """All that decides the K/V of a position: everything up to it."""

    salt: str
    lora: tuple[str, str] | None
    tokens: tuple[int, ...]
    #: For each multimodal item that has begun: its identifier and offset.
    items: tuple[tuple[str, int], ...]


def content(request: Request, num_tokens: int, drafts: tuple[int, ...] = ()) -> Content:
    """The first `num_tokens` of a request, its known tokens being followed by `drafts`."""
    keys = request.extra_keys
    tokens = (*request.all_token_ids, *drafts)[:num_tokens]
    assert len(tokens) == num_tokens
    lora = (keys.lora.name, keys.lora.path) if keys.lora else None
    items = tuple((i.identifier, i.offset) for i in keys.mm_items if i.offset < num_tokens)
    return Content(keys.cache_salt or "", lora, tokens, items)
