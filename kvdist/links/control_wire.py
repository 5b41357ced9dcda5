"""What two node processes say to each other on a control link, beside the protocol's own messages.

Owns:   the kinds of a link's messages.
Knows nothing of: when what is said.

    WELCOME   meta: msgpack, the addresses of our workers, by rank   the first word, both ways
    MESSAGE   body: one message of `codec`
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kvdist.connector import codec
from kvdist.connector.messages import Greeting, NodeMessage
from kvdist.errors import RemoteProtocol
from transports.api import Head

WELCOME: Final = 0
MESSAGE: Final = 1

_Address = Annotated[str, Meta(min_length=1, max_length=512)]
_encoder: Final = msgspec.msgpack.Encoder()
_welcomes: Final = msgspec.msgpack.Decoder(
    Annotated[tuple[_Address, ...], Meta(min_length=1, max_length=1024)]
)


def write_welcome(workers: tuple[str, ...]) -> bytes:
    """The meta of a welcome."""
    return _encoder.encode(workers)


def read_welcome(head: Head) -> tuple[str, ...]:
    """Where the peer's workers are, by rank. Raises: RemoteProtocol."""
    if head.kind != WELCOME:
        raise RemoteProtocol("the first word isn't a welcome")
    try:
        workers: tuple[str, ...] = _welcomes.decode(head.meta)
    except (msgspec.DecodeError, ValueError) as error:
        raise RemoteProtocol(f"no welcome: {error}") from None
    return workers


def read_message(body: bytes) -> NodeMessage | Greeting:
    """Raises: RemoteProtocol."""
    message = codec.decode(body)
    if not isinstance(message, NodeMessage | Greeting):
        raise RemoteProtocol(f"{type(message).__name__} isn't said between nodes")
    return message
