"""What a node and its own workers say to each other, over a reliable, ordered link.

Owns:   nothing; messages are frozen values.
Knows nothing of: peers; a link that breaks ends both sides (T5).
"""

from dataclasses import dataclass
from typing import TypeAlias

from kvdist.connector.messages import Blocks, Heads, PartId, TokenSpans
from kvdist.ids import Incarnation, LeaseId, NodeId, Rank


def worker_address(node: NodeId, rank: Rank) -> str:
    """The name by which one of a node's workers is looked up."""
    return f"{node}/{rank}"


# -- node to worker --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Grant:
    """You may serve this lease. Answered by `Granted`."""

    lease: LeaseId
    blocks: Blocks
    resume_tokens: int
    #: Tokens whose K/V are written; with less than `resume_tokens` it is a stream.
    settled: int
    #: Of the tokens that the lease is of (`content`).
    content: bytes


@dataclass(frozen=True, slots=True)
class Extend:
    """More of a stream is written; not answered."""

    lease: LeaseId
    settled: int


@dataclass(frozen=True, slots=True)
class Revoke:
    """Serve it no more. Answered by `Revoked` once nothing of it is read."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class Fetch:
    """Bring this part. Answered by one `PartEnded` and then one `PartQuiet`."""

    part: PartId
    lease: LeaseId
    owner: NodeId
    owner_run: Incarnation
    wanted: TokenSpans
    heads: Heads
    #: Our own tables, where it lands.
    targets: Blocks
    #: Of the tokens that we take the lease to be of.
    content: bytes

    @property
    def address(self) -> str:
        """Of the owner's worker, as the host's membership knows it."""
        return worker_address(self.owner, self.part.owner)


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody wants this part any more; answered as `Fetch` says."""

    part: PartId


# -- worker to node --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Granted:
    """The worker serves the lease."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class Revoked:
    """The worker reads and sends nothing of the lease, and never will."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class PartEnded:
    """The verdict on a part."""

    part: PartId
    #: Empty: the bytes are there and confirmed.
    failure: str
    #: The owner serves this lease no more: another round can't go better.
    is_lease_gone: bool = False


@dataclass(frozen=True, slots=True)
class PartQuiet:
    """No byte of this part can land any more."""

    part: PartId


ToWorker: TypeAlias = Grant | Extend | Revoke | Fetch | Cancel
FromWorker: TypeAlias = Granted | Revoked | PartEnded | PartQuiet
