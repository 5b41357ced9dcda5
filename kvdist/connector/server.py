"""The owner's worker: serves the leases that its node grants, and says when it has stopped.

Owns:   the grants, the open pulls (each a hold), and the verdicts that are kept for repeats.
Knows nothing of: our block pool, why a lease ends, the lease's clock (T25).
Source: T1, T4, T5, T6, T12, T15, T16, T19 of docs/protocol.md.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from kvdist.connector import rules
from kvdist.connector.effects import (
    CutLink,
    SendBytes,
    SendToOwnNode,
    SendToPeer,
    ServeKey,
    StopSending,
    WorkerEffect,
)
from kvdist.connector.geometry import Geometry, Group, Piece, listed, pieces
from kvdist.connector.local import Extend, Grant, Granted, Revoke, Revoked
from kvdist.connector.machine import Machine
from kvdist.connector.messages import (
    MAX_BLOCKS,
    MAX_LIST,
    VERSION,
    Blocks,
    Close,
    Confirm,
    Confirmed,
    Denied,
    Heads,
    Open,
    Opened,
    Settled,
    StillReading,
    TokenSpan,
    TokenSpans,
    Why,
    since,
)
from kvdist.connector.settings import Settings
from kvdist.connector.tables import grant as grants, serve as serves
from kvdist.connector.tables.grant import GRANT
from kvdist.connector.tables.serve import SERVE
from kvdist.connector.timers import Timers
from kvdist.ids import BlockId, Incarnation, LeaseId, NodeId, Rank

G, S = grants.State, serves.State

#: Parts of one pull that are open here at a time: more ranks than any reader has.
MAX_PARTS = 1 << 10


@dataclass(eq=False, slots=True)
class _Serve:
    """One open pull."""

    key: ServeKey
    grant: "_Grant"
    #: The link that it was opened on.
    address: str
    machine: Machine[serves.State, serves.Event, serves.Effect]
    wanted: TokenSpans
    heads: Heads
    #: Sent so far, by group: up to which token.
    sent: list[int]
    opened_at: float


@dataclass(eq=False, slots=True)
class _Grant:
    """A lease that this worker may serve."""

    lease: LeaseId
    blocks: Blocks
    resume_tokens: int
    settled: int
    content: bytes
    machine: Machine[grants.State, grants.Event, grants.Effect]
    #: Who opened it first (T19): node, run and pull.
    holder: tuple[NodeId, Incarnation, int] | None = None
    serves: dict[ServeKey, _Serve] = field(default_factory=dict)


class Server:
    """See the module; `out` collects effects.

    `sends`: whether we send the bytes over that link; else the reader reads.
    """

    def __init__(
        self,
        rank: Rank,
        run: Incarnation,
        geometry: Geometry,
        settings: Settings,
        out: list[WorkerEffect],
        *,
        sends: Callable[[str], bool],
    ) -> None:
        self._rank, self._run = rank, run
        self._geometry, self._settings = geometry, settings
        self._out = out
        self._sends = sends
        #: Seconds on the host's clock, which sets it before it hands anything over.
        self.now = 0.0
        self._grants: dict[LeaseId, _Grant] = {}
        self._serves: dict[ServeKey, _Serve] = {}
        #: Of parts that are over: whether they were confirmed (T4).
        self._verdicts: dict[ServeKey, bool] = {}
        #: Of each peer: parts that are open, or have a verdict that is kept.
        self._num_kept: Counter[NodeId] = Counter()
        self.timers: Timers[tuple[str, ServeKey]] = Timers()
        self.counts: Counter[str] = Counter()

    @property
    def num_open(self) -> int:
        """Pulls that are open here."""
        return len(self._serves)

    @property
    def pulls(self) -> dict[ServeKey, tuple[str, serves.State]]:
        """Of the pulls that are open here: on which link, and how far they are."""
        return {key: (serve.address, serve.machine.state) for key, serve in self._serves.items()}

    @property
    def reads(self) -> dict[ServeKey, tuple[LeaseId, bool]]:
        """And of which lease, and whether some of what is wanted isn't written yet."""
        return {key: (serve.grant.lease, self._lacks(serve)) for key, serve in self._serves.items()}

    @property
    def leases(self) -> set[LeaseId]:
        """What may be served."""
        return set(self._grants)

    @property
    def confirmed(self) -> set[ServeKey]:
        """Parts of which it is known that their bytes are good."""
        return {key for key, good in self._verdicts.items() if good}

    @property
    def num_kept(self) -> Counter[NodeId]:
        """By peer: pulls that are open here, or whose verdict is kept (T4)."""
        return Counter(key[0] for key in self._serves.keys() | self._verdicts.keys())

    def granted_blocks(self) -> list[BlockId]:
        """Blocks that may be served now, null ones included."""
        return [
            block for grant in self._grants.values() for table in grant.blocks for block in table
        ]

    # -- from our node -------------------------------------------------------------------------

    def on_grant(self, message: Grant) -> None:
        """We may serve a lease."""
        self._grants[message.lease] = _Grant(
            message.lease, message.blocks, message.resume_tokens, message.settled, message.content,
            Machine(GRANT, message.lease.hex()),
        )  # fmt: skip
        self._out.append(SendToOwnNode(Granted(message.lease)))

    def on_extend(self, message: Extend) -> None:
        """More of a stream is written: whoever reads along goes on."""
        grant = self._grants.get(message.lease)
        if grant is None or message.settled <= grant.settled:
            return
        grant.settled = message.settled
        for serve in list(grant.serves.values()):
            if self._sends(serve.address):
                self._send_more(serve)
            elif serve.machine.state is S.OPEN:
                self._say(serve.address, Settled(serve.key[2], grant.settled))

    def on_revoke(self, message: Revoke) -> None:
        """Serve it no more; acknowledged when nothing of it is open."""
        grant = self._grants[message.lease]
        busy = bool(grant.serves)
        self._handle_grant(grant, grants.Event.REVOKE_BUSY if busy else grants.Event.REVOKE_IDLE)
        for serve in list(grant.serves.values()):
            if self._lacks(serve):
                self._handle(serve, serves.Event.REVOKED)

    # -- from peers' workers -------------------------------------------------------------------

    def on_open(
        self, address: str, reader: NodeId, run: Incarnation, message: Open, version: int = VERSION
    ) -> None:
        """Begin to serve, or say why not. A repeat gets the same answer.

        version: that is spoken on this link.
        """
        key = (reader, run, message.part)
        if (serve := self._serves.get(key)) is not None:
            self._answer_again(serve, address)
            return
        why = Why.GONE if key in self._verdicts else self._denial(key, address, message, version)
        if why is not None:
            self._say(address, Denied(message.part, why))
            return
        grant = self._grants[message.lease]
        for effect in grant.machine.handle(grants.Event.OPEN):
            if effect is grants.Effect.SERVE:
                self._serve(grant, key, address, message)
            else:
                self._say(address, Denied(message.part, Why.GONE))

    def _denial(self, key: ServeKey, address: str, message: Open, version: int) -> Why | None:
        """Why this can't be opened; None: it can, if the grant stands."""
        grant = self._grants.get(message.lease)
        if grant is None or not rules.is_same_run(message.owner, self._run):
            return Why.GONE
        holder = _holder_of(key)
        others = [serve for serve in grant.serves.values() if _holder_of(serve.key) != holder]
        if grant.holder != holder and not rules.may_take_over(bool(others)):
            return Why.TAKEN
        reads_along = grant.settled < grant.resume_tokens
        if len(grant.serves) >= MAX_PARTS or self._is_used_up(key[0]):
            return Why.REFUSED
        if reads_along and since(Settled) > version:
            return Why.REFUSED
        first, last = self._geometry.heads_of(self._rank)
        has_heads = first <= message.heads[0] < message.heads[1] <= last
        sound = message.part.owner == self._rank and has_heads
        same = rules.is_same_content(message.content, grant.content)
        if not (sound and same and self._covers(grant, message)):
            return Why.REFUSED
        lists = not self._sends(address)
        return Why.REFUSED if lists and self._is_too_long(grant, message) else None

    def _is_used_up(self, reader: NodeId) -> bool:
        """Whether we keep as many verdicts for this peer as we may (T4)."""
        used_up = self._num_kept[reader] >= self._settings.max_verdicts_per_peer
        self.counts["pulls beyond a peer's share of verdicts"] += used_up
        return used_up

    def _is_too_long(self, grant: _Grant, message: Open) -> bool:
        """Whether the reader needs longer tables than a message may have."""
        tables = listed(self._geometry, grant.blocks, message.wanted)
        too_long = max(map(len, tables), default=0) > MAX_LIST or sum(map(len, tables)) > MAX_BLOCKS
        self.counts["tables that no message has room for"] += too_long
        return too_long

    def _covers(self, grant: _Grant, message: Open) -> bool:
        """Whether the lease has all that is wanted, and every group can resume where it ends."""
        groups = self._geometry.groups
        if len(message.wanted) != len(groups) or len(grant.blocks) != len(groups):
            return False
        for group, table, span in zip(groups, grant.blocks, message.wanted, strict=True):
            first, last = span
            whole = (0, group.num_tokens)
            if group.kind == "encoder" and span != whole:
                return False
            if first > last or last > group.last_needed(grant.resume_tokens):
                return False
            if group.kind == "state" and first < last and last != grant.resume_tokens:
                return False
            if pieces(group, table, span) is None:
                return False
        return True

    def _serve(self, grant: _Grant, key: ServeKey, address: str, message: Open) -> None:
        serve = _Serve(
            key, grant, address, Machine(SERVE, str(message.part)), message.wanted, message.heads,
            [first for first, _ in message.wanted], self.now,
        )  # fmt: skip
        grant.holder = _holder_of(key)
        grant.serves[key] = self._serves[key] = serve
        self._num_kept[key[0]] += 1
        self._watch(serve)
        self._answer(serve)
        if self._sends(address):
            self._send_more(serve)

    def _answer(self, serve: _Serve) -> None:
        grant = serve.grant
        if self._sends(serve.address):
            opened = Opened(serve.key[2], (), grant.settled)
        else:
            sizes = tuple(group.block_size for group in self._geometry.groups)
            blocks = listed(self._geometry, grant.blocks, serve.wanted)
            opened = Opened(serve.key[2], blocks, grant.settled, sizes)
        self._say(serve.address, opened)

    def _answer_again(self, serve: _Serve, address: str) -> None:
        if serve.address != address:  # the link it was opened on has gone, and we don't know yet
            self._say(address, Denied(serve.key[2], Why.GONE))
        elif serve.machine.state in (S.OPEN, S.SENDING):
            self._answer(serve)
        else:  # it is over, but for a send of ours
            self._say(address, Denied(serve.key[2], Why.GONE))

    def on_confirm(self, address: str, reader: NodeId, run: Incarnation, message: Confirm) -> None:
        """Say whether the bytes are good; a repeat gets the same answer (T4)."""
        key = (reader, run, message.part)
        good = self._verdicts.get(key)
        if good is None:
            serve = self._serves.get(key)
            is_open = serve is not None and serve.machine.state in (S.OPEN, S.SENDING)
            good = rules.may_confirm(is_open)
            if serve is not None and good:
                self._handle(serve, serves.Event.CONFIRM)
        part = message.part
        self._say(address, Confirmed(part) if good else Denied(part, Why.GONE))

    def on_close(self, reader: NodeId, run: Incarnation, message: Close) -> None:
        """The reader has stopped."""
        serve = self._serves.get((reader, run, message.part))
        if serve is None:
            self.counts["close of what isn't open"] += 1
        else:
            self._handle(serve, serves.Event.CLOSE)

    def on_still_reading(self, reader: NodeId, run: Incarnation, message: StillReading) -> None:
        """A one-sided read moves on (T16)."""
        serve = self._serves.get((reader, run, message.part))
        if serve is not None:
            self._watch(serve)

    def link_lost(self, address: str) -> None:
        """The data link to a peer has ended, and nothing is read or sent over it any more."""
        for serve in [s for s in self._serves.values() if s.address == address]:
            self._handle(serve, serves.Event.LINK_LOST)

    # -- from the host -------------------------------------------------------------------------

    def sent(self, key: ServeKey) -> None:
        """A send of ours has returned, however it went."""
        serve = self._serves.get(key)
        if serve is None or serve.machine.state not in (S.SENDING, S.ENDING):
            self.counts["sends that ended twice"] += 1
            return
        self._watch(serve)
        self._handle(serve, serves.Event.SENT)
        if self._serves.get(key) is serve:
            self._send_more(serve)

    def tick(self) -> None:
        """Do what is due; everything that has arrived was handed over before (T22)."""
        for kind, key in self.timers.due(self.now):
            if kind == "verdict":
                self._forget_verdict(key)
            elif (serve := self._serves.get(key)) is not None:
                self.timers.set((kind, key), self.now + self._settings.stall_s)
                self._handle(serve, serves.Event.STALLED)

    # -- what grants and serves do -------------------------------------------------------------

    def _handle_grant(self, grant: _Grant, event: grants.Event) -> None:
        for effect in grant.machine.handle(event):
            assert effect is grants.Effect.ACKNOWLEDGE and grant.machine.state is G.GONE
            del self._grants[grant.lease]
            self._out.append(SendToOwnNode(Revoked(grant.lease)))

    def _handle(self, serve: _Serve, event: serves.Event) -> None:
        for effect in serve.machine.handle(event):
            self._do(serve, effect)

    def _do(self, serve: _Serve, effect: serves.Effect) -> None:
        match effect:
            case serves.Effect.KEEP_VERDICT:
                self._verdict(serve.key, good=True)
            case serves.Effect.SAY_GONE:
                self._say(serve.address, Denied(serve.key[2], Why.GONE))
            case serves.Effect.STOP_SENDING:
                self._out.append(StopSending(serve.address, serve.key))
            case serves.Effect.CUT_LINK:
                self._out.append(CutLink(serve.address))
            case serves.Effect.FREE:
                self._free(serve)

    def _free(self, serve: _Serve) -> None:
        assert serve.machine.state is S.OVER
        del self._serves[serve.key]
        del serve.grant.serves[serve.key]
        self.timers.cancel(("stall", serve.key))
        if serve.key not in self._verdicts:
            self._verdict(serve.key, good=False)
        if not serve.grant.serves:
            self._handle_grant(serve.grant, grants.Event.LAST_CLOSED)

    def _send_more(self, serve: _Serve) -> None:
        """Send what has settled and wasn't sent; one send at a time."""
        if serve.machine.state is not S.OPEN:
            return
        spans: list[TokenSpan] = []
        found: list[Piece] = []
        for index, group in enumerate(self._geometry.groups):
            sent, is_state = serve.sent[index], group.kind == "state"
            until = self._readable(serve, index)
            span = (sent, rules.burst_end(sent, until, self._settings.burst_tokens, is_state))
            spans.append(span)
            found += self._pieces(serve, group, index, span)
        if not found:
            return
        serve.sent = [last for _, last in spans]
        self._handle(serve, serves.Event.MORE)
        self._out.append(
            SendBytes(serve.address, serve.key, tuple(spans), serve.heads, tuple(found))
        )

    def _readable(self, serve: _Serve, index: int) -> int:
        first, last = serve.wanted[index]
        group = self._geometry.groups[index]
        written = group.written(serve.grant.settled)
        return rules.readable(written, first, last, group.kind == "state")

    def _lacks(self, serve: _Serve) -> bool:
        """Whether some of what is wanted isn't written yet."""
        return any(self._readable(serve, g) < last for g, (_, last) in enumerate(serve.wanted))

    def _pieces(self, serve: _Serve, group: Group, index: int, span: TokenSpan) -> list[Piece]:
        found = pieces(group, serve.grant.blocks[index], span)
        assert found is not None, "looked at when it was opened"
        return found

    def _watch(self, serve: _Serve) -> None:
        """It moves on; however slowly, it can't for ever: its worker would be lost (T10, T15)."""
        if self.now < serve.opened_at + self._settings.life_s:
            self.timers.set(("stall", serve.key), self.now + self._settings.stall_s)

    def _verdict(self, key: ServeKey, *, good: bool) -> None:
        self._verdicts[key] = good
        self.timers.set(("verdict", key), self.now + self._settings.verdict_s)

    def _forget_verdict(self, key: ServeKey) -> None:
        if key in self._serves:  # our send of it still goes on
            self.timers.set(("verdict", key), self.now + self._settings.verdict_s)
            return
        del self._verdicts[key]
        self._num_kept[key[0]] -= 1
        if not self._num_kept[key[0]]:
            del self._num_kept[key[0]]

    def _say(self, address: str, message: Opened | Settled | Denied | Confirmed) -> None:
        self._out.append(SendToPeer(address, message))


def _holder_of(key: ServeKey) -> tuple[NodeId, Incarnation, int]:
    return key[0], key[1], key[2].pull
