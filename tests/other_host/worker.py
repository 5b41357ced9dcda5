"""One rank of a host: the worker half behind vLLM's contract, its links, and bytes that take time.

Owns:   what its half has to tell its scheduler's side, the links, what is landing.
Knows nothing of: requests, schedules.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvdist.connector.codec import decode, encode
from kvdist.connector.effects import (
    CutLink,
    Escalate,
    ReadBytes,
    SendBytes,
    SendToOwnNode,
    SendToPeer,
    StopRead,
    StopSending,
)
from kvdist.connector.local import FromWorker
from kvdist.connector.messages import Message, PartId, TokenSpans
from kvdist.connector.worker_half import WorkerHalf
from kvdist.ids import BlockId, Rank
from kvdist.sim.memory import Memory
from kvdist.sim.transfer import Landing, slots, writer
from kvdist.sim.world import World
from tests.other_host.connector import Ended, Metadata

if TYPE_CHECKING:
    from tests.other_host.pair import Pair


class WorkerSide:
    """`address` is how readers reach it; they are reached by `reader ADDRESS`."""

    def __init__(
        self, pair: "Pair", node: str, rank: Rank, half: WorkerHalf, memory: Memory
    ) -> None:
        self._pair, self._world = pair, pair.world
        self.node, self.rank, self.address = node, rank, f"{node}/{rank}"
        self.half, self.memory = half, memory
        self._said: list[tuple[Rank, FromWorker]] = []
        self._ended = Ended()
        self._landings: dict[PartId, Landing] = {}
        self._stopped: set[PartId] = set()
        self._tick_at: float | None = None

    # -- vLLM's contract -----------------------------------------------------------------------

    def handle_preemptions(self, metadata: Metadata) -> None:
        """Nobody reads along, so nothing that is preempted is read."""

    def start_load_kv(self, metadata: Metadata) -> None:
        self._ended = metadata.ended
        for rank, message in metadata.to_workers:
            if rank == self.rank:
                self.do(lambda message=message: self.half.from_node(message))  # type: ignore[misc]

    def wait_for_save(self) -> None:
        """Whole prompts are read once their steps are over."""

    def get_finished(self) -> tuple[set[str], set[str]]:
        return self._ended.finished_sending, self._ended.finished_recving

    def get_failed(self) -> set[str]:
        return self._ended.failed_recving

    def get_block_ids_with_load_errors(self) -> set[BlockId]:
        return self._ended.invalid_block_ids

    def build_connector_worker_meta(self) -> list[tuple[Rank, FromWorker]]:
        said, self._said = self._said, []
        return said

    # -- events --------------------------------------------------------------------------------

    def do(self, event: Callable[[], None]) -> None:
        self.half.clock(self._world.now)
        event()
        for effect in self.half.take_effects():
            match effect:
                case SendToOwnNode(message):
                    self._said.append((self.rank, message))
                case SendToPeer():
                    self._send(effect)
                case SendBytes():
                    self._send_bytes(effect)
                case ReadBytes():
                    self._read_bytes(effect)
                case StopRead(_, part):
                    self._stop_read(part)
                case CutLink(address):
                    self._pair.cut(self, self._pair.worker(address))
                case StopSending():
                    pass  # `sent` is on its way
                case Escalate():
                    for landing in list(self._landings.values()):
                        landing.force()
        self._set_tick()

    def _set_tick(self) -> None:
        at = self.half.next_at()
        if at is not None and (self._tick_at is None or at < self._tick_at):
            self._tick_at = at
            self._world.at(at, lambda: self._tick(at))

    def _tick(self, at: float) -> None:
        if self._tick_at == at:
            self._tick_at = None
            self.do(self.half.tick)

    def _send(self, effect: SendToPeer) -> None:
        data, is_answer = (
            encode(effect.message, effect.version),
            effect.address.startswith("reader"),
        )
        self._pair.over_link(
            self, effect.address, lambda peer: peer.receive(self, decode(data), is_answer)
        )

    def receive(self, peer: "WorkerSide", message: Message, is_answer: bool) -> None:
        """Readers dial; owners know the link by its reader."""
        name = peer.address if is_answer else f"reader {peer.address}"
        self.do(
            lambda: self.half.from_peer(name, peer.node, self._pair.run_of(peer.node), message)  # type: ignore[arg-type]
        )

    def link_lost(self, peer: "WorkerSide") -> None:
        """The link to a peer, both ways."""
        self.do(lambda: self.half.link_lost(peer.address))
        self.do(lambda: self.half.link_lost(f"reader {peer.address}"))

    # -- bytes ---------------------------------------------------------------------------------

    def _send_bytes(self, effect: SendBytes) -> None:
        cells = slots(effect.pieces, effect.heads)

        def go() -> None:
            values = [self.memory.cells(block, head)[slot] for block, head, slot in cells]
            self._pair.over_link(
                self,
                effect.address,
                lambda peer: peer.land(self, effect.key[2], effect.spans, effect.heads, values),
            )
            self.do(lambda: self.half.sent(effect.key))

        self._world.after(self._world.between(0.0, 0.01), go)

    def land(
        self,
        owner: "WorkerSide",
        part: PartId,
        spans: TokenSpans,
        heads: tuple[int, int],
        values: list[int],
    ) -> None:
        """A body has come."""
        places = self.half.place(owner.node, self._pair.run_of(owner.node), part, spans)
        if places is None:
            self._pair.counts["bodies that were refused"] += 1
            return
        cells = slots(places, heads)
        assert len(cells) == len(values)
        self._begin(part, spans, cells, lambda index: values[index])

    def _read_bytes(self, effect: ReadBytes) -> None:
        owner, source = self._pair.worker(effect.address), slots(effect.source, effect.heads)

        def read(index: int) -> int | None:
            block, head, slot = source[index]
            return owner.memory.cells(block, head)[slot]

        self._begin(effect.part, effect.spans, slots(effect.target, effect.heads), read)

    def _begin(
        self,
        part: PartId,
        spans: TokenSpans,
        cells: list[tuple[int, int, int]],
        read: Callable[[int], int | None],
    ) -> None:
        world: World = self._world
        fails = world.happens(self._pair.fail_reads)
        self._landings[part] = Landing(
            world,
            (lambda _: None) if fails else read,
            writer(self.memory, cells),
            len(cells),
            lambda complete: self._landed(part, spans, complete=complete),
            stuck_until=None,
            writes_on=world.happens(self._pair.write_on),
        )

    def _landed(self, part: PartId, spans: TokenSpans, *, complete: bool) -> None:
        del self._landings[part]
        if part in self._stopped:
            self._stopped.remove(part)
            self.do(lambda: self.half.quiet(part))
        elif complete:
            self.do(lambda: self.half.landed(part, spans))
        else:
            self.do(lambda: self.half.read_failed(part, "the read failed"))

    def _stop_read(self, part: PartId) -> None:
        if (landing := self._landings.get(part)) is None:
            self._world.after(0.0001, lambda: self.do(lambda: self.half.quiet(part)))
        else:
            self._stopped.add(part)
            landing.stop()
