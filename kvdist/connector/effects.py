"""What the halves ask their hosts to do; a host carries it out and decides nothing.

Owns:   nothing; effects are frozen values.
Knows nothing of: links, tasks, tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kvdist.connector.geometry import Piece
from kvdist.connector.host import Moved
from kvdist.connector.local import FromWorker, ToWorker
from kvdist.connector.messages import (
    VERSION,
    Greeting,
    Heads,
    NodeMessage,
    PartId,
    Refusal,
    Role,
    Ticket,
    TokenSpans,
    WorkerMessage,
)
from kvdist.ids import Incarnation, NodeId, Rank, RequestId

# -- of the scheduler half -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendToNode:
    """Over the control link to that node, whatever run of it is there."""

    node: NodeId
    message: NodeMessage | Greeting
    #: In which it is to be encoded.
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class SendToWorker:
    """To a worker of our own."""

    rank: Rank
    message: ToWorker


@dataclass(frozen=True, slots=True)
class TicketReady:
    """Who asked for this prefill can have its answer."""

    request_id: RequestId
    #: None: there is nothing to fetch.
    ticket: Ticket | None


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker doesn't answer: this run of the node is over (T5)."""

    rank: Rank


@dataclass(frozen=True, slots=True)
class PeerRefused:
    """That node and ours can't exchange blocks, and nothing more is said to it: for the log."""

    node: NodeId
    differences: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class DutyOver:
    """After a change of role: nothing that the node did for others in its old one is left."""

    #: `PREFILL`: nothing is lent; `DECODE`: nothing is read.
    duty: Role


NodeEffect: TypeAlias = (
    SendToNode | SendToWorker | TicketReady | WorkerLost | PeerRefused | DutyOver | Moved
)

# -- of the worker half ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendToPeer:
    """Over the data link to another node's worker: as an answer on the link it came by, else on the
    link to that address.
    """

    address: str
    message: WorkerMessage | Greeting
    #: In which it is to be encoded.
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class SendToOwnNode:
    """To our own node."""

    message: FromWorker


#: A part as its owner knows it: the same number from another run of the reader is another one.
ServeKey: TypeAlias = tuple[NodeId, Incarnation, PartId]


@dataclass(frozen=True, slots=True)
class SendBytes:
    """Send these slots, in order; then `WorkerHalf.sent`, however it went."""

    address: str
    key: ServeKey
    spans: TokenSpans
    heads: Heads
    pieces: Sequence[Piece]


@dataclass(frozen=True, slots=True)
class StopSending:
    """As soon as can be; `sent` follows all the same."""

    address: str
    key: ServeKey


@dataclass(frozen=True, slots=True)
class ReadBytes:
    """Read slots of the owner's into ours, one-sided; then `landed` or `read_failed`."""

    address: str
    part: PartId
    spans: TokenSpans
    heads: Heads
    source: Sequence[Piece]
    target: Sequence[Piece]


@dataclass(frozen=True, slots=True)
class StopRead:
    """Let nothing more land; `quiet` follows when nothing can."""

    address: str
    part: PartId


@dataclass(frozen=True, slots=True)
class CutLink:
    """End the data link to this peer."""

    address: str


@dataclass(frozen=True, slots=True)
class Escalate:
    """Still not quiet: give up, by level, the link, the endpoint, the transport's context, and at
    last this worker (T17).
    """

    address: str
    level: int


WorkerEffect: TypeAlias = (
    SendToPeer | SendToOwnNode | SendBytes | StopSending | ReadBytes | StopRead | CutLink | Escalate
)
