"""Who is at the other end: version, node, incarnation, and proof of the cluster token. No I/O.

Knows nothing of: links, credits, any one transport.
Source: mutual challenge-response with HMAC-SHA-256 (RFC 2104); the roles are part of what is
        signed, so that a proof can't be sent back to who made it.

    initiator                         acceptor
        HELLO  (who, nonce)  ------->
               <-------  HELLO (who, nonce, proof of both hellos)
        PROOF  (proof of both hellos) ->
               <-------  WELCOME            or REFUSED with a reason, at any point
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from transports.api import Peer
from transports.config import (
    MAX_NAME_LENGTH,
    MAX_SIZE,
    MAX_WINDOW_BYTES,
    SessionConfig,
    least_window,
)
from transports.errors import Refused, RemoteProtocol
from transports.frame import MAX_META_BYTES

PROTOCOL: Final = 1
NONCE_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Hello:
    """One side's introduction, with the bytes that were sent."""

    node_id: str
    incarnation: str
    nonce: bytes
    window_bytes: int
    eager_bytes: int
    max_meta_bytes: int
    max_body_bytes: int
    max_region_bytes: int
    max_shared_bytes: int
    has_token: bool
    raw: bytes


def make_hello(config: SessionConfig, nonce: bytes) -> Hello:
    """Introduce this side; `nonce` is fresh chance, `NONCE_BYTES` long."""
    fields = {
        "protocol": PROTOCOL,
        "node": config.node_id,
        "incarnation": config.incarnation,
        "nonce": nonce.hex(),
        "window": config.window_bytes,
        "eager": config.eager_bytes,
        "max_meta": config.max_meta_bytes,
        "max_body": config.max_body_bytes,
        "max_region": config.max_region_bytes,
        "max_shared": config.max_shared_bytes,
        "token": config.token is not None,
    }
    return parse_hello(json.dumps(fields).encode())


def parse_hello(raw: bytes) -> Hello:
    """Raises: RemoteProtocol if it isn't an introduction; Refused for another protocol."""
    try:
        fields: Mapping[str, Any] = json.loads(raw)
        protocol = fields["protocol"]
        if type(protocol) is not int:
            raise ValueError("protocol")
        if protocol != PROTOCOL:
            raise Refused(f"protocol {protocol!r:.20}, we speak {PROTOCOL}")
        hello = Hello(
            node_id=_text(fields["node"]),
            incarnation=_text(fields["incarnation"]),
            nonce=bytes.fromhex(fields["nonce"]),
            window_bytes=_size(fields["window"]),
            eager_bytes=_size(fields["eager"]),
            max_meta_bytes=_size(fields["max_meta"]),
            max_body_bytes=_size(fields["max_body"]),
            max_region_bytes=_size(fields["max_region"]),
            max_shared_bytes=_size(fields["max_shared"]),
            has_token=fields["token"] is True,
            raw=raw,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RemoteProtocol(f"no introduction: {type(error).__name__}") from None
    if len(hello.nonce) != NONCE_BYTES:
        raise RemoteProtocol("no introduction: nonce")
    if hello.max_meta_bytes > MAX_META_BYTES:
        raise RemoteProtocol("no introduction: meta")
    if not least_window(hello.eager_bytes) <= hello.window_bytes <= MAX_WINDOW_BYTES:
        raise RemoteProtocol("no introduction: window")
    return hello


def proof(config: SessionConfig, role: str, initiator: Hello, acceptor: Hello) -> bytes:
    """What only who knows the token can say as `role` about this pair of introductions."""
    first = hashlib.sha256(initiator.raw).digest()
    second = hashlib.sha256(acceptor.raw).digest()
    return hmac.digest(config.token or b"", role.encode() + b"\0" + first + second, "sha256")


def check_token_use(config: SessionConfig, hello: Hello) -> None:
    """Raises: Refused if only one side has a token; what else it would prove can't fit."""
    if hello.has_token != (config.token is not None):
        raise Refused("one side has a cluster token, the other has none")


def judge(config: SessionConfig, hello: Hello, address: str) -> Peer:
    """Decide on a peer that has given its proof: strangers mustn't learn who is on the list.
    Raises: Refused.
    """
    if config.allow is not None and hello.node_id not in config.allow:
        raise Refused(f"node {hello.node_id!r} is not on the allow-list")
    return Peer(hello.node_id, hello.incarnation, address)


def check_proof(expected: bytes, given: bytes) -> None:
    """Raises: Refused if they differ; takes the same time whatever differs."""
    if not hmac.compare_digest(expected, given):
        raise Refused("the peer does not know the cluster token")


def _text(value: object) -> str:
    # What is printable has no half of a surrogate pair either: it can be encoded and logged.
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_LENGTH:
        raise ValueError("text")
    if not value.isprintable():
        raise ValueError("text")
    return value


def _size(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < MAX_SIZE:
        raise ValueError("size")
    return value
