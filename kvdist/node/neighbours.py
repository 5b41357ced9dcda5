"""What a node reaches others by: from settings to sockets.

Owns:   the sockets to the worker's links and to other nodes.
Knows nothing of: HTTP, what is exchanged.
"""

import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from kvdist.connector.compat import HASHES_BETWEEN_NODES
from kvdist.connector.messages import Fingerprint
from kvdist.connector.settings import Settings
from kvdist.errors import ConfigError
from kvdist.ids import Incarnation, NodeId, Rank
from kvdist.links.faults import read_faults
from kvdist.links.local_link import LocalLink
from kvdist.links.local_wire import Begin
from kvdist.links.marks import Marks
from kvdist.web.membership import read_node_id
from transports.api import Listener, Transport
from transports.config import SessionConfig
from transports.errors import TransportError
from transports.tcp import TcpTransport


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSettings:
    """How a node exchanges K/V with others."""

    node_id: NodeId
    role: Literal["prefill", "decode", "both"] = "both"
    #: What K/V travel by.
    transport: Literal["tcp", "shm", "ucx"] = "tcp"
    #: Where others reach us; control links are tcp.
    host: str = "127.0.0.1"
    control_port: int = 0
    #: Shared by the cluster; None: anybody may come.
    token: bytes | None = None
    hash_algorithm: str = "sha256"
    #: Bytes that come are checked against a checksum of their owner's.
    is_checked: bool = False
    #: What goes wrong with them on purpose; see `kvdist.links.faults`.
    faults: str = ""
    connector: Settings = field(default_factory=Settings)
    #: Tells this run from those before it (T21).
    run: Incarnation = field(default_factory=lambda: Incarnation(time.time_ns() // 1_000_000))

    def __post_init__(self) -> None:
        read_node_id(self.node_id)
        self.marks()
        try:
            self.session()
        except TransportError as error:
            raise ConfigError(str(error)) from error
        if self.hash_algorithm not in HASHES_BETWEEN_NODES:
            raise ConfigError(
                f"with {self.hash_algorithm} blocks aren't exchanged: a guest could find another "
                f"one's; choose of {', '.join(sorted(HASHES_BETWEEN_NODES))}"
            )

    def session(self) -> SessionConfig:
        """Of control links. Raises: TransportError."""
        return SessionConfig(node_id=self.node_id, incarnation=str(self.run), token=self.token)

    def marks(self) -> Marks:
        """Those that the node's process passes. Raises: ConfigError."""
        return Marks(read_faults(self.faults).at_marks if self.faults else ())

    def begin(self, rank: Rank) -> Begin:
        """What a worker has to know."""
        return Begin(
            self.node_id,
            self.run,
            rank,
            self.transport,
            self.host,
            self.token,
            self.hash_algorithm,
            self.connector,
            self.is_checked,
            self.faults,
        )


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What an exchange reaches others by."""

    transport: Transport
    listener: Listener
    #: By rank; and where others' workers find them.
    workers: tuple[LocalLink, ...]
    addresses: tuple[str, ...]
    fingerprint: Fingerprint


@asynccontextmanager
async def open_neighbours(
    settings: ExchangeSettings, worker: LocalLink
) -> AsyncIterator[Neighbours]:
    """Once the worker has loaded its model. Raises: ConfigError, WorkerLost."""
    listening = await worker.listening()
    async with TcpTransport(settings.session()).open() as transport:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        try:
            listener = await transport.listen(f"tcp://{host}:{settings.control_port}")
        except TransportError as error:
            raise ConfigError(f"no control link at {settings.host}: {error}") from error
        try:
            yield Neighbours(
                transport, listener, (worker,), (listening.address,), listening.fingerprint
            )
        finally:
            worker.close()


async def open_worker(settings: ExchangeSettings) -> tuple[LocalLink, socket.socket]:
    """Our end, and the end that the worker is to have."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return await LocalLink.open(ours, settings.begin(Rank(0))), theirs
