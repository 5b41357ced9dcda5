"""What workers of two nodes say to each other on a data link, beside the protocol's own messages.

Owns:   the kinds of a link's messages, and what their metas hold.
Knows nothing of: when what is said.
Format: msgpack arrays; every type and size is checked.

    INTRODUCTION   meta: `Introduction`             the first message, both ways
    MESSAGE        body: one message of `codec`
    BODY           meta: `BodyHead`                 body: the tokens' bytes, as `layout` lists them
    CHECK          body: `Check`                    what is the checksum of these bytes of yours?
    CHECKED        body: `Checked`                  the answer
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kvdist.connector.messages import MAX_GROUPS, MAX_TOKENS, PartId, TokenSpans
from kvdist.errors import RemoteProtocol
from kvdist.ids import PullId, Rank

INTRODUCTION: Final = 0
MESSAGE: Final = 1
BODY: Final = 2
CHECK: Final = 3
CHECKED: Final = 4

#: Spans of one question: more than any burst has.
_MAX_SPANS: Final = 1 << 20

_Count = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
_Head = Annotated[int, Meta(ge=0, le=1 << 16)]
_Span = tuple[_Count, _Count]


class Introduction(msgspec.Struct, frozen=True, array_like=True):
    """What a peer has to know of a worker's memory."""

    #: Tokens of a block, by group; 0: states.
    block_sizes: Annotated[tuple[_Count, ...], Meta(max_length=MAX_GROUPS)]
    #: That it keeps, of the whole model's: [first, last).
    heads: tuple[_Head, _Head]
    page_bytes: _Count
    block_bytes: _Count
    #: The number of the region that the peer may read; None: it is sent to.
    region: _Count | None


class BodyHead(msgspec.Struct, frozen=True, array_like=True):
    """Whose bytes come."""

    pull: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    reader: Annotated[int, Meta(ge=0, le=1 << 16)]
    owner: Annotated[int, Meta(ge=0, le=1 << 16)]
    spans: Annotated[tuple[_Span, ...], Meta(max_length=MAX_GROUPS)]

    @classmethod
    def of(cls, part: PartId, spans: TokenSpans) -> "BodyHead":
        """As the protocol has it."""
        return cls(part.pull, part.reader, part.owner, spans)

    @property
    def part(self) -> PartId:
        """As the protocol has it."""
        return PartId(PullId(self.pull), Rank(self.reader), Rank(self.owner))


class Check(msgspec.Struct, frozen=True, array_like=True):
    """A question, and its number."""

    number: _Count
    #: (first, size), in bytes.
    spans: Annotated[tuple[_Span, ...], Meta(max_length=_MAX_SPANS)]


class Checked(msgspec.Struct, frozen=True, array_like=True):
    """The answer to the question of that number."""

    number: _Count
    checksum: _Count


_encoder: Final = msgspec.msgpack.Encoder()
_introductions: Final = msgspec.msgpack.Decoder(Introduction)
_bodies: Final = msgspec.msgpack.Decoder(BodyHead)
_checks: Final = msgspec.msgpack.Decoder(Check)
_checked: Final = msgspec.msgpack.Decoder(Checked)


def write(meta: Introduction | BodyHead | Check | Checked) -> bytes:
    """For `Link.send`."""
    return _encoder.encode(meta)


def read_introduction(meta: bytes) -> Introduction:
    """Raises: RemoteProtocol."""
    try:
        return _introductions.decode(meta)
    except (msgspec.DecodeError, ValueError) as error:
        raise RemoteProtocol(f"no introduction: {error}") from None


def read_body_head(meta: bytes) -> BodyHead:
    """Raises: RemoteProtocol."""
    try:
        return _bodies.decode(meta)
    except (msgspec.DecodeError, ValueError) as error:
        raise RemoteProtocol(f"no head of a body: {error}") from None


def read_check(body: bytes) -> Check:
    """Raises: RemoteProtocol."""
    try:
        return _checks.decode(body)
    except (msgspec.DecodeError, ValueError) as error:
        raise RemoteProtocol(f"no question for a checksum: {error}") from None


def read_checked(body: bytes) -> Checked:
    """Raises: RemoteProtocol."""
    try:
        return _checked.decode(body)
    except (msgspec.DecodeError, ValueError) as error:
        raise RemoteProtocol(f"no checksum: {error}") from None
