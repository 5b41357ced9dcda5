"""What a node and the connector's half in its worker say to each other, as bytes.

Owns:   the frames, and the number of each kind of message.
Knows nothing of: what messages are for, who reads the socket.
Format: u32 little-endian length, then msgpack: `[kind, message]`.

Both are of one version and one user; but a worker may be broken, so types and sizes are checked.
"""

import asyncio
import struct
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from kvdist.connector import local
from kvdist.connector.messages import Fingerprint
from kvdist.connector.settings import Settings
from kvdist.errors import FormatError
from kvdist.ids import Incarnation, NodeId, Rank

_HEAD: Final = struct.Struct("<I")
#: Far above the tables of the longest sequences.
_MAX_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Begin:
    """The first that a node says: who the worker is, and how it meets others."""

    node: NodeId
    run: Incarnation
    rank: Rank
    #: tcp, shm or ucx.
    transport: str
    host: str
    token: bytes | None
    #: What blocks are found by.
    hash_algorithm: str
    settings: Settings
    #: Bytes are checked against a checksum of their owner's.
    is_checked: bool = False
    #: What goes wrong with them on purpose (`faults`); empty: nothing.
    faults: str = ""


@dataclass(frozen=True, slots=True)
class Listening:
    """The first that a worker says: where others' workers find it, and what its blocks are like."""

    address: str
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True)
class Ask:
    """Where are the workers of that node? Answered by `Known`."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Known:
    """There, by rank; nowhere: nobody knows."""

    node: NodeId
    addresses: tuple[str, ...]


LocalMessage: TypeAlias = Begin | Listening | Ask | Known | local.ToWorker | local.FromWorker

_KINDS: Final[tuple[type, ...]] = (
    Begin, Listening, Ask, Known, local.Grant, local.Extend, local.Revoke, local.Fetch,
    local.Cancel, local.Granted, local.Revoked, local.PartEnded, local.PartQuiet,
)  # fmt: skip
_NUMBER: Final = {kind: number for number, kind in enumerate(_KINDS)}
_encoder: Final = msgspec.msgpack.Encoder()
_envelopes: Final = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
_decoders: Final[tuple[msgspec.msgpack.Decoder[LocalMessage], ...]] = tuple(
    msgspec.msgpack.Decoder(kind) for kind in _KINDS
)


def frame(message: LocalMessage) -> bytes:
    """One message with its length."""
    body = _encoder.encode((_NUMBER[type(message)], message))
    return _HEAD.pack(len(body)) + body


async def read(reader: asyncio.StreamReader) -> LocalMessage:
    """The next message. Raises: FormatError; EOFError when there is none any more."""
    (size,) = _HEAD.unpack(await _exactly(reader, _HEAD.size))
    if size > _MAX_BYTES:
        raise FormatError(f"a message of {size} bytes, at most {_MAX_BYTES} are allowed")
    body = await _exactly(reader, size)
    try:
        kind, raw = _envelopes.decode(body)
        if not 0 <= kind < len(_KINDS):
            raise FormatError(f"no kind of message: {kind}")
        message: LocalMessage = _decoders[kind].decode(raw)
    except (msgspec.DecodeError, ValueError) as error:
        raise FormatError(f"no message: {error}") from error
    return message


async def _exactly(reader: asyncio.StreamReader, size: int) -> bytes:
    """Who dies before it has read all that was said to it resets the socket: that is its end."""
    try:
        return await reader.readexactly(size)
    except ConnectionError:
        raise EOFError("the other end has died") from None
