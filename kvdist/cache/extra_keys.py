"""What besides token ids decides a block's K/V, and its bytes inside the hash chain (S6).

Owns:   the encoding of extra keys.
Knows nothing of: hashing, blocks.
Units:  positions and lengths are tokens; limits are bytes.
Source: the document's list of extra keys; frames are ours (ADR-0003).

A frame stands in the hashed stream before the tokens it belongs to. It is announced by a marker
that no token id can be, and every part is tagged and carries its length, so that two different
lists of keys never give the same bytes: a salt equal to an adapter's name is another key.

    FF FF FF FF | u32 length of the rest | (u8 tag | u32 length | bytes) ...
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from kvdist.cache.numbers import check_number
from kvdist.errors import InvalidRequest

#: Announces a frame. The one 32-bit value that is not a token id.
FRAME_MARKER: Final = 0xFFFFFFFF
#: Longest salt, adapter name or path, or item identifier, in bytes of UTF-8.
MAX_KEY_BYTES: Final = 4096

_HEAD = struct.Struct("<II")
_PART = struct.Struct("<BI")
_OFFSET = struct.Struct("<q")

#: A key as events show it: its kind, then what it holds.
ExtraKey: TypeAlias = tuple[str, *tuple[str | int, ...]]

_TAGS: Final = {"lora": 1, "mm": 2, "cache_salt": 3, "prompt_embeds": 4}


@dataclass(frozen=True, slots=True)
class LoRAKey:
    """An adapter, so other weights. `path` tells apart what one name has pointed to."""

    name: str
    path: str = ""

    def __post_init__(self) -> None:
        _check_text("adapter name", self.name)
        _check_text("adapter path", self.path)


@dataclass(frozen=True, slots=True)
class MultiModalItem:
    """An image, sound or video whose placeholders stand at [offset, offset + length) tokens."""

    identifier: str
    offset: int
    length: int

    def __post_init__(self) -> None:
        _check_text("item identifier", self.identifier)
        check_number(InvalidRequest, "offset of an item", self.offset)
        check_number(InvalidRequest, "length of an item", self.length, 1)


@dataclass(frozen=True, slots=True)
class PromptEmbeds:
    """Embeddings given in place of prompt tokens: row-major bytes, one row a token."""

    data: bytes
    bytes_per_token: int

    def __post_init__(self) -> None:
        check_number(InvalidRequest, "bytes_per_token", self.bytes_per_token, 1)
        if not isinstance(self.data, bytes):
            raise InvalidRequest(f"embeddings are bytes, not {type(self.data).__name__}")
        if len(self.data) % self.bytes_per_token:
            raise InvalidRequest(
                f"{len(self.data)} bytes of embeddings are no whole rows of {self.bytes_per_token}"
            )

    @property
    def num_rows(self) -> int:
        """Tokens that have embeddings."""
        return len(self.data) // self.bytes_per_token

    def digest(self, start: int, end: int) -> bytes:
        """SHA-256 of the rows of tokens [start, end) and their width; empty if there are none."""
        rows = self.data[start * self.bytes_per_token : end * self.bytes_per_token]
        width = struct.pack("<Q", self.bytes_per_token)
        return hashlib.sha256(width + rows).digest() if rows else b""


@dataclass(frozen=True, slots=True)
class ExtraKeys:
    """All extra keys of one request."""

    cache_salt: str | None = None
    lora: LoRAKey | None = None
    mm_items: tuple[MultiModalItem, ...] = ()
    prompt_embeds: PromptEmbeds | None = None

    def __post_init__(self) -> None:
        if self.cache_salt is not None:
            _check_text("cache salt", self.cache_salt)
        for value, kind in ((self.lora, LoRAKey), (self.prompt_embeds, PromptEmbeds)):
            if value is not None and not isinstance(value, kind):
                raise InvalidRequest(f"a {kind.__name__}, not {type(value).__name__}")
        items = self.mm_items
        if not isinstance(items, tuple) or not all(isinstance(i, MultiModalItem) for i in items):
            raise InvalidRequest("multimodal items are a tuple of MultiModalItem")
        end = 0
        for item in self.mm_items:
            if item.offset < end:
                raise InvalidRequest("multimodal items overlap or are not in order")
            end = item.offset + item.length

    @property
    def per_block(self) -> bool:
        """True if some blocks have keys of their own."""
        return bool(self.mm_items) or self.prompt_embeds is not None

    @property
    def last_position(self) -> int:
        """The first token after everything that keys of blocks name."""
        rows = self.prompt_embeds.num_rows if self.prompt_embeds else 0
        return max(rows, *(item.offset + item.length for item in self.mm_items[-1:]), 0)

    def of_request(self) -> list[ExtraKey]:
        """Keys of the whole request: they stand once, before the first token."""
        keys: list[ExtraKey] = []
        if self.lora:
            keys.append(("lora", self.lora.name, self.lora.path))
        if self.cache_salt:
            keys.append(("cache_salt", self.cache_salt))
        return keys

    def of_block(self, start: int, end: int) -> list[ExtraKey]:
        """Keys of the block of tokens [start, end); offsets count from its start."""
        keys: list[ExtraKey] = [
            ("mm", item.identifier, item.offset - start)
            for item in self.mm_items
            if item.offset < end and start < item.offset + item.length
        ]
        if self.prompt_embeds and (digest := self.prompt_embeds.digest(start, end)):
            keys.append(("prompt_embeds", digest.hex()))
        return keys


def frame(keys: Sequence[ExtraKey]) -> bytes:
    """The bytes of `keys` inside the hashed stream; empty if there are none."""
    if not keys:
        return b""
    body = b"".join(
        _PART.pack(_TAGS[kind], sum(map(len, parts))) + b"".join(parts)
        for kind, *values in keys
        for parts in (list(_encode(values)),)
    )
    return _HEAD.pack(FRAME_MARKER, len(body)) + body


def _encode(values: Iterable[str | int]) -> Iterable[bytes]:
    for value in values:
        if isinstance(value, int):
            yield _OFFSET.pack(value)
        else:
            text = value.encode()
            yield struct.pack("<I", len(text)) + text


def _check_text(what: str, text: str) -> None:
    try:
        size = len(text.encode())
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"{what} is not text") from error
    if size > MAX_KEY_BYTES:
        raise InvalidRequest(f"{what} is {size} bytes long, at most {MAX_KEY_BYTES} are allowed")
