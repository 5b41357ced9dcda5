"""Settings of a session, all in one place, with what each is for.

Knows nothing of: any one transport.
Units:  seconds and bytes, by name.
"""

import ssl
from dataclasses import dataclass
from typing import Final

from transports.errors import LocalMisuse
from transports.frame import MAX_META_BYTES

#: Largest window, and so the most credit that one side can have.
MAX_WINDOW_BYTES: Final = 1 << 40
#: Largest size that a peer may announce.
MAX_SIZE: Final = 1 << 62
#: Of node ids and incarnations.
MAX_NAME_LENGTH: Final = 256


def least_window(eager_bytes: int) -> int:
    """The smallest window with small bodies up to `eager_bytes`: room for two messages."""
    return 2 * (eager_bytes + MAX_META_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """What this side says of itself and asks of peers. Raises: LocalMisuse for nonsense."""

    #: Name of this node; the same after a restart.
    node_id: str
    #: Tells this run of the node from all others.
    incarnation: str = "0"
    #: Shared secret of the cluster; it is proved, never sent. None: anybody may come.
    token: bytes | None = None
    #: Node ids that may connect. None: all that know the token.
    allow: frozenset[str] | None = None
    #: For tcp: contexts for the two roles; None: no TLS.
    tls_server: ssl.SSLContext | None = None
    tls_client: ssl.SSLContext | None = None

    #: A handshake that isn't over by then has failed.
    handshake_s: float = 5.0
    #: How often an idle link is asked whether it lives.
    keepalive_s: float = 1.0
    #: Silence that ends a link.
    lost_after_s: float = 4.0
    #: How long `close` waits for the peer to have read everything.
    close_s: float = 2.0

    #: Most meta of one message.
    max_meta_bytes: int = MAX_META_BYTES
    #: Most body of one message.
    max_body_bytes: int = 1 << 40
    #: Most of one region that a peer shares with us, and of all of them at a time: what we map.
    max_region_bytes: int = 1 << 40
    max_shared_bytes: int = 1 << 42
    #: Messages, small bodies included, that may lie unread here; what a slow reader costs.
    window_bytes: int = 1 << 20
    #: Bodies up to here travel with their message; larger ones wait until a place is named.
    eager_bytes: int = 64 << 10
    #: A body travels in parts of this size, so that other frames get a turn.
    part_bytes: int = 4 << 20
    #: Bodies we send carry checksums (crc32): costs a pass over the bytes on both sides.
    checksum_bodies: bool = False

    def __post_init__(self) -> None:
        for name in (self.node_id, self.incarnation):
            if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
                raise LocalMisuse("node id and incarnation are 1 to 256 printable characters")
        if self.token is not None and len(self.token) < 16:
            raise LocalMisuse("a token has at least 16 bytes")
        if not 0 < self.max_meta_bytes <= MAX_META_BYTES:
            raise LocalMisuse(f"max_meta_bytes {self.max_meta_bytes}")
        sizes = (
            self.max_body_bytes,
            self.eager_bytes,
            self.part_bytes,
            self.max_region_bytes,
            self.max_shared_bytes,
        )
        if min(sizes) < 1 or max(sizes) >= MAX_SIZE:
            raise LocalMisuse("sizes are positive, and within reason")
        if not least_window(self.eager_bytes) <= self.window_bytes <= MAX_WINDOW_BYTES:
            raise LocalMisuse("the window must hold two of the largest small messages")
        times = (self.handshake_s, self.keepalive_s, self.lost_after_s, self.close_s)
        if min(times) <= 0 or self.lost_after_s < 2 * self.keepalive_s:
            raise LocalMisuse("times are positive, and silence lasts at least two keep-alives")
