"""The connector's half in a node process: leases and pulls, and what a scheduler asks of them.

Owns:   nothing of its own: `Lender` and `Borrower` do; it says who gets which message.
Knows nothing of: our block pool, sockets, tensors; so it serves any scheduler that plays its part.
Driven by: a host that carries out `take_effects` and brings events back; input before `tick` (T22).
"""

from collections import Counter
from collections.abc import Callable, Mapping

from kvdist.connector.borrower import Borrower
from kvdist.connector.contacts import Contact, Contacts
from kvdist.connector.content import digest
from kvdist.connector.duties import Duties
from kvdist.connector.effects import DutyOver, NodeEffect, PeerRefused, SendToNode
from kvdist.connector.geometry import Geometry
from kvdist.connector.host import BlockTables, Holdings, KVRequest, Match
from kvdist.connector.lender import Lender
from kvdist.connector.local import FromWorker, Granted, PartEnded, PartQuiet, Revoked
from kvdist.connector.messages import (
    Blocks,
    Borrow,
    Fingerprint,
    Greeting,
    Hello,
    Lent,
    Message,
    NodeMessage,
    Refusal,
    Refused,
    Release,
    Released,
    Renew,
    Role,
    Stream,
    StreamState,
    Ticket,
    Withdrawn,
    since,
)
from kvdist.connector.params import ByHash, ByTransfer, Lend, read_params
from kvdist.connector.settings import Settings
from kvdist.errors import InvalidRequest
from kvdist.ids import BlockId, Incarnation, LeaseId, NodeId, Rank, RequestId


class SchedulerHalf:
    """See the module, and `host` for what it takes and gives."""

    def __init__(
        self,
        node: NodeId,
        run: Incarnation,
        geometry: Geometry,
        settings: Settings,
        holdings: Holdings,
        new_lease_id: Callable[[], LeaseId],
        fingerprint: Fingerprint,
        role: Role = Role.BOTH,
    ) -> None:
        self._node = node
        self._run, self._settings, self._holdings = run, settings, holdings
        self._out: list[NodeEffect] = []
        #: What may be done: hello, and what follows for whom it was said to.
        self._ready: list[NodeEffect] = []
        #: The version that we speak where the peer does.
        self._version = fingerprint.latest_version
        #: By peer: its latest run, and the one that the host has named last.
        self._runs: dict[NodeId, Incarnation] = {}
        self._speaks: dict[NodeId, Incarnation] = {}
        self.contacts = Contacts(
            Hello(node, run, fingerprint, role=role), settings,
            self._send, self._met, self._refused,
        )  # fmt: skip
        self._duties = Duties(role)
        #: Requests whose K/V are for a peer, until they have ended.
        self._for_peers: dict[RequestId, KVRequest] = {}
        self.lender = Lender(
            node, run, geometry, settings, holdings, self._content, new_lease_id, self._out
        )
        self.borrower = Borrower(node, run, geometry, settings, self._out)
        self.lender.lends = role.lends

    def _content(self, request_id: RequestId, num_tokens: int) -> bytes:
        return digest(self._for_peers[request_id], num_tokens)

    def take_effects(self) -> list[NodeEffect]:
        """What is to be done now, in order."""
        while self._out:
            effect = self._out.pop(0)
            if isinstance(effect, SendToNode):
                self.contacts.say(effect.node, effect.message)
            else:
                self._ready.append(effect)
        for duty in (Role.PREFILL, Role.DECODE):
            if self._is_idle(duty) and self._duties.idle(duty):
                self._ready.append(DutyOver(duty))
        effects = self._ready[:]
        self._ready.clear()
        return effects

    def _send(self, node: str, message: Message, version: int) -> None:
        self._ready.append(SendToNode(node, message, version))  # type: ignore[arg-type]

    def _met(self, node: str, contact: Contact) -> None:
        self.borrower.peer_met(node, contact.version)

    def _refused(self, node: str, differences: tuple[Refusal, ...]) -> None:
        self._out.append(PeerRefused(node, differences))
        self.borrower.peer_refused(node)

    @property
    def counts(self) -> Counter[str]:
        """What was ignored or refused, by kind."""
        return self.lender.counts + self.borrower.counts + self.contacts.counts

    @property
    def is_ready(self) -> bool:
        """False while too much of the pool is in quarantine (T17)."""
        share = self._settings.quarantine_share * self._holdings.pool_blocks
        return self.borrower.num_quarantined <= share

    def drain(self) -> None:
        """Take no new work for peers; what is lent stays until it is released or its life ends."""
        self.lender.drain()

    @property
    def role(self) -> Role:
        """What it does for others."""
        return self._duties.role

    def change_role(self, role: Role) -> None:
        """What was accepted in the old role goes on to its end; what is new and the new role lacks
        is refused, and peers are told. `DutyOver` follows for what the new role lacks.
        """
        if self._duties.change(role):
            self.contacts.announce(role)
        self.lender.lends = role.lends

    def has_left(self, duty: Role) -> bool:
        """Whether nothing of what it did in an earlier role is left."""
        return self._duties.is_over(duty)

    def role_of(self, peer: NodeId) -> Role | None:
        """What a peer has said that it does; None: it hasn't said hello."""
        contact = self.contacts[peer]
        return None if contact is None or contact.hello is None else contact.hello.role

    def _is_idle(self, duty: Role) -> bool:
        if duty is Role.DECODE:
            return not self.borrower.num_elsewhere
        return not (self.lender.leases or self.lender.transfers or self._for_peers)

    def give_back(self, lent: Ticket | ByTransfer) -> RequestId | None:
        """Nobody will come for what this ticket of ours, or transfer, is for. Returns the request
        that is still computed for it: it is to be aborted.
        """
        if isinstance(lent, ByTransfer):
            return self.lender.give_back_transfer(lent.transfer)
        if lent.incarnation == self._run:
            self.lender.give_back(lent.lease)
        return None

    @property
    def num_coming_back(self) -> int:
        """Leases whose blocks come back soon: who lacks blocks does well to wait for them."""
        return self.lender.num_coming_back

    def take_back(self) -> None:
        """Nothing that is lent counts any more; `BlocksReturned` follows for each lease (T9)."""
        self.lender.take_back_all()

    @property
    def is_idle(self) -> bool:
        """True if nothing is lent, wanted or under way, and nothing is to be done: a node that
        drains can go.
        """
        return not (self._out or self._ready) and not (
            self.lender.leases or self.lender.transfers or self.borrower.num_open
        )

    # -- from the scheduler --------------------------------------------------------------------

    def arrived(
        self,
        request: KVRequest,
        kv_transfer_params: Mapping[str, object] | None,
        *,
        prefill_only: bool,
    ) -> None:
        """`request` has come. prefill_only: it ends when its prompt is computed.

        Raises: InvalidRequest for parameters that can't be read; WrongRole for what a node of
        another role does. Nothing has changed then.
        """
        wish = read_params(kv_transfer_params)
        if isinstance(wish, Lend):
            if not prefill_only:
                raise InvalidRequest("kv_transfer_params: do_remote_decode is for prefills")
            self._duties.check(Role.PREFILL)
            transfer = wish.transfer if self._version >= since(Stream) else None
            self.lender.lend_at_end(request.request_id, transfer, reads_along=wish.reads_along)
            self._for_peers[request.request_id] = request
            if wish.hint is not None and self.role.reads:
                self.borrower.arrived(request, ByHash(wish.hint))
        elif wish is not None:
            if wish.node != self._node:
                self._duties.check(Role.DECODE)
            self.borrower.arrived(request, wish)

    def match(self, request: KVRequest, num_local_tokens: int) -> Match:
        """What can be loaded after so many local tokens. May be asked often; whoever has to wait
        need not be asked again before `take_answered` names it.
        """
        return self.borrower.match(request, num_local_tokens)

    def take_answered(self) -> list[RequestId]:
        """Requests that were told to wait, and may be told more now; each is named once."""
        return self.borrower.take_answered()

    def admitted(
        self,
        request: KVRequest,
        block_ids: BlockTables,
        num_local_tokens: int,
        num_external_tokens: int,
    ) -> None:
        """`request` got blocks: those of its local hit and new ones; may be said again.

        With external tokens, those after the local ones are loaded now: exactly one `Loaded` or
        `LoadFailed` follows, and after a `LoadFailed` one `LoadQuiet` for the same blocks.
        """
        name, blocks = request.request_id, _frozen(block_ids)
        self.borrower.admitted(name, blocks, num_local_tokens, num_external_tokens)
        if not num_external_tokens:  # else these aren't its blocks if the load fails (T2)
            self.lender.admitted(name, blocks, request.num_prompt_tokens - 1)

    def settled(self, request: KVRequest, num_tokens: int) -> None:
        """The K/V of its first `num_tokens` are written, by steps that are over."""
        self.lender.settled(request.request_id, num_tokens)
        self.borrower.settled(request.request_id, num_tokens)

    def may_preempt(self, request: KVRequest) -> bool:
        """False: a peer reads along, and has to be stopped first; that begins now. Ask again."""
        return self.lender.may_preempt(request.request_id)

    def short_of_blocks(self) -> None:
        """Somebody waits for blocks: what is lent without need comes back first (T13)."""
        self.lender.take_back_soft()

    def finished(
        self, request: KVRequest, block_ids: BlockTables, num_tokens: int, *, is_usable: bool
    ) -> list[BlockId]:
        """`request` has ended, however it did; to be called once, before its blocks are freed.

        num_tokens: how many have their K/V in the blocks. is_usable: it came to the end that a peer
        waits for. Returns those of its blocks that are lent: to be held until `BlocksReturned`.
        """
        name = request.request_id
        self.borrower.finished(name)
        lent = self.lender.finished(name, _frozen(block_ids), num_tokens, is_usable=is_usable)
        self._for_peers.pop(name, None)
        return lent

    # -- messages ------------------------------------------------------------------------------

    def from_node(self, peer: NodeId, message: NodeMessage | Greeting) -> None:
        """From another node, as its link has proved who it is; after `node_seen`."""
        if self._speaks[peer] < self._runs[peer]:
            self.contacts.counts["messages of an earlier run"] += 1
            return
        if not self.contacts.hear(peer, peer, self._runs[peer], message):
            return
        match message:
            case Release():
                self.lender.on_release(peer, message)
            case Renew():
                self.lender.on_renew(peer, message)
            case Borrow():
                self.lender.on_borrow(peer, message)
            case Stream():
                self.lender.on_stream(peer, message)
            case Released():
                self.borrower.on_released(peer, message.lease)
            case Lent():
                self.borrower.on_lent(peer, message)
            case StreamState():
                self.borrower.on_stream_state(peer, message)
            case Withdrawn():
                self.borrower.on_withdrawn(peer, message.lease)
            case Hello() | Refused():
                raise AssertionError(message)  # contacts hear them

    def from_worker(self, rank: Rank, message: FromWorker) -> None:
        """From a worker of our own."""
        match message:
            case Granted():
                self.lender.on_granted(rank, message.lease)
            case Revoked():
                self.lender.on_revoked(rank, message.lease)
            case PartEnded():
                self.borrower.on_part_ended(message)
            case PartQuiet():
                self.borrower.on_part_quiet(message.part)

    def node_seen(self, peer: NodeId, run: Incarnation) -> None:
        """That run of a node is there: all before it are over (T5, T21); what follows is of it."""
        self._speaks[peer] = run
        if run < self._runs.get(peer, run):
            return
        self._runs[peer] = run
        self.contacts.run_seen(peer, run)
        self.borrower.node_seen(peer, run)

    def turned_away(self, peer: NodeId, why: str) -> None:
        """No link to it can be had, since it doesn't trust us, or we don't trust it."""
        self.borrower.peer_refused(peer, f"no link to the owner: {why}")

    def clock(self, now: float) -> None:
        """It is now so late; to be said before anything is handed over."""
        self.contacts.now = self.lender.now = self.borrower.now = now

    def tick(self) -> None:
        """Do what is due."""
        self.contacts.tick()
        self.lender.tick()
        self.borrower.tick()

    def next_at(self) -> float | None:
        """When to call `tick` at the latest."""
        all_timers = (self.contacts.timers, self.lender.timers, self.borrower.timers)
        times = [timers.next_at() for timers in all_timers]
        return min((at for at in times if at is not None), default=None)


def _frozen(tables: BlockTables) -> Blocks:
    return tuple(tuple(table) for table in tables)
