"""What a reader's node wants and has under way, as data: claims and pulls.

Owns:   nothing; `Borrower` writes them.
Knows nothing of: why they change.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from kvdist.connector.host import KVRequest
from kvdist.connector.machine import Machine
from kvdist.connector.messages import MAX_LIST, Borrow, PartId, Renew, Stream, Ticket, since
from kvdist.connector.params import ByTransfer, Source
from kvdist.connector.tables import claim as claims, pull as pulls
from kvdist.ids import BlockId, Incarnation, LeaseId, NodeId, PullId, RequestId

#: What K/V are of: the hash of the last whole block; where there is none, the name of a claim.
Content: TypeAlias = bytes | str


@dataclass(eq=False, slots=True)
class Claim:
    """A lease that requests of ours want."""

    name: str
    node: NodeId
    source: Source
    machine: Machine[claims.State, claims.Event, claims.Effect]
    since: float
    #: Requests that want it: several if they share one prompt (T19).
    wanting: dict[RequestId, KVRequest] = field(default_factory=dict)
    ticket: Ticket | None = None
    #: Of the question asked by hash.
    number: int = 0
    tries: int = 0
    #: Pulls that have failed; the one that is under way, or not quiet yet.
    failed_rounds: int = 0
    pull: "Pull | None" = None
    #: Nothing will be pulled by it any more, and why.
    is_spent: bool = False
    why: str = ""


@dataclass(eq=False, slots=True)
class Pull:
    """One round: a destination being filled."""

    pull: PullId
    #: The request whose blocks are the destination; it may have been aborted since.
    request_id: RequestId
    claim: Claim
    machine: Machine[pulls.State, pulls.Event, pulls.Effect]
    num_tokens: int
    block_ids: list[BlockId]
    parts: frozenset[PartId]
    content: Content
    ended: set[PartId] = field(default_factory=set)
    quiet: set[PartId] = field(default_factory=set)
    reason: str = ""


def key_of(ticket: Ticket) -> tuple[NodeId, Incarnation, LeaseId]:
    """Which lease it is: no two owners agree on names, nor do two runs of one."""
    return ticket.node, ticket.incarnation, ticket.lease


def name_of(source: Source, request_id: RequestId) -> str:
    """One claim a lease, a transfer, or a request that asks by hash."""
    if isinstance(source, Ticket):
        return f"lease {source.lease.hex()} of {source.node}#{source.incarnation}"
    if isinstance(source, ByTransfer):
        return f"transfer {source.transfer} of {source.node}"
    return f"hashes of {request_id}"


def can_ask(source: Source, version: int) -> bool:
    """Whether a peer of that version can be asked in this way; a ticket needs no question."""
    return not isinstance(source, ByTransfer) or since(Stream) <= version


def hashes_of(claim: Claim, run: Incarnation) -> Borrow | None:
    """The question by hash for what a claim wants; None: its request can't say for what."""
    request = next(iter(claim.wanting.values()))
    if not request.hash_block_size:
        return None
    most = min((request.num_tokens - 1) // request.hash_block_size, MAX_LIST)
    hashes = tuple(request.block_hashes[:most])
    return Borrow(PullId(claim.number), run, hashes, request.hash_block_size)


def renewals_of(held: Iterable[Claim]) -> Iterator[tuple[NodeId, Renew]]:
    """One message a peer, with all of its leases, or as few as hold them (T22)."""
    leases: dict[NodeId, list[LeaseId]] = {}
    for claim in held:
        assert claim.ticket is not None
        leases.setdefault(claim.node, []).append(claim.ticket.lease)
    for peer, names in leases.items():
        for first in range(0, len(names), MAX_LIST):
            yield peer, Renew(tuple(names[first : first + MAX_LIST]))


def content_of(claim: Claim, request: KVRequest) -> Content:
    """What a pull of this claim would bring."""
    if claim.ticket is None or not request.hash_block_size:
        return claim.name
    count = claim.ticket.resume_tokens // request.hash_block_size
    return request.block_hashes[count - 1] if 0 < count <= len(request.block_hashes) else claim.name
