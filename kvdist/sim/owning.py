"""What an owner's node owes to those whom it lends to.

Owns:   who reads which transfer along, and who has to hear that its lease is taken back.
Knows nothing of: bytes, links.
Promise: a ticket leaves when every worker can serve its lease (T15); a transfer has one reader
        at a time (T19); whoever reads a lease that is taken back is told (T11); what is lent by
        hash can be spared, and is written (T1, T13).
"""

from typing import TYPE_CHECKING

from kvdist.connector.effects import SendToNode, SendToWorker, TicketReady
from kvdist.connector.local import Revoke
from kvdist.connector.messages import Lent, Message, Renew, StreamState, Ticket, Withdrawn, since
from kvdist.connector.tables.lease import Event, State
from kvdist.errors import InvariantViolation
from kvdist.ids import LeaseId, NodeId, TransferId

if TYPE_CHECKING:
    from kvdist.sim.node import SimNode


class Owning:
    """Of one node. Raises: InvariantViolation where a promise is broken."""

    def __init__(self, node: "SimNode") -> None:
        self._node = node
        self._readers: dict[TransferId, tuple[NodeId, LeaseId]] = {}
        #: In the midst of an event: who has to hear that which lease is taken back.
        self._owed: set[tuple[NodeId, LeaseId]] = set()
        self._leases: set[LeaseId] = set()
        self._free = 0

    def does(self, effect: object) -> None:
        """What the node does."""
        match effect:
            case TicketReady(ticket=Ticket() as ticket):
                self._issues(ticket)
            case SendToNode(message=Lent(ticket=Ticket() as ticket)):
                self._issues(ticket)
            case SendToNode(reader, StreamState(transfer, ticket=Ticket() as ticket)):
                self._issues(ticket)
                self._admits(transfer, reader, ticket.lease)
            case SendToNode(reader, Withdrawn(lease)):
                self._owed.discard((reader, lease))
            case SendToWorker(message=Revoke(lease)):
                self._takes_back(lease)
            case _:
                pass

    def _issues(self, ticket: Ticket) -> None:
        for worker in self._node.workers:
            if worker.is_alive and ticket.lease not in worker.half.server.leases:
                raise InvariantViolation(f"T15: a ticket is out that {worker.name} can't serve")

    def _admits(self, transfer: TransferId, reader: NodeId, lease: LeaseId) -> None:
        first, its = self._readers.get(transfer, (reader, lease))
        if first != reader and its in self._node.half.lender.leases:
            raise InvariantViolation(f"T19: {transfer} is {first}'s, and {reader} gets it")
        self._readers[transfer] = (reader, lease)

    def _takes_back(self, name: LeaseId) -> None:
        lease = self._node.half.lender.leases.get(name)
        if lease is None or lease.reader is None:
            return
        state, event = lease.machine.story[-1]
        knows = self._node.half.contacts.versions.get(lease.reader, 0) >= since(Withdrawn)
        if state is State.ACTIVE and event is Event.TAKEN_BACK and knows:
            self._owed.add((lease.reader, name))

    def ends(self) -> None:
        """All that follows from an event was done."""
        owed, self._owed = self._owed, set()
        if owed:
            raise InvariantViolation(f"T11: {owed} hear nothing of it")

    def is_asked(self) -> None:
        """It is about to act on a peer's message."""
        self._leases = set(self._node.half.lender.leases)
        self._free = self._num_free

    def has_answered(self, peer: NodeId, message: Message) -> None:
        """It has: what is lent now, and wasn't, is lent by hash; what was renewed waits (T22)."""
        node, manager = self._node, self._node.manager
        if isinstance(message, Renew) and peer in node.half.contacts.versions:
            self._look_at_clocks(peer, message)
        for name, lease in node.half.lender.leases.items():
            if name in self._leases:
                continue
            if not all(manager.is_settled(block) for block in lease.block_ids):
                raise InvariantViolation(f"T1: {lease.block_ids} are lent, and aren't written")
            kept = manager.config.watermark_blocks + node.scheduler.reserved_blocks
            if self._num_free < min(self._free, kept):
                raise InvariantViolation(f"T13: {self._num_free} blocks are left of {kept}")

    def _look_at_clocks(self, peer: NodeId, renewed: Renew) -> None:
        lender, settings = self._node.half.lender, self._node.cluster.settings
        for name in renewed.leases:
            lease = lender.leases.get(name)
            if lease is None or lease.machine.state is not State.ACTIVE:
                continue
            mine = lease.number is None or lease.reader == peer
            ends_at = min(lender.now + settings.lease_s, lease.ends_at)
            if mine and lender.timers.at(("clock", name)) != ends_at:
                raise InvariantViolation(f"T22: {name.hex()} was renewed, and ends sooner")

    @property
    def _num_free(self) -> int:
        return self._node.manager.block_pool.get_num_free_blocks()
