"""Bytes <-> frame heads: fixed size, numbered, checksummed. No I/O.

Knows nothing of: what frames mean to each other (`session`), how they travel (`wire`).
Units:  bytes. Integers are little-endian.

    0  magic 2 | version 1 | type 1 | kind 1 | flags 1 | meta length 2
    8  number 8 | argument 8 | body length 8 | body crc 4 | meta crc 4 | head crc 4     44 bytes
    44 meta, then the body

The head's crc covers all before it, so a size is believed only if it arrived as it was sent, and
even then only within the limits of its type.
"""

import struct
import zlib
from dataclasses import dataclass
from enum import STRICT, IntEnum, IntFlag
from typing import Final

from transports.errors import RemoteProtocol

MAGIC: Final = b"kx"
VERSION: Final = 1
MAX_META_BYTES: Final = 0xFFFF

_HEAD = struct.Struct("<2sBBBBHQQQII")
_CRC = struct.Struct("<I")
HEAD_BYTES: Final = _HEAD.size + _CRC.size


class Type(IntEnum):
    """What a frame is for."""

    HELLO = 1  #: handshake: who I am, what I ask of you
    PROOF = 2  #: handshake: the initiator knows the token
    WELCOME = 3  #: handshake: the acceptor is satisfied
    REFUSED = 4  #: handshake: no, and why
    MESSAGE = 5  #: a small message with its body
    OFFER = 6  #: a message whose body waits to be asked for
    WITHDRAW = 7  #: an offer is void
    ACCEPT = 8  #: send the body of this offer
    REFUSE = 9  #: don't send the body of this offer
    BODY = 10  #: the next part of an accepted body
    CREDIT = 11  #: so many more bytes of messages may come
    PING = 12  #: are you there?
    PONG = 13  #: I am
    REGION = 14  #: memory that you may read, and its size
    BYE = 15  #: nothing more will come
    UNSHARE = 16  #: don't read that region any more
    UNSHARED = 17  #: no read of that region is under way any more


class Flag(IntFlag, boundary=STRICT):
    """Bits of a head."""

    NONE = 0
    BODY_CRC = 1  #: the body's checksum is given


@dataclass(frozen=True, slots=True)
class Frame:
    """A head, decoded, with its meta."""

    type: Type
    number: int
    kind: int = 0
    argument: int = 0
    body_bytes: int = 0
    meta: bytes = b""
    flags: Flag = Flag.NONE
    body_crc: int = 0

    def encode(self) -> bytes:
        """Head and meta as they travel."""
        head = _HEAD.pack(
            MAGIC,
            VERSION,
            self.type,
            self.kind,
            self.flags,
            len(self.meta),
            self.number,
            self.argument,
            self.body_bytes,
            self.body_crc,
            zlib.crc32(self.meta),
        )
        return b"".join((head, _CRC.pack(zlib.crc32(head)), self.meta))


def meta_bytes(head: bytes | memoryview) -> int:
    """How much meta follows this head. Raises: RemoteProtocol if it is not a sound head."""
    if len(head) != HEAD_BYTES:
        raise RemoteProtocol(f"a head of {len(head)} bytes")
    (crc,) = _CRC.unpack_from(head, _HEAD.size)
    magic, version, _, _, _, length, *_ = _HEAD.unpack_from(head)
    if magic != MAGIC:
        raise RemoteProtocol("no frame of this protocol")
    if version != VERSION:
        raise RemoteProtocol(f"frame format {version}, we speak {VERSION}")
    if zlib.crc32(head[: _HEAD.size]) != crc:
        raise RemoteProtocol("a frame's head is corrupt")
    return int(length)


def is_message(head: bytes) -> bool:
    """A frame of ours whose body is small, and lands in memory of this machine, not of a GPU."""
    return head[3] == Type.MESSAGE


def decode(data: bytes | memoryview) -> Frame:
    """A frame from head and meta. Raises: RemoteProtocol if anything is unsound."""
    head, meta = data[:HEAD_BYTES], bytes(data[HEAD_BYTES:])
    if meta_bytes(head) != len(meta):
        raise RemoteProtocol(f"{len(meta)} bytes of meta, {meta_bytes(head)} announced")
    _, _, type_, kind, flags, _, number, argument, body, body_crc, meta_crc = _HEAD.unpack_from(
        head
    )
    if zlib.crc32(meta) != meta_crc:
        raise RemoteProtocol("a frame's meta is corrupt")
    try:
        return Frame(Type(type_), number, kind, argument, body, meta, Flag(flags), body_crc)
    except ValueError as error:
        raise RemoteProtocol(f"unknown frame: {error}") from None
