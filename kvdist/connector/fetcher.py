"""The reader's worker: brings the parts that its node asks for, and says when all is quiet.

Owns:   the parts under way, and what has landed of each.
Knows nothing of: requests, hashes, other workers' parts.
Source: T3, T4, T15-T17 of docs/protocol.md.
"""

from collections import Counter
from dataclasses import dataclass

from kvdist.connector import rules
from kvdist.connector.effects import (
    CutLink,
    Escalate,
    ReadBytes,
    SendToOwnNode,
    SendToPeer,
    StopRead,
    WorkerEffect,
)
from kvdist.connector.geometry import Geometry, Group, Piece, pieces, sized
from kvdist.connector.local import Cancel, Fetch, PartEnded, PartQuiet
from kvdist.connector.machine import Machine
from kvdist.connector.messages import (
    Blocks,
    Close,
    Confirm,
    Confirmed,
    Denied,
    Heads,
    Open,
    Opened,
    PartId,
    Settled,
    StillReading,
    TokenSpan,
    TokenSpans,
    Why,
    WorkerMessage,
)
from kvdist.connector.settings import Settings
from kvdist.connector.tables.part import PART, Effect, Event, State
from kvdist.connector.timers import Timers
from kvdist.ids import Incarnation, NodeId


@dataclass(eq=False, slots=True)
class _Part:
    """A part under way."""

    fetch: Fetch
    machine: Machine[State, Event, Effect]
    #: Landed so far, by group: up to which token; and under way, up to which.
    landed: list[int]
    asked: list[int]
    #: Bodies that were placed and haven't landed.
    num_landing: int = 0
    #: The owner's tables, if we read by ourselves, and how far they may be read.
    source: Blocks = ()
    source_groups: tuple[Group, ...] = ()
    settled: int = 0
    tries: int = 0
    level: int = 0
    failure: str = ""
    #: The owner serves its lease no more.
    is_lease_gone: bool = False
    #: A one-sided read is under way: one at a time, so that none is skipped.
    is_reading: bool = False
    #: Something has landed since progress was last reported.
    has_moved: bool = False
    #: When the owner opened it.
    opened_at: float = 0.0


class Fetcher:
    """See the module; `out` collects effects."""

    def __init__(
        self,
        geometry: Geometry,
        settings: Settings,
        out: list[WorkerEffect],
    ) -> None:
        self._geometry, self._settings = geometry, settings
        self._out = out
        #: Seconds on the host's clock, which sets it before it hands anything over.
        self.now = 0.0
        self._parts: dict[PartId, _Part] = {}
        self.timers: Timers[tuple[str, PartId]] = Timers()
        self.counts: Counter[str] = Counter()

    @property
    def num_open(self) -> int:
        """Parts that aren't over."""
        return len(self._parts)

    @property
    def parts(self) -> dict[PartId, tuple[str, State]]:
        """Of those: where each comes from, and how far it is."""
        return {name: (p.fetch.address, p.machine.state) for name, p in self._parts.items()}

    @property
    def owners(self) -> dict[PartId, tuple[NodeId, Incarnation]]:
        """And whose each is: only that run of a node may speak of it."""
        return {name: (p.fetch.owner, p.fetch.owner_run) for name, p in self._parts.items()}

    # -- from our node -------------------------------------------------------------------------

    def on_fetch(self, fetch: Fetch) -> None:
        """Bring a part."""
        first = [first for first, _ in fetch.wanted]
        part = _Part(fetch, Machine(PART, str(fetch.part)), first, list(first))
        self._parts[fetch.part] = part
        self._send_open(part)

    def on_cancel(self, message: Cancel) -> None:
        """Nobody wants it any more."""
        if (part := self._parts.get(message.part)) is not None:
            self._fail(part, Event.CANCELLED, "cancelled")

    # -- from the owner's worker ---------------------------------------------------------------

    def on_opened(self, peer: NodeId, run: Incarnation, message: Opened) -> None:
        """The owner serves it: name the target, or begin to read."""
        part = self._part_of(peer, run, message.part)
        if part is None or part.machine.state is not State.OPENING:
            self.counts["opened twice, or too late"] += 1
            return
        part.source, part.settled = message.blocks, message.settled
        part.source_groups = sized(self._geometry.groups, message.block_sizes)
        self._handle(part, Event.OPENED)

    def on_settled(self, peer: NodeId, run: Incarnation, message: Settled) -> None:
        """More of a stream can be read."""
        part = self._part_of(peer, run, message.part)
        if part is not None and part.machine.state is State.LANDING:
            part.settled = max(part.settled, message.settled)
            self._read_more(part)

    def on_denied(self, peer: NodeId, message: Denied) -> None:
        """The owner doesn't serve it, or not to its end; or the bytes are worthless."""
        part = self._parts.get(message.part)
        if part is not None and part.fetch.owner == peer:  # a later run of it may say so too
            # A confirm is denied for the sake of its hold alone; the lease may stand.
            before = part.machine.state in (State.OPENING, State.LANDING)
            part.is_lease_gone |= message.why is Why.GONE and before
            self._fail(part, Event.DENIED, f"the owner says {message.why.name.lower()}")

    def on_confirmed(self, peer: NodeId, run: Incarnation, message: Confirmed) -> None:
        """The bytes are good."""
        part = self._part_of(peer, run, message.part)
        if part is not None and part.machine.state is State.CONFIRMING:
            self._handle(part, Event.CONFIRMED)
        else:
            self.counts["confirmed twice, or unasked"] += 1

    def place(
        self, peer: NodeId, run: Incarnation, name: PartId, spans: TokenSpans
    ) -> list[Piece] | None:
        """Where the bytes of a message should land; None: nowhere, refuse them.

        Only what is wanted, in order, each slot once; and something: a peer that sends nothing,
        again and again, makes no progress.
        """
        part = self._part_of(peer, run, name)
        if part is None or part.machine.state is not State.LANDING or part.source:
            return None
        if len(spans) != len(part.asked):
            return None
        for (first, last), asked, (_, end) in zip(
            spans, part.asked, part.fetch.wanted, strict=True
        ):
            if first != asked or not first <= last <= end:
                return None
        if all(first == last for first, last in spans):
            return None
        part.asked = [last for _, last in spans]
        part.num_landing += 1
        return self._targets(part, spans)

    def heads_of(self, name: PartId) -> Heads:
        """Which heads a part brings: [first, last); of one that is over: none."""
        part = self._parts.get(name)
        return (0, 0) if part is None else part.fetch.heads

    def link_lost(self, address: str) -> None:
        """The data link to an owner's worker has ended."""
        for part in [p for p in self._parts.values() if p.fetch.address == address]:
            self._fail(part, Event.LINK_LOST, "the link was lost")

    def refused(self, address: str, fields: str) -> None:
        """The owner's worker and we can't exchange blocks."""
        for part in [p for p in self._parts.values() if p.fetch.address == address]:
            self._fail(part, Event.DENIED, f"the nodes differ in {fields}"[:512])

    # -- from the host -------------------------------------------------------------------------

    def landed(self, name: PartId, spans: TokenSpans) -> None:
        """Bytes of a part have landed, all of them, where `place` or `ReadBytes` said."""
        part = self._parts.get(name)
        if part is None:
            self.counts["bytes of a part that is over"] += 1
            return
        part.landed = [max(have, last) for have, (_, last) in zip(part.landed, spans, strict=True)]
        part.has_moved, part.is_reading = True, False
        part.num_landing = max(0, part.num_landing - 1)
        # A later body over another link may be there first.
        done = not part.num_landing and all(
            have >= last for have, (_, last) in zip(part.landed, part.fetch.wanted, strict=True)
        )
        if part.machine.state is not State.LANDING:
            return  # QUIET will come
        self._watch(part)
        if done:
            self._handle(part, Event.LANDED)
        else:
            self._read_more(part)

    def read_failed(self, name: PartId, why: str) -> None:
        """Some byte of a part won't come; others may still be under way."""
        part = self._parts.get(name)
        if part is not None and part.machine.state is State.LANDING:
            self._fail(part, Event.READ_FAILED, why)

    def quiet(self, name: PartId) -> None:
        """No byte of a part can land any more (T3): by what this host knows itself."""
        part = self._parts.get(name)
        if part is None or part.machine.state is not State.STOPPING:
            self.counts["quiet twice"] += 1
        else:
            self._handle(part, Event.QUIET)

    def tick(self) -> None:
        """Do what is due; everything that has arrived was handed over before (T22)."""
        for kind, name in self.timers.due(self.now):
            if (part := self._parts.get(name)) is None:
                continue
            self.counts["answers that didn't come in time"] += kind == "answer"
            match kind:
                case "answer" if part.tries < self._settings.tries:
                    self._handle(part, Event.UNANSWERED)
                case "answer":
                    self._fail(part, Event.GAVE_UP, "the owner doesn't answer")
                case "stall":
                    self._fail(part, Event.STALLED, "no progress")
                case "rest":
                    self._handle(part, Event.RESTLESS)
                case _:
                    self._report_progress(part)

    def _part_of(self, peer: NodeId, run: Incarnation, name: PartId) -> _Part | None:
        """The part, if it is this peer's to speak of."""
        part = self._parts.get(name)
        if part is None or part.fetch.owner != peer:
            return None
        return part if rules.is_same_run(part.fetch.owner_run, run) else None

    # -- what parts do -------------------------------------------------------------------------

    def _fail(self, part: _Part, event: Event, why: str) -> None:
        part.failure = part.failure or why
        self._handle(part, event)

    def _handle(self, part: _Part, event: Event) -> None:
        for effect in part.machine.handle(event):
            self._do(part, effect)

    def _do(self, part: _Part, effect: Effect) -> None:
        fetch = part.fetch
        match effect:
            case Effect.SEND_OPEN:
                self._send_open(part)
            case Effect.BEGIN_READ:
                self._begin_read(part)
            case Effect.SEND_CONFIRM:
                self._send_confirm(part)
            case Effect.SEND_CLOSE:
                self._say(part, Close(fetch.part))
            case Effect.STOP_READ:
                self._stop_read(part)
            case Effect.CUT_LINK:
                self._out.append(CutLink(fetch.address))
            case Effect.ESCALATE:
                self._escalate(part)
            case Effect.REPORT_GOOD:
                assert part.machine.state is State.GOOD
                part.failure = ""  # a link may have been lost on the way
                self._out.append(SendToOwnNode(PartEnded(fetch.part, "")))
            case Effect.REPORT_FAILED:
                assert part.machine.state is not State.GOOD
                ended = PartEnded(fetch.part, part.failure or "failed", part.is_lease_gone)
                self._out.append(SendToOwnNode(ended))
            case Effect.REPORT_QUIET:
                self._end(part)

    def _send_open(self, part: _Part) -> None:
        fetch = part.fetch
        self._ask(part)
        self._say(
            part,
            Open(
                fetch.part, fetch.lease, fetch.owner_run, fetch.wanted, fetch.heads, fetch.content
            ),
        )

    def _begin_read(self, part: _Part) -> None:
        self.timers.cancel(("answer", part.fetch.part))
        part.tries, part.opened_at = 0, self.now
        self._watch(part)
        if all(first >= last for first, last in part.fetch.wanted):
            self._handle(part, Event.LANDED)  # whatever the owner's tables are like
        elif part.source:
            self.timers.set(("progress", part.fetch.part), self.now + self._settings.progress_s)
            self._read_more(part)

    def _read_more(self, part: _Part) -> None:
        """Read what has settled and isn't asked for yet."""
        if not part.source or part.is_reading or part.machine.state is not State.LANDING:
            return
        spans: list[TokenSpan] = []
        source: list[Piece] = []
        for index, group in enumerate(self._geometry.groups):
            first, last = part.fetch.wanted[index]
            is_state = group.kind == "state"
            asked = part.asked[index]
            until = rules.readable(group.written(part.settled), first, last, is_state)
            until = rules.burst_end(asked, until, self._settings.burst_tokens, is_state)
            spans.append((asked, max(asked, until)))
            found = None
            if index < len(part.source) and index < len(part.source_groups):
                found = pieces(part.source_groups[index], part.source[index], spans[-1])
            if found is None:
                self._fail(part, Event.READ_FAILED, "the owner's tables lack a block")
                return
            source += found
        if source:
            part.asked, part.is_reading = [last for _, last in spans], True
            target = self._targets(part, tuple(spans))
            fetch = part.fetch
            self._out.append(
                ReadBytes(fetch.address, fetch.part, tuple(spans), fetch.heads, source, target)
            )

    def _targets(self, part: _Part, spans: TokenSpans) -> list[Piece]:
        found: list[Piece] = []
        for group, table, span in zip(
            self._geometry.groups, part.fetch.targets, spans, strict=True
        ):
            here = pieces(group, table, span)
            assert here is not None, "our own node took the blocks"
            found += here
        return found

    def _send_confirm(self, part: _Part) -> None:
        self.timers.cancel(("stall", part.fetch.part))
        self.timers.cancel(("progress", part.fetch.part))
        self._ask(part)
        self._say(part, Confirm(part.fetch.part, part.fetch.lease))

    def _stop_read(self, part: _Part) -> None:
        for kind in ("stall", "progress"):
            self.timers.cancel((kind, part.fetch.part))
        self._out.append(StopRead(part.fetch.address, part.fetch.part))
        self.timers.set(("rest", part.fetch.part), self.now + self._settings.escalation_s[0])

    def _escalate(self, part: _Part) -> None:
        levels = self._settings.escalation_s
        self._out.append(Escalate(part.fetch.address, part.level))
        part.level += 1
        if part.level < len(levels):
            wait = levels[part.level] - levels[part.level - 1]
            self.timers.set(("rest", part.fetch.part), self.now + wait)

    def _end(self, part: _Part) -> None:
        assert part.machine.state is (State.OVER if part.failure else State.GOOD)
        name = part.fetch.part
        for kind in ("answer", "stall", "progress", "rest"):
            self.timers.cancel((kind, name))
        del self._parts[name]
        self._out.append(SendToOwnNode(PartQuiet(name)))

    def _report_progress(self, part: _Part) -> None:
        if part.has_moved:
            part.has_moved = False
            self._say(part, StillReading(part.fetch.part))
        self.timers.set(("progress", part.fetch.part), self.now + self._settings.progress_s)

    def _ask(self, part: _Part) -> None:
        part.tries += 1
        self.timers.set(("answer", part.fetch.part), self.now + self._settings.answer_s)

    def _watch(self, part: _Part) -> None:
        """It moves on; no longer than an owner serves, however slowly bytes trickle in (T10)."""
        if self.now < part.opened_at + self._settings.life_s:
            self.timers.set(("stall", part.fetch.part), self.now + self._settings.stall_s)

    def _say(self, part: _Part, message: WorkerMessage) -> None:
        self._out.append(SendToPeer(part.fetch.address, message))
