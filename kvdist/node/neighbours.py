"""What a node reaches others by: from settings to sockets.

Owns:   the sockets to the worker's links and to other nodes.
Knows nothing of: HTTP, what is exchanged.
"""

import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
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
    settings: ExchangeSettings, *workers: LocalLink
) -> AsyncIterator[Neighbours]:
    """Once the workers, by rank, have loaded their model. Raises: ConfigError, WorkerLost."""
    try:
        listening = [await worker.listening() for worker in workers]
        fingerprint = _common([told.fingerprint for told in listening])
        addresses = tuple(told.address for told in listening)
        async with TcpTransport(settings.session()).open() as transport:
            listener = await _listen(settings, transport)
            yield Neighbours(transport, listener, workers, addresses, fingerprint)
    finally:
        for worker in workers:
            worker.close()


async def _listen(settings: ExchangeSettings, transport: Transport) -> Listener:
    """Raises: ConfigError."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        return await transport.listen(f"tcp://{host}:{settings.control_port}")
    except TransportError as error:
        raise ConfigError(f"no control link at {settings.host}: {error}") from error


def _common(told: Sequence[Fingerprint]) -> Fingerprint:
    """What all ranks of a node say of their blocks. Raises: ConfigError, naming what differs."""
    first = told[0]
    if first.num_ranks != len(told):
        raise ConfigError(f"num_ranks: workers say {first.num_ranks}, and there are {len(told)}")
    for rank, other in enumerate(told):
        for field_ in fields(first):
            mine, its = getattr(first, field_.name), getattr(other, field_.name)
            if mine != its:
                raise ConfigError(f"{field_.name}: rank 0 says {mine!r}, rank {rank} {its!r}")
    return first


async def open_worker(settings: ExchangeSettings, rank: int = 0) -> tuple[LocalLink, socket.socket]:
    """Our end, and the end that the worker of that rank is to have."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return await LocalLink.open(ours, settings.begin(Rank(rank))), theirs
