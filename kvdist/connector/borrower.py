"""The reader's node: which leases it wants, which pulls are under way, who waits for them.

Owns:   claims and pulls; what becomes of requests whose promises aren't kept is `fallback`'s.
Knows nothing of: our block pool (it is given ids), links, bytes.
Source: T2, T4, T6, T8, T11, T19, T20, T22, T25 of docs/protocol.md.
"""

from collections import Counter
from typing import Final

from kvdist.connector import rules
from kvdist.connector.content import digest
from kvdist.connector.effects import NodeEffect, SendToNode, SendToWorker
from kvdist.connector.fallback import Fallback, Lack
from kvdist.connector.geometry import Geometry, cuts, external_blocks, wanted
from kvdist.connector.groups import Groups
from kvdist.connector.host import NOTHING, KVRequest, Loaded, LoadFailed, LoadQuiet, Match
from kvdist.connector.local import Cancel, Fetch, PartEnded
from kvdist.connector.machine import Machine
from kvdist.connector.messages import (
    VERSION,
    Blocks,
    Lent,
    PartId,
    Progress,
    Release,
    Renew,
    Stream,
    StreamState,
    Ticket,
)
from kvdist.connector.params import ByHash, ByTransfer, Source
from kvdist.connector.settings import Settings
from kvdist.connector.tables import claim as claims, pull as pulls
from kvdist.connector.tables.claim import CLAIM
from kvdist.connector.tables.pull import PULL
from kvdist.connector.timers import Timers
from kvdist.connector.waiting import Waiting
from kvdist.connector.wants import (
    Claim,
    Content,
    Pull,
    can_ask,
    content_of,
    hashes_of,
    key_of,
    name_of,
    renewals_of,
)
from kvdist.errors import InvalidRequest
from kvdist.ids import Incarnation, LeaseId, NodeId, PullId, RequestId

C, P = claims.State, pulls.State

_ANEW: Final = "the owner has started anew"


class Borrower:
    """See the module; `out` collects effects."""

    def __init__(
        self,
        node: NodeId,
        run: Incarnation,
        geometry: Geometry,
        settings: Settings,
        out: list[NodeEffect],
    ) -> None:
        self._node, self._run = node, run
        self._geometry, self._settings = geometry, settings
        self._out = out
        #: Seconds on the host's clock, which sets it before it hands anything over.
        self.now = 0.0
        self._last_number = 0
        self._claims: dict[str, Claim] = {}
        self._claim_of: dict[RequestId, Claim] = {}
        #: Only its owner's run makes the name of a lease unique.
        self._by_lease: dict[tuple[NodeId, Incarnation, LeaseId], Claim] = {}
        #: By the number of a question asked by hash.
        self._by_number: dict[int, Claim] = {}
        #: The latest run of each peer that was heard of.
        self._runs: dict[NodeId, Incarnation] = {}
        #: The version that is spoken with each peer that said hello.
        self.versions: dict[NodeId, int] = {}
        self._pulls: dict[PullId, Pull] = {}
        #: By what they bring: pulls that haven't failed. One each: who wants the same waits (T20).
        self._pulling: dict[Content, Pull] = {}
        #: Requests by what they want.
        self._wanting: Groups[Content] = Groups()
        self._waiting = Waiting()
        self.timers: Timers[tuple[str, str]] = Timers()
        self.counts: Counter[str] = Counter()
        self._fallback = Fallback(settings, self.counts, self._waiting, self._pulling, geometry)
        self._do_claim = {
            claims.Effect.ASK: self._ask,
            claims.Effect.SEND_RELEASE: self._send_release,
            claims.Effect.FORGET: self._forget,
        }
        self._do_pull = {
            pulls.Effect.SAY_LOADED: self._say_loaded,
            pulls.Effect.SAY_FAILED: self._say_failed,
            pulls.Effect.CANCEL_PARTS: self._cancel_parts,
            pulls.Effect.SAY_QUIET: self._say_quiet,
            pulls.Effect.END_CLAIM: self._end_claim,
        }

    @property
    def num_quarantined(self) -> int:
        """Blocks in which bytes of failed pulls may still land."""
        return sum(len(p.block_ids) for p in self._pulls.values() if p.machine.state is P.FAILING)

    @property
    def num_recomputing(self) -> int:
        """Tokens that are being computed here because they didn't come."""
        return self._fallback.num_tokens

    @property
    def num_open(self) -> int:
        """Claims and pulls that aren't over."""
        return len(self._claims) + len(self._pulls)

    @property
    def num_elsewhere(self) -> int:
        """Of those: what is read, or wanted, of other nodes."""
        return sum(c.node != self._node for c in self._claims.values()) + len(self._pulls)

    @property
    def open_claims(self) -> list[Claim]:
        """Those that aren't over."""
        return list(self._claims.values())

    # -- from the scheduler --------------------------------------------------------------------

    def arrived(self, request: KVRequest, source: Source) -> None:
        """A request came, and where its K/V can be had. Raises: InvalidRequest."""
        if isinstance(source, Ticket) and not self._geometry.shares_heads(source.num_ranks):
            raise InvalidRequest(
                f"kv_transfer_params: tp_size {source.num_ranks} can't share "
                f"{self._geometry.num_heads} heads"
            )
        by_hash = isinstance(source, ByHash)
        if by_hash and (source.node == self._node or not request.hash_block_size):
            return  # it would ask itself, or couldn't say for what
        name = name_of(source, request.request_id)
        claim = self._claims.get(name)
        if claim is None:
            claim = Claim(name, source.node, source, Machine(CLAIM, name), self.now)
            self._claims[name] = claim
        claim.wanting[request.request_id] = request
        self._claim_of[request.request_id] = claim
        self._wanting.put(request.request_id, content_of(claim, request))
        if claim.is_spent or claim.machine.state is C.RELEASING:
            self._give_up(claim, claim.why or "its lease was given back")
        elif claim.machine.state is C.ASKING and claim.tries == 0:
            if isinstance(source, Ticket):
                self._take_ticket(claim, source)
            else:
                self._ask(claim)

    def match(self, request: KVRequest, num_local_tokens: int) -> Match:
        """See `SchedulerHalf.match`."""
        claim = self._claim_of.get(request.request_id)
        if claim is None:
            return self._fallback.match(request, num_local_tokens)
        if claim.node == self._node:
            return NOTHING  # what this very node holds is a local hit
        if claim.machine.state is not C.HELD:
            return self._waiting.wait(request.request_id, claim)
        assert claim.ticket is not None
        resume_tokens = claim.ticket.resume_tokens
        num_tokens = self._fallback.num_lacking(request, resume_tokens, num_local_tokens)
        same = self._pulling.get(content_of(claim, request))
        if num_tokens and same is not None:
            return self._waiting.wait(request.request_id, same)
        return Match(num_tokens)

    def take_answered(self) -> list[RequestId]:
        """See `SchedulerHalf.take_answered`."""
        return self._waiting.take_answered()

    def admitted(
        self, request_id: RequestId, blocks: Blocks, num_local_tokens: int, num_external: int
    ) -> None:
        """See `SchedulerHalf.admitted`."""
        claim = self._claim_of.get(request_id)
        if num_external and claim is not None:
            self._begin(claim, request_id, blocks, num_local_tokens, num_external)
            return
        self._fallback.admitted(request_id, num_local_tokens)
        self._leave(request_id)

    def settled(self, request_id: RequestId, num_tokens: int) -> None:
        """What was recomputed is computed."""
        self._fallback.settled(request_id, num_tokens)

    def finished(self, request_id: RequestId) -> None:
        """A request has ended, however it did.

        If it was loading, its blocks are the destination, and stay until the pull is over. Whoever
        else waits for the same content keeps that going.
        """
        self._fallback.over(request_id)
        self._leave(request_id)

    # -- from peers ----------------------------------------------------------------------------

    def on_lent(self, peer: NodeId, message: Lent) -> None:
        """The answer to a question by hash."""
        mine = rules.is_same_run(message.reader_run, self._run)
        claim = self._by_number.get(message.number) if mine else None
        if claim is not None and claim.node != peer:
            claim = None
        self._answered(claim, peer, message.ticket, "the owner has nothing for it")

    def on_stream_state(self, peer: NodeId, message: StreamState) -> None:
        """How far a transfer is."""
        claim = self._claims.get(name_of(ByTransfer(peer, message.transfer), ""))
        if message.progress is Progress.QUEUED:
            asking = claim is not None and claim.machine.state is C.ASKING
            if claim is not None and asking and self.now < claim.since + self._settings.life_s:
                claim.tries = 1  # it lives: ask on, but not for ever
            return
        taken = message.progress is Progress.TAKEN
        why = "another node reads along" if taken else "the owner has nothing for it"
        self._answered(claim, peer, message.ticket, why)

    def _answered(self, claim: Claim | None, peer: NodeId, ticket: Ticket | None, why: str) -> None:
        if claim is None or claim.machine.state is not C.ASKING:
            self.counts["answers that nobody waits for"] += 1
            mine = claim is not None and claim.ticket == ticket
            if ticket is not None and not mine:  # what nobody wants goes back at once
                self._out.append(SendToNode(peer, Release(ticket.lease, ticket.incarnation)))
        elif ticket is None:
            self._handle_claim(claim, claims.Event.NOTHING, why)
        elif ticket.node != peer or not self._geometry.shares_heads(ticket.num_ranks):
            self.counts["tickets that can't be used"] += 1
            self._handle_claim(claim, claims.Event.NOTHING, "the owner's ticket can't be used")
        else:
            self.timers.cancel(("ask", claim.name))
            self._take_ticket(claim, ticket)

    def on_released(self, peer: NodeId, lease: LeaseId) -> None:
        """The owner knows."""
        claim = self._claim_by_lease(peer, lease)
        if claim is None or claim.machine.state is not C.RELEASING:
            self.counts["releases answered twice"] += 1
        else:
            self._handle_claim(claim, claims.Event.RELEASED)

    def on_withdrawn(self, peer: NodeId, lease: LeaseId) -> None:
        """The owner takes a lease back (T11)."""
        claim = self._claim_by_lease(peer, lease)
        if claim is None:
            self.counts["unknown leases withdrawn"] += 1
        else:
            self._handle_claim(claim, claims.Event.LOST, "the owner took its lease back")

    def node_seen(self, peer: NodeId, run: Incarnation) -> None:
        """That run of a node is there: all before it are over, and their leases (T5, T21)."""
        if run <= self._runs.get(peer, -1):
            return
        self._runs[peer] = run
        self.versions.pop(peer, None)
        for claim in list(self._claims.values()):
            ticket = claim.ticket
            if claim.node == peer and ticket is not None and ticket.incarnation < run:
                self._handle_claim(claim, claims.Event.LOST, _ANEW)

    def peer_met(self, peer: NodeId, version: int) -> None:
        """Hello was said: what it can be asked is known."""
        self.versions[peer] = version
        for claim in [c for c in self._claims.values() if c.node == peer]:
            if claim.machine.state is C.ASKING and not can_ask(claim.source, version):
                self._ask(claim)  # by hash

    def peer_refused(self, peer: NodeId, why: str = "the owner's blocks are unlike ours") -> None:
        """Nothing can be had of it, and nothing is said to it."""
        self.versions.pop(peer, None)
        for claim in [c for c in self._claims.values() if c.node == peer]:
            event = claims.Event.NOTHING if claim.machine.state is C.ASKING else claims.Event.LOST
            self._handle_claim(claim, event, why)

    # -- from our workers ----------------------------------------------------------------------

    def on_part_ended(self, message: PartEnded) -> None:
        """The verdict on a part."""
        part = message.part
        pull = self._pulls.get(part.pull)
        if pull is None or part not in pull.parts or part in pull.ended:
            self.counts["verdicts twice"] += 1
            return
        pull.ended.add(part)
        if message.failure:
            pull.reason = pull.reason or message.failure
            pull.claim.is_spent |= message.is_lease_gone
            self._handle_pull(pull, pulls.Event.PART_FAILED)
            if pull.claim.is_spent:
                self._give_up(pull.claim, pull.reason)
        elif pull.machine.state is P.PULLING and rules.all_parts(len(pull.ended), len(pull.parts)):
            self._handle_pull(pull, pulls.Event.ALL_GOOD)

    def on_part_quiet(self, part: PartId) -> None:
        """No byte of this part can land any more."""
        pull = self._pulls.get(part.pull)
        if pull is None or part not in pull.ended:
            return  # of a pull that was loaded
        pull.quiet.add(part)
        if pull.machine.state is P.FAILING and rules.all_parts(len(pull.quiet), len(pull.parts)):
            self._handle_pull(pull, pulls.Event.ALL_QUIET)

    # -- time ----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due; everything that has arrived was handed over before (T22)."""
        for kind, name in self.timers.due(self.now):
            if kind == "renew":
                self._renew()
            elif (claim := self._claims.get(name)) is not None:
                self.counts["questions that weren't answered in time"] += claim.tries > 1
                again = claim.tries < self._settings.tries
                event = claims.Event.UNANSWERED if again else claims.Event.GAVE_UP
                self._handle_claim(claim, event, "the owner doesn't answer")

    def _renew(self) -> None:
        """One message a peer, with every lease that is still wanted (T22)."""
        held = (c for c in self._claims.values() if c.machine.state in (C.HELD, C.PULLING))
        renewals = list(renewals_of(held))
        self._out += [SendToNode(peer, renew) for peer, renew in renewals]
        if renewals:
            self.timers.set(("renew", ""), self.now + self._settings.renewal_s)

    # -- what claims do ------------------------------------------------------------------------

    def _handle_claim(self, claim: Claim, event: claims.Event, why: str = "") -> None:
        claim.why = claim.why or why
        before = claim.machine.state
        for effect in claim.machine.handle(event):
            self._do_claim[effect](claim)
        pull = claim.pull
        if claim.machine.state is C.ORPHANED and pull and pull.machine.state is P.FAILING:
            self._give_up(claim, claim.why)  # there won't be another round
        if claim.machine.state is not before:
            self._waiting.wake(claim)

    def _give_up(self, claim: Claim, why: str) -> None:
        """Nothing more comes by this claim: whoever still wants it has to do without (caps)."""
        claim.is_spent, claim.why = True, why
        for name, request in claim.wanting.items():
            del self._claim_of[name]
            if claim.node == self._node:
                continue  # what it held was a local hit
            promised = claim.ticket.resume_tokens if claim.ticket else request.num_tokens - 1
            self._fallback.lost(Lack(request, promised, content_of(claim, request), why))
        claim.wanting.clear()
        self._waiting.wake(claim)

    def _take_ticket(self, claim: Claim, ticket: Ticket) -> None:
        claim.ticket, claim.tries = ticket, 0
        for request in claim.wanting.values():
            self._wanting.put(request.request_id, content_of(claim, request))
        self._by_lease[key_of(ticket)] = claim
        self._handle_claim(claim, claims.Event.TICKET)
        if self._runs.get(claim.node, ticket.incarnation) > ticket.incarnation:
            self._handle_claim(claim, claims.Event.LOST, _ANEW)  # it was held back on its way
            return
        # The first renewal goes at once: its way here may have been long.
        self._out.append(SendToNode(claim.node, Renew((ticket.lease,))))
        if self.timers.at(("renew", "")) is None:
            self.timers.set(("renew", ""), self.now + self._settings.renewal_s)

    def _ask(self, claim: Claim) -> None:
        claim.tries += 1
        self.timers.set(("ask", claim.name), self.now + self._settings.answer_s)
        version = self.versions.get(claim.node, VERSION)
        if isinstance(claim.source, ByTransfer) and can_ask(claim.source, version):
            self._out.append(SendToNode(claim.node, Stream(claim.source.transfer)))
            return
        claim.number = claim.number or self._next_number()
        borrow = hashes_of(claim, self._run)
        if borrow is None:
            self.counts["questions that a peer can't be asked"] += 1
            self._handle_claim(claim, claims.Event.NOTHING, "the owner can't be asked for it")
            return
        self._by_number[claim.number] = claim
        self._out.append(SendToNode(claim.node, borrow))

    def _send_release(self, claim: Claim) -> None:
        assert claim.ticket is not None
        claim.tries += 1
        self.timers.set(("ask", claim.name), self.now + self._settings.answer_s)
        release = Release(claim.ticket.lease, claim.ticket.incarnation)
        self._out.append(SendToNode(claim.node, release))

    def _forget(self, claim: Claim) -> None:
        assert claim.machine.state is C.GONE
        self.timers.cancel(("ask", claim.name))
        self._claims.pop(claim.name, None)
        self._by_number.pop(claim.number, None)
        if claim.ticket is not None and self._by_lease.get(key_of(claim.ticket)) is claim:
            del self._by_lease[key_of(claim.ticket)]
        if claim.ticket is not None or isinstance(claim.source, ByTransfer):
            self._give_up(claim, claim.why)
        for request_id in claim.wanting:  # a hint was wrong: they are as others are
            del self._claim_of[request_id]

    def _leave(self, request_id: RequestId) -> None:
        """A request needs nothing of others any more; the last one ends its claim, and its pull."""
        self._waiting.drop(request_id)
        content = self._wanting.drop(request_id)
        claim = self._claim_of.pop(request_id, None)
        if claim is not None:
            del claim.wanting[request_id]
            if not claim.wanting and claim.machine.state in (C.ASKING, C.HELD):
                self._handle_claim(claim, claims.Event.UNWANTED)
        pull = self._pulling.get(content) if content is not None else None
        if pull is not None and rules.may_cancel(len(self._wanting.members(pull.content))):
            pull.reason = pull.reason or "nobody wants it any more"
            self._handle_pull(pull, pulls.Event.UNWANTED)

    # -- what pulls do -------------------------------------------------------------------------

    def _begin(
        self, claim: Claim, request_id: RequestId, blocks: Blocks, first: int, num_tokens: int
    ) -> None:
        ticket = claim.ticket
        assert ticket is not None
        spans = wanted(self._geometry, first, first + num_tokens)
        content = digest(claim.wanting[request_id], ticket.resume_tokens)
        number = PullId(self._next_number())
        fetches = [
            Fetch(
                PartId(number, cut.reader, cut.owner), ticket.lease, ticket.node,
                ticket.incarnation, spans, cut.heads, blocks, content,
            )
            for cut in cuts(self._geometry, ticket.num_ranks)
        ]  # fmt: skip
        pull = Pull(
            number, request_id, claim, Machine(PULL, str(number)), num_tokens,
            external_blocks(self._geometry, blocks, first),
            frozenset(fetch.part for fetch in fetches),
            content_of(claim, claim.wanting[request_id]),
        )  # fmt: skip
        self._pulls[number] = self._pulling[pull.content] = claim.pull = pull
        self._handle_claim(claim, claims.Event.PULL)
        self._out += [SendToWorker(fetch.part.reader, fetch) for fetch in fetches]

    def _handle_pull(self, pull: Pull, event: pulls.Event) -> None:
        for effect in pull.machine.handle(event):
            self._do_pull[effect](pull)
        if pull.machine.state is not P.PULLING and self._pulling.get(pull.content) is pull:
            del self._pulling[pull.content]
            self._waiting.wake(pull)

    def _say_loaded(self, pull: Pull) -> None:
        self._out.append(Loaded(pull.request_id))

    def _say_failed(self, pull: Pull) -> None:
        self.counts["pulls that failed"] += 1
        claim = pull.claim
        # A pull that was cancelled is no failed one.
        claim.failed_rounds += bool(self._wanting.members(pull.content))
        is_wanted = pull.request_id in claim.wanting
        is_lost = claim.is_spent or claim.machine.state is C.ORPHANED
        if is_lost or claim.failed_rounds >= self._settings.max_rounds:
            self._give_up(claim, claim.why or pull.reason)
        # It goes on by another round, or by computing; or not at all.
        again = is_wanted and self._fallback.goes_on(pull.request_id, pull.num_tokens)
        is_busy = is_wanted and not again and self._fallback.is_busy
        self._out.append(LoadFailed(pull.request_id, pull.reason, again, is_busy))

    def _cancel_parts(self, pull: Pull) -> None:
        for part in sorted(pull.parts - pull.ended, key=lambda part: (part.reader, part.owner)):
            self._out.append(SendToWorker(part.reader, Cancel(part)))

    def _say_quiet(self, pull: Pull) -> None:
        self._out.append(LoadQuiet(pull.request_id, pull.block_ids))

    def _end_claim(self, pull: Pull) -> None:
        assert pull.machine.state is (P.OVER if pull.reason else P.LOADED)
        del self._pulls[pull.pull]
        claim = pull.claim
        claim.pull = None
        if pull.machine.state is P.LOADED and pull.request_id in claim.wanting:
            del claim.wanting[pull.request_id], self._claim_of[pull.request_id]
            self._wanting.drop(pull.request_id)
        self._handle_claim(claim, claims.Event.PULL_OVER)
        if claim.machine.state is C.HELD and not claim.wanting:
            self._handle_claim(claim, claims.Event.UNWANTED)

    # -- small things --------------------------------------------------------------------------

    def _claim_by_lease(self, peer: NodeId, lease: LeaseId) -> Claim | None:
        """Of the run of `peer` that was heard of last: whoever speaks, the host says so first."""
        run = self._runs.get(peer)
        return None if run is None else self._by_lease.get((peer, run, lease))

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number
