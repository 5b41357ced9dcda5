"""A simulated worker: the connector's worker half, its links, and bytes that take time.

Owns:   the links it dialled, the reads and sends under way, what its node sent it.
Knows nothing of: requests, steps (all ranks compute together, see `node`).
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvdist.connector.effects import (
    CutLink,
    Escalate,
    ReadBytes,
    SendBytes,
    SendToOwnNode,
    SendToPeer,
    ServeKey,
    StopRead,
    StopSending,
    WorkerEffect,
)
from kvdist.connector.local import Revoke, ToWorker
from kvdist.connector.messages import (
    Close,
    Confirm,
    Greeting,
    Heads,
    Hello,
    Open,
    PartId,
    TokenSpans,
    WorkerMessage,
)
from kvdist.connector.worker_half import WorkerHalf
from kvdist.errors import InvariantViolation
from kvdist.ids import Incarnation, NodeId, Rank
from kvdist.sim.fetching import Fetching
from kvdist.sim.links import BY_READERS, DataLink
from kvdist.sim.manners import Manners
from kvdist.sim.memory import Memory
from kvdist.sim.say_so import WorkerSaySo
from kvdist.sim.serving import Serving
from kvdist.sim.transfer import Landing, slots, writer

if TYPE_CHECKING:
    from kvdist.sim.cluster import Cluster
    from kvdist.sim.node import SimNode


class SimWorker:
    """One rank of one run of a node."""

    def __init__(self, cluster: "Cluster", node: "SimNode", rank: Rank, memory: Memory) -> None:
        self.cluster, self._world = cluster, cluster.world
        self._node = node
        self.node_id: NodeId = node.node_id
        self.run: Incarnation = node.run
        self.rank = rank
        self.name: str = f"{node.name}/{rank}"
        self.memory = memory
        self.is_alive = True
        self.half = WorkerHalf(
            Hello(node.node_id, node.run, node.fingerprint),
            rank,
            node.geometry,
            cluster.settings,
            sends=lambda _link: not cluster.one_sided,
        )
        self._manners = Manners(self.half.contacts)
        #: By the owner's address.
        self._dialled: dict[str, DataLink] = {}
        #: By the name under which we, as owner, know them.
        self._accepted: dict[str, DataLink] = {}
        #: What lands here: one at a time for each part.
        self._landings: dict[PartId, tuple[Landing, DataLink]] = {}
        #: Bodies that have come while one before them still landed.
        self._waiting: dict[PartId, deque[Callable[[], None]]] = {}
        #: Sends that don't return before their link ends.
        self._unsent: dict[DataLink, list[ServeKey]] = {}
        self._serving = Serving(self.half.server, node.geometry, cluster.settings)
        self._fetching = Fetching(
            self.half.fetcher, node.geometry, cluster.settings, node.has_cancelled,
            lambda address: address in self.half.contacts.versions,
        )  # fmt: skip
        self._say_so = WorkerSaySo(self.half, node.run)
        #: When the latest send of each open pull began.
        self._begun: dict[ServeKey, float] = {}
        #: Parts, and links, that the latest event had something said of, or to whom hello was.
        self._answered: set[PartId | str] = set()
        #: Parts whose read was stopped and that aren't quiet.
        self._stopped: set[PartId] = set()
        self._tick_at: float | None = None
        #: Local messages, both ways, arrive in order: when the last of them does.
        self.local_at = 0.0

    # -- events --------------------------------------------------------------------------------

    def do(self, event: Callable[[], None], message: object = None) -> None:
        """Handle an event, then whatever follows from it; message: that it is, if it is one."""
        if not self.is_alive:
            return
        self.half.clock(self._world.now)
        self._serving.begins()
        self._fetching.begins(message)
        event()
        self._answered.clear()
        for effect in self.half.take_effects():
            self._promise(lambda effect=effect: self._does(effect))  # type: ignore[misc]
            if isinstance(effect, SendToPeer):
                self._note_answer(effect)
                self._manners.says(effect.address, effect.message)
            self._carry_out(effect)
        self._promise(self._serving.ends)
        self._promise(self._fetching.ends)
        if lacking := self._manners.lacking():
            self.cluster.violated(f"{self.name} owes {lacking}")
        self._set_tick()

    def _does(self, effect: WorkerEffect) -> None:
        self._serving.does(effect)
        self._fetching.does(effect)

    def _promise(self, look: Callable[[], None]) -> None:
        try:
            look()
        except InvariantViolation as found:
            self.cluster.violated(f"{self.name}: {found}")

    def _note_answer(self, effect: SendToPeer) -> None:
        message = effect.message
        self._answered.add(effect.address if isinstance(message, Greeting) else message.part)

    def from_node(self, message: ToWorker) -> None:
        """Over the local link."""
        self._world.note(self.name, "from its node", message)
        self.do(lambda: self.half.from_node(message))
        if isinstance(message, Revoke):
            self._promise(lambda: self._serving.has_revoked(message.lease))

    def receive(
        self, link: DataLink, sender: "SimWorker", message: WorkerMessage | Greeting
    ) -> None:
        """Over a data link."""
        self._world.note(self.name, f"from {sender.name}", message)
        is_readers = isinstance(message, BY_READERS)
        if is_readers != (self is link.owner) and not isinstance(message, Greeting):
            return  # nobody says this on that side
        name = link.name if self is link.owner else link.owner.address
        self.do(lambda: self._hear(name, sender, message), message)
        self._look_at_serves(name, sender, message)
        if isinstance(message, Open | Confirm) and not self._answered & {message.part, name}:
            self.cluster.violated(f"T14: {self.name} leaves {message} without an answer")

    def _look_at_serves(
        self, name: str, sender: "SimWorker", message: WorkerMessage | Greeting
    ) -> None:
        """What it has done about a message of a reader."""
        serving, now, kept = self._serving, self._world.now, self.cluster.settings.verdict_s
        match message:
            case Confirm(part):
                key = (sender.node_id, sender.run, part)
                self._promise(lambda: serving.has_confirmed(name, key, sender.name, now, kept))
            case Close(part) if name in self.half.contacts.versions:
                key = (sender.node_id, sender.run, part)
                self._promise(lambda: serving.has_closed(key))
            case _:
                pass

    def _hear(self, name: str, sender: "SimWorker", message: WorkerMessage | Greeting) -> None:
        self._manners.hears(name, message)
        self._say_so.hears(name, (sender.node_id, sender.run), message)
        self.half.from_peer(name, sender.node_id, sender.run, message)
        self._promise(lambda: self._say_so.has_heard(message))
        self._manners.has_heard(name, message)

    def lost(self, link: DataLink) -> None:
        """A link has ended, as far as this side knows."""
        self._world.note(self.name, "lost", link.name)
        if self is link.owner:
            self._accepted.pop(link.name, None)
            self.do(lambda: self.half.link_lost(link.name))
            for key in self._unsent.pop(link, []):
                self._returned(key)
            return
        address = link.owner.address
        if self._dialled.get(address) is link:
            del self._dialled[address]
        self._force(address, level=-1)
        self.do(lambda: self.half.link_lost(address))

    @property
    def version(self) -> int:
        """The latest version that it speaks."""
        return self._node.fingerprint.latest_version

    @property
    def address(self) -> str:
        """By which others find whoever runs here now."""
        return f"{self.node_id}/{self.rank}"

    def _set_tick(self) -> None:
        at = self.half.next_at()
        if at is not None and (self._tick_at is None or at < self._tick_at):
            self._tick_at = at
            self._world.at(at, lambda: self._tick(at))

    def _tick(self, at: float) -> None:
        if self._tick_at == at and self.is_alive:
            self._tick_at = None
            self.do(self.half.tick)
            self._promise(self._serving.has_ticked)
            self._promise(lambda: self._fetching.has_ticked(self.half.contacts.refused))

    # -- effects -------------------------------------------------------------------------------

    def _carry_out(self, effect: object) -> None:
        match effect:
            case SendToOwnNode(message):
                self._node.from_worker_later(self, message)
            case SendToPeer():
                self._send(effect)
            case SendBytes():
                self._send_bytes(effect)
            case StopSending():
                pass  # what is under way is short
            case ReadBytes():
                self._read_bytes(effect)
            case StopRead(_, part):
                self._stop_read(part)
            case CutLink(address):
                self._cut(address)
            case Escalate(address, level):
                self._escalate(address, level)
            case _:
                raise AssertionError(effect)

    def _link(self, address: str) -> DataLink | None:
        """As owner by its name; as reader the link to that address, dialled if need be."""
        link = self._accepted.get(address) or self._dialled.get(address)
        if link is None and not address.startswith("link "):
            link = self.cluster.dial(self, address)
            if link is not None:
                self._dialled[address] = link
        return link

    def accept(self, link: DataLink) -> None:
        """A peer has dialled."""
        self._accepted[link.name] = link

    def _send(self, effect: SendToPeer) -> None:
        address = effect.address
        link = self._link(address)
        if link is not None:
            link.send(self, effect.message, effect.version)
        elif not address.startswith("link "):
            delay = self._world.between(0.001, 0.1)
            self._world.after(delay, lambda: self.do(lambda: self.half.link_lost(address)))

    def _cut(self, address: str) -> None:
        link = self._accepted.get(address) or self._dialled.get(address)
        if link is not None:
            link.cut(self)

    def _escalate(self, address: str, level: int) -> None:
        self._cut(address)
        self._force(address, level)
        if level == len(self.cluster.settings.escalation_s) - 1:
            self._node.worker_gives_up(self)

    def _force(self, address: str, level: int) -> None:
        """A measure of this level ends what gives in to it."""
        for landing, link in list(self._landings.values()):
            if link.owner.address == address and landing.gives_in(level):
                landing.force()

    # -- bytes that the owner sends ------------------------------------------------------------

    def _send_bytes(self, effect: SendBytes) -> None:
        """Read here over a while, then land there over another."""
        link = self._accepted.get(effect.address)
        cells = slots(effect.pieces, effect.heads)
        values: list[int] = []

        def read(count: int) -> None:
            blocks = self._node.manager.block_pool.blocks
            for block, head, slot in cells[len(values) : count]:
                if self._node.is_alive and not blocks[block].ref_cnt:
                    self.cluster.violated(f"I4: {self.name} sends block {block}, which is free")
                values.append(self.memory.cells(block, head)[slot])

        def finish() -> None:
            if not self.is_alive:
                return
            read(len(cells))
            hangs = self._world.happens(self.cluster.faults.stuck)
            arrives = not (hangs and self._world.happens(0.5))
            if link is not None and not link.is_cut and arrives:
                key, spans, heads = effect.key, effect.spans, effect.heads
                link.carry(self, lambda: link.reader.land(link, key, spans, heads, values))
            # A send may return long after its last byte has left, or only when the link ends.
            if hangs and link is not None and self._accepted.get(effect.address) is link:
                self._unsent.setdefault(link, []).append(effect.key)
                self.cluster.hold(60.0, lambda: self._sent(link, effect.key))
            else:
                delay = self._world.between(0.0, 0.005)
                self._world.after(delay, lambda: self._returned(effect.key))

        if link is not None:
            self._audit_stall(link, effect.key)
        delay = self.cluster.config.slowness * self._world.between(0.0002, 0.02)
        self._world.after(delay / 2, lambda: read(len(cells) // 2))
        self._world.after(delay, finish)

    def _audit_stall(self, link: DataLink, key: ServeKey) -> None:
        """A send that begins now, and doesn't return, has its link cut in time (T16)."""
        begun = self._begun[key] = self._world.now

        def audit() -> None:
            if self._begun.get(key) != begun:
                return
            del self._begun[key]
            if key in self._unsent.get(link, []) and self.is_alive and not link.is_cut:
                self.cluster.violated(f"T16: {self.name} waits on for {key} on {link.name}")

        self._world.after(self.cluster.settings.stall_s + 1e-6, audit)

    def _sent(self, link: DataLink, key: ServeKey) -> None:
        """A send that hung returns."""
        unsent = self._unsent.get(link, [])
        if key in unsent:
            unsent.remove(key)
            self._returned(key)

    def _returned(self, key: ServeKey) -> None:
        """A send has returned, however it went."""
        self._serving.returned(key)
        self.do(lambda: self.half.sent(key))

    def land(
        self, link: DataLink, key: ServeKey, spans: TokenSpans, heads: Heads, values: list[int]
    ) -> None:
        """A body has come: it lands where the half says, over a while."""
        part, owner = key[2], link.owner
        if part in self._landings:  # the body before it hasn't landed whole
            self._waiting.setdefault(part, deque()).append(
                lambda: self.land(link, key, spans, heads, values)
            )
            return
        places = self.half.place(owner.node_id, owner.run, part, spans)
        if places is None:
            self.cluster.num_refused += 1
            return
        cells = slots(places, heads)
        if len(cells) != len(values):
            link.cut(self)
            return
        self._begin(link, part, spans, cells, lambda index: values[index])

    # -- bytes that we read --------------------------------------------------------------------

    def _read_bytes(self, effect: ReadBytes) -> None:
        link = self._dialled.get(effect.address)
        if link is None:
            self._world.after(
                0.0001,
                lambda: self.do(lambda: self.half.read_failed(effect.part, "no link")),
            )
            return
        owner, source = link.owner, slots(effect.source, effect.heads)

        def read(index: int) -> int | None:
            if not owner.is_alive:
                return None
            block, head, slot = source[index]
            return owner.memory.cells(block, head)[slot]

        self._begin(link, effect.part, effect.spans, slots(effect.target, effect.heads), read)

    def _begin(
        self,
        link: DataLink,
        part: PartId,
        spans: TokenSpans,
        cells: list[tuple[int, int, int]],
        read: Callable[[int], int | None],
    ) -> None:
        faults = self.cluster.faults
        stuck = self._world.happens(faults.stuck)
        landing = Landing(
            self._world,
            read,
            writer(self.memory, cells),
            len(cells),
            lambda complete: self._landed(part, spans, complete=complete),
            stuck_until=self._world.chance.randint(-1, 3) if stuck else None,
            writes_on=self._world.happens(faults.write_on),
            slowness=self.cluster.config.slowness,
        )
        if stuck:
            self.cluster.stuck.append(landing)
        self._landings[part] = (landing, link)

    def _landed(self, part: PartId, spans: TokenSpans, *, complete: bool) -> None:
        self._landings.pop(part, None)
        self._world.note(self.name, "landed" if complete else "ended before all had landed", part)
        waiting = self._waiting.get(part)
        if part in self._stopped:
            self._stopped.discard(part)
            self._waiting.pop(part, None)
            self.do(lambda: self.half.quiet(part))
        elif complete:
            self.do(lambda: self.half.landed(part, spans))
        else:
            self.do(lambda: self.half.read_failed(part, "the read failed"))
        if waiting:
            waiting.popleft()()

    def _stop_read(self, part: PartId) -> None:
        found = self._landings.get(part)
        if found is None:
            self._world.after(0.0001, lambda: self.do(lambda: self.half.quiet(part)))
            return
        self._stopped.add(part)
        found[0].stop()

    def die(self) -> None:
        """It is gone; its links end when others notice."""
        self.is_alive = False
        for link in [*self._dialled.values(), *self._accepted.values()]:
            link.end_other_than(self)
