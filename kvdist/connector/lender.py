"""The owner's node: which blocks are promised to which peer, until when.

Owns:   the leases, their clocks, and what each worker has acknowledged of them.
Knows nothing of: our block pool (it is given ids, and asks `Holdings`), links, who reads what.
Source: T1, T4, T10-T15, T22, T25 of docs/protocol.md.
"""

from collections import Counter
from collections.abc import Callable

from kvdist.connector import rules
from kvdist.connector.content import digest_of_hash
from kvdist.connector.effects import NodeEffect, SendToNode, SendToWorker, TicketReady, WorkerLost
from kvdist.connector.geometry import Geometry, covers, kept
from kvdist.connector.host import BlocksReturned, Holdings
from kvdist.connector.leases import Lease
from kvdist.connector.local import Extend, Grant, Revoke
from kvdist.connector.machine import Machine
from kvdist.connector.messages import (
    Blocks,
    Borrow,
    Lent,
    NoTicket,
    Progress,
    Release,
    Released,
    Renew,
    Stream,
    StreamState,
    Ticket,
    Withdrawn,
)
from kvdist.connector.settings import Settings
from kvdist.connector.tables.lease import LEASE, Effect, Event, State
from kvdist.connector.timers import Timers
from kvdist.connector.transfers import Transfers
from kvdist.ids import (
    BlockId,
    Incarnation,
    LeaseId,
    NodeId,
    PullId,
    Rank,
    RequestId,
    TransferId,
)


class Lender:
    """See the module; `out` collects effects."""

    def __init__(
        self,
        node: NodeId,
        run: Incarnation,
        geometry: Geometry,
        settings: Settings,
        holdings: Holdings,
        contents: Callable[[RequestId, int], bytes],
        new_lease_id: Callable[[], LeaseId],
        out: list[NodeEffect],
    ) -> None:
        self._node, self._run = node, run
        self._geometry, self._settings, self._holdings = geometry, settings, holdings
        #: Of a request's first tokens: a digest (`content`).
        self._contents = contents
        self._new_lease_id = new_lease_id
        self._out = out
        #: Seconds on the host's clock, which sets it before it hands anything over.
        self.now = 0.0
        self.leases: dict[LeaseId, Lease] = {}
        #: Blocks under lease, shared ones counted once for each lease; and those lent by hash.
        self.num_leased = 0
        self._lent_by_hash: Counter[NodeId] = Counter()
        self._by_question: dict[tuple[NodeId, Incarnation, PullId], Lease] = {}
        #: Requests whose blocks are to be lent at their end, and under which transfer.
        self._to_lend: dict[RequestId, TransferId | None] = {}
        #: Of those: requests that are still computed and whose reader needs no more of them.
        self._unwanted: set[RequestId] = set()
        self._by_request: dict[RequestId, Lease] = {}
        self.transfers = Transfers(settings)
        self.timers: Timers[tuple[str, object]] = Timers()
        #: What was ignored, by kind: unknown, late.
        self.counts: Counter[str] = Counter()
        self.is_draining = False
        #: False while the node's role is another: nothing new is promised.
        self.lends = True
        self._do = {
            Effect.ISSUE_TICKET: self._issue_ticket,
            Effect.REFUSE_TICKET: self._refuse_ticket,
            Effect.RESTART_CLOCK: self._restart_clock,
            Effect.SEND_REVOKE: self._send_revoke,
            Effect.SEND_WITHDRAWN: self._send_withdrawn,
            Effect.RETURN_BLOCKS: self._return_blocks,
        }

    # -- from the scheduler --------------------------------------------------------------------

    def lend_at_end(
        self, request_id: RequestId, transfer: TransferId | None = None, *, reads_along: bool = True
    ) -> None:
        """The K/V of this request are for a peer; with a transfer id it may read along (T11).

        Raises: InvalidRequest for a transfer id that can't be; see `Transfers.begin`.
        """
        if transfer is not None:
            self.transfers.begin(transfer, request_id, reads_along=reads_along)
        self._to_lend[request_id] = transfer
        if transfer is not None:
            self._answer_stream(transfer)

    def is_full(self) -> bool:
        """True if no more can be lent: new work for peers is to be refused (T10)."""
        return not self._may_lend(1)

    def admitted(self, request_id: RequestId, blocks: Blocks, resume_tokens: int) -> None:
        """A request whose K/V are for a peer got blocks: with all that it will write it can be read
        along (T11). It may be said again, with more.
        """
        transfer = self._to_lend.get(request_id)
        if request_id in self._unwanted or request_id in self._by_request:
            return
        if transfer is None or not self.transfers.may_read_along(transfer, self._geometry):
            return
        blocks = kept(self._geometry, blocks, resume_tokens)
        if covers(self._geometry, blocks, resume_tokens) and self._fits(blocks):
            content = self._contents(request_id, resume_tokens)
            self._begin(request_id, blocks, resume_tokens, 0, content, transfer=transfer)

    def settled(self, request_id: RequestId, num_tokens: int) -> None:
        """So many tokens of a request are written, by steps that are over."""
        lease = self._by_request.get(request_id)
        if lease is None or num_tokens <= lease.settled:
            return
        lease.settled = min(num_tokens, lease.resume_tokens)
        if lease.machine.state in (State.GRANTING, State.ACTIVE):
            self._to_workers(Extend(lease.lease, lease.settled))

    def may_preempt(self, request_id: RequestId) -> bool:
        """Whether nobody reads along; if somebody does, that is being ended (T12)."""
        lease = self._by_request.get(request_id)
        if lease is None:
            return True
        self._handle(lease, Event.TAKEN_BACK)
        return False

    def finished(
        self, request_id: RequestId, blocks: Blocks, num_tokens: int, *, is_usable: bool
    ) -> list[BlockId]:
        """A request has ended; returns those of its blocks that are lent, and have to be held."""
        wanted = request_id in self._to_lend
        transfer = self._to_lend.pop(request_id, None)
        is_usable &= request_id not in self._unwanted
        self._unwanted.discard(request_id)
        lease = self._by_request.get(request_id)
        if lease is not None:  # somebody reads along, or did
            lease.is_held = True
            self._end_stream(lease, num_tokens, is_usable=is_usable)
            return lease.block_ids
        if not wanted:
            return []
        if is_usable and num_tokens:
            blocks = kept(self._geometry, blocks, num_tokens)
        if is_usable and num_tokens and self._fits(blocks):
            content = self._contents(request_id, num_tokens)
            lease = self._begin(
                request_id, blocks, num_tokens, num_tokens, content, transfer=transfer
            )
            lease.is_held = True
            return lease.block_ids
        self._out.append(TicketReady(request_id, None))
        self._forget_transfer(transfer)
        return []

    def _end_stream(self, lease: Lease, num_tokens: int, *, is_usable: bool) -> None:
        """A request that somebody reads along with has ended; its ticket is an ordinary one now."""
        request_id, state = lease.request_id, lease.machine.state
        assert request_id is not None
        if not is_usable:
            self._handle(lease, Event.TAKEN_BACK)
        self.settled(request_id, num_tokens)
        if state is State.ACTIVE:
            ticket = self._ticket(lease) if is_usable else None
            self._out.append(TicketReady(request_id, ticket))
        elif state is State.REVOKING:
            self._out.append(TicketReady(request_id, None))

    def take_back_all(self) -> None:
        """Nothing that is lent counts any more: the model or its adapters change (T9)."""
        for lease in list(self.leases.values()):
            self._handle(lease, Event.TAKEN_BACK)

    @property
    def num_coming_back(self) -> int:
        """Leases whose blocks come back as soon as nobody reads them."""
        return sum(lease.machine.state is State.REVOKING for lease in self.leases.values())

    def take_back_soft(self) -> None:
        """The node needs blocks: leases by hash go first (T13)."""
        for lease in list(self.leases.values()):
            if lease.request_id is None:
                self._handle(lease, Event.TAKEN_BACK)

    def drain(self) -> None:
        """Lend nothing more; what is lent stays until it is released or its life ends."""
        self.is_draining = True

    # -- from peers ----------------------------------------------------------------------------

    def on_release(self, peer: NodeId, message: Release) -> None:
        """Answered whatever it names (T4, T14)."""
        lease = self.leases.get(message.lease)
        if lease is None or not rules.is_same_run(message.incarnation, self._run):
            self.counts["release of an unknown lease"] += 1
        elif lease.machine.state is State.GRANTING:
            self.counts["release before the ticket"] += 1
        elif not lease.is_for(peer):
            self.counts["release by another than the reader"] += 1
        else:
            if lease.request_id in self._to_lend:  # it read along, and needs nothing at the end
                self._unwanted.add(lease.request_id)
            self._handle(lease, Event.RELEASED)
        self._out.append(SendToNode(peer, Released(message.lease)))

    def give_back(self, name: LeaseId) -> None:
        """Nobody will come for it; of an unknown one: nothing."""
        lease = self.leases.get(name)
        if lease is not None and lease.machine.state is not State.GRANTING:
            self._handle(lease, Event.RELEASED)

    def give_back_transfer(self, transfer: TransferId) -> RequestId | None:
        """Nobody will come for it. Returns the request that is still computed for it: it is to be
        aborted. One that hasn't come yet will be refused; of one that is over: nothing.
        """
        request_id, lease = self.transfers.requests.get(transfer), self._lease_of(transfer)
        self.transfers.give_back(transfer)
        if request_id is None:
            self._forget_transfer(transfer)
        elif request_id in self._to_lend:
            self._unwanted.add(request_id)
            return request_id
        elif lease is not None:
            is_active = lease.machine.state is State.ACTIVE
            self._handle(lease, Event.RELEASED if is_active else Event.TAKEN_BACK)
        return None

    def on_renew(self, peer: NodeId, message: Renew) -> None:
        """Unknown ones are counted and ignored."""
        for name in message.leases:
            lease = self.leases.get(name)
            if lease is None or lease.machine.state is State.GRANTING or not lease.is_for(peer):
                self.counts["renewal of an unknown lease"] += 1
            else:
                self._handle(lease, Event.RENEWED)

    def on_borrow(self, peer: NodeId, message: Borrow) -> None:
        """Lend what we hold of these hashes, if it can be spared (T13); a repeat asks again."""
        question = (peer, message.reader_run, message.number)
        if (asked := self._by_question.get(question)) is not None:
            if asked.machine.state is State.ACTIVE:
                self._issue_ticket(asked)
            elif asked.machine.state is State.REVOKING:
                self._refuse_ticket(asked)
            return  # or its answer comes when it is granted
        share = int(self._settings.soft_share * self._holdings.pool_blocks)
        most = rules.soft_room(share, self._lent_by_hash[peer], self._room())
        found = None
        if most > 0 and self._refusal is NoTicket.NOTHING:
            found = self._holdings.lend(message.hashes, message.hash_block_size, most)
        if found is None:
            lent = Lent(message.number, message.reader_run, None, self._refusal)
            self._out.append(SendToNode(peer, lent))
            return
        blocks, tokens = found
        content = digest_of_hash(message.hashes[tokens // message.hash_block_size - 1])
        lease = self._begin(None, blocks, tokens, tokens, content)
        lease.is_held, lease.number = True, message.number
        lease.reader, lease.reader_run = peer, message.reader_run
        self._by_question[question] = lease
        self._lent_by_hash[peer] += len(lease.block_ids)

    def on_stream(self, peer: NodeId, message: Stream) -> None:
        """Answer how far the transfer is; one that isn't known yet waits a while (T14). A transfer
        has one reader, who asked first (T19).
        """
        transfer = message.transfer
        if self._reader_of(transfer) not in (None, peer):
            self.counts["questions about a transfer that another node asks for"] += 1
            self._say_stream(peer, transfer, Progress.TAKEN)
            return
        asked = self.transfers.asked
        if transfer in self.transfers.requests:
            asked[transfer] = peer
            self._answer_stream(transfer)
            return
        is_over = transfer in self.transfers.over
        if is_over or (self._refusal is not NoTicket.NOTHING and transfer not in asked):
            self._say_stream(peer, transfer, Progress.GONE, None if is_over else self._refusal)
            return
        if transfer not in asked and not self.transfers.may_park(peer):
            self.counts["parked questions over the limit"] += 1
            self._say_stream(peer, transfer, Progress.GONE)
            return
        asked[transfer] = peer
        if self.timers.at(("parked", transfer)) is None:
            self.timers.set(("parked", transfer), self.now + self._settings.parked_s)

    # -- from our workers ----------------------------------------------------------------------

    def on_granted(self, rank: Rank, name: LeaseId) -> None:
        """One worker more can serve it; after the last the ticket may leave (T15)."""
        lease = self.leases.get(name)
        if lease is None or rank not in lease.ungranted:
            self.counts["grant acknowledged twice"] += 1
            return
        lease.ungranted.discard(rank)
        if rules.may_issue(list(lease.ungranted)):
            self.timers.cancel(("grant", name))
            self._handle(lease, Event.GRANTED)

    def on_revoked(self, rank: Rank, name: LeaseId) -> None:
        """One worker more has stopped; after the last the blocks may go back (T15)."""
        lease = self.leases.get(name)
        if lease is None or rank not in lease.unrevoked:
            self.counts["revocation acknowledged twice"] += 1
            return
        lease.unrevoked.discard(rank)
        if rules.may_return(list(lease.unrevoked)):
            self._handle(lease, Event.REVOKED)

    # -- time ----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due; everything that has arrived was handed over before (T22)."""
        for kind, key in self.timers.due(self.now):
            if kind == "parked":
                self._end_parking(str(key))
            elif isinstance(key, bytes) and (lease := self.leases.get(LeaseId(key))) is not None:
                if kind == "clock":
                    self.counts["leases that ran out"] += 1
                    self._handle(lease, Event.EXPIRED)
                else:
                    silent = lease.ungranted if kind == "grant" else lease.unrevoked
                    self._out += [WorkerLost(rank) for rank in sorted(silent)]

    def _end_parking(self, transfer: TransferId) -> None:
        known = transfer in self.transfers.requests
        if not known and (peer := self.transfers.asked.pop(transfer, None)):
            self._say_stream(peer, transfer, Progress.GONE)

    # -- what leases do ------------------------------------------------------------------------

    def _begin(
        self,
        request_id: RequestId | None,
        blocks: Blocks,
        resume_tokens: int,
        settled: int,
        content: bytes,
        *,
        transfer: TransferId | None = None,
    ) -> Lease:
        name = self._new_lease_id()
        lease = Lease(
            name, request_id, blocks, resume_tokens, Machine(LEASE, name.hex()), settled,
            is_held=False, transfer=transfer,
        )  # fmt: skip
        self.leases[name] = lease
        self.num_leased += len(lease.block_ids)
        if request_id is not None:
            self._by_request[request_id] = lease
        lease.ungranted = {Rank(rank) for rank in range(self._geometry.num_ranks)}
        self._to_workers(Grant(name, blocks, resume_tokens, settled, content))
        self.timers.set(("grant", name), self.now + self._settings.ack_s)
        return lease

    def _handle(self, lease: Lease, event: Event) -> None:
        for effect in lease.machine.handle(event):
            self._do[effect](lease)

    def _ticket(self, lease: Lease) -> Ticket:
        remaining = min(self._settings.lease_s, max(0.0, lease.ends_at - self.now))
        return Ticket(
            lease.lease, self._node, self._run, lease.resume_tokens, int(remaining * 1000),
            Rank(self._geometry.num_ranks),
        )  # fmt: skip

    def _issue_ticket(self, lease: Lease) -> None:
        if not lease.ends_at:
            lease.ends_at = self.now + self._settings.life_s
        if lease.number is not None:
            self._answer_borrow(lease, self._ticket(lease))
        elif lease.request_id is not None and lease.is_held:
            self._out.append(TicketReady(lease.request_id, self._ticket(lease)))
        if lease.transfer is not None:
            self._answer_stream(lease.transfer)

    def _refuse_ticket(self, lease: Lease) -> None:
        if lease.number is not None:
            self._answer_borrow(lease, None)
        elif lease.request_id is not None and lease.is_held:
            self._out.append(TicketReady(lease.request_id, None))

    def _answer_borrow(self, lease: Lease, ticket: Ticket | None) -> None:
        assert lease.reader is not None and lease.reader_run is not None
        assert lease.number is not None
        lent = Lent(lease.number, lease.reader_run, ticket)
        self._out.append(SendToNode(lease.reader, lent))

    def _restart_clock(self, lease: Lease) -> None:
        at = min(self.now + self._settings.lease_s, lease.ends_at)
        self.timers.set(("clock", lease.lease), at)

    def _send_revoke(self, lease: Lease) -> None:
        self.timers.cancel(("clock", lease.lease))
        lease.unrevoked = {Rank(rank) for rank in range(self._geometry.num_ranks)}
        self.timers.set(("revoke", lease.lease), self.now + self._settings.revocation_s)
        self._to_workers(Revoke(lease.lease))

    def _send_withdrawn(self, lease: Lease) -> None:
        if lease.reader is not None:
            self._out.append(SendToNode(lease.reader, Withdrawn(lease.lease)))

    def _return_blocks(self, lease: Lease) -> None:
        assert lease.machine.state is State.GONE
        del self.leases[lease.lease]
        self.num_leased -= len(lease.block_ids)
        if lease.reader is not None and lease.reader_run is not None and lease.number is not None:
            del self._by_question[lease.reader, lease.reader_run, lease.number]
            self._lent_by_hash[lease.reader] -= len(lease.block_ids)
            self._lent_by_hash += Counter()  # those at 0 go
        self.timers.cancel(("grant", lease.lease))
        self.timers.cancel(("revoke", lease.lease))
        if lease.request_id is not None:
            self._by_request.pop(lease.request_id, None)
            if lease.request_id not in self._to_lend:
                self._forget_transfer(lease.transfer)
        if lease.is_held:
            self._out.append(BlocksReturned(lease.request_id, lease.block_ids))

    # -- small things --------------------------------------------------------------------------

    @property
    def _refusal(self) -> NoTicket:
        """Why nothing new is lent; `NOTHING`: it is, if it is there."""
        if self.is_draining:
            return NoTicket.ENDING
        return NoTicket.NOTHING if self.lends else NoTicket.ROLE

    def _room(self) -> int:
        holdings = self._holdings
        return holdings.pool_blocks - holdings.longest_blocks - self.num_leased

    def _fits(self, blocks: Blocks) -> bool:
        more = sum(1 for table in blocks for block in table if block)
        return not self.is_draining and self._may_lend(more)

    def _may_lend(self, more: int) -> bool:
        pool, longest = self._holdings.pool_blocks, self._holdings.longest_blocks
        return rules.may_lend(self.num_leased, more, pool, longest)

    def _to_workers(self, message: Grant | Extend | Revoke) -> None:
        self._out += [SendToWorker(Rank(rank), message) for rank in range(self._geometry.num_ranks)]

    def _lease_of(self, transfer: TransferId) -> Lease | None:
        return self._by_request.get(self.transfers.requests.get(transfer, ""))

    def _reader_of(self, transfer: TransferId) -> NodeId | None:
        """Who reads a transfer along, or waits for it."""
        lease = self._lease_of(transfer)
        reader = None if lease is None else lease.reader
        return reader or self.transfers.asked.get(transfer)

    def _answer_stream(self, transfer: TransferId) -> None:
        peer = self.transfers.asked.get(transfer)
        if peer is None:
            return
        self.timers.cancel(("parked", transfer))
        lease = self._lease_of(transfer)
        if lease is not None and lease.machine.state is State.ACTIVE:
            lease.reader = peer
            state = StreamState(transfer, Progress.ADMITTED, self._ticket(lease))
            self._out.append(SendToNode(peer, state))
            del self.transfers.asked[transfer]
        else:
            self._say_stream(peer, transfer, Progress.QUEUED)

    def _forget_transfer(self, transfer: TransferId | None) -> None:
        self.timers.cancel(("parked", transfer))
        peer = None if transfer is None else self.transfers.end(transfer)
        if transfer is not None and peer is not None:
            self._say_stream(peer, transfer, Progress.GONE)

    def _say_stream(
        self, peer: NodeId, transfer: TransferId, progress: Progress, why: NoTicket | None = None
    ) -> None:
        state = StreamState(transfer, progress, None, why or NoTicket.NOTHING)
        self._out.append(SendToNode(peer, state))
