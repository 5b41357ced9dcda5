"""The scheduler half's shell: control links, our own workers, and the clock.

Owns:   the links to other nodes, what waits for one, and the sockets to our own workers.
Knows nothing of: the scheduler; whoever hosts it takes what concerns it out of `take`.
Source: T5, T21, T22 of docs/protocol.md.

A link serves both ways, whoever dialled; with two of them, either. What can't be delivered is
dropped, as the protocol expects: whoever needs an answer asks again.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

import structlog

from kvdist.connector.effects import (
    DutyOver,
    PeerRefused,
    SendToNode,
    SendToWorker,
    TicketReady,
    WorkerLost,
)
from kvdist.connector.host import Moved
from kvdist.connector.local import FromWorker
from kvdist.connector.messages import Greeting, NodeMessage
from kvdist.connector.scheduler_half import SchedulerHalf
from kvdist.errors import RemoteProtocol
from kvdist.ids import Incarnation, NodeId, Rank
from kvdist.links import control_wire
from kvdist.links.control_link import ControlLink
from kvdist.links.local_link import LocalLink
from kvdist.links.local_wire import Ask, Known
from kvdist.links.marks import Marks
from kvdist.links.members import Members
from kvdist.links.ticking import Ticking
from transports.api import Link, Listener, Transport
from transports.errors import Refused, TransportError

_log = structlog.get_logger(__name__)

_DIAL_S: Final = 5.0
#: After a failure nothing is tried for so long; doubled each time, up to the second.
_BACK_OFF_S: Final = (0.1, 2.0)
#: Messages that wait for a link; more only if something is wrong.
_MOST: Final = 1000

#: What the host of the half has to see to.
ForHost: TypeAlias = TicketReady | WorkerLost | Moved


@dataclass(eq=False, slots=True)
class _Other:
    """Another node, as far as it can be reached."""

    links: list[ControlLink] = field(default_factory=list)
    #: While it is dialled.
    messages: list[SendToNode] = field(default_factory=list)
    asking: list[LocalLink] = field(default_factory=list)
    is_dialled: bool = False
    #: Where nobody was reached the last time; for so long nothing is tried there.
    failed: str | None = None
    try_at: float = 0.0
    back_off: float = _BACK_OFF_S[0]
    #: Why it has turned us away the last time.
    refusal: str = ""


class NodeLinks:
    """See the module. `wake`: something has happened; the host is to `take` what follows."""

    def __init__(
        self,
        node: NodeId,
        half: SchedulerHalf,
        members: Members,
        transport: Transport,
        workers: Sequence[LocalLink],
        wake: Callable[[], None],
        marks: Marks,
    ) -> None:
        self._node, self.half = node, half
        self._members, self._transport, self._wake = members, transport, wake
        self._marks = marks
        self._workers = tuple(workers)
        self._others: dict[NodeId, _Other] = {}
        #: The latest run of each node that was heard of (T21).
        self._runs: dict[NodeId, Incarnation] = {}
        self._tasks: asyncio.TaskGroup
        self._welcome = b""
        #: All links end, and none begins any more.
        self._is_over = False
        self._ticking = Ticking(half.next_at, lambda: self._do(half.tick))

    async def run(self, listener: Listener, worker_addresses: tuple[str, ...]) -> None:
        """Until it is cancelled. Raises: WorkerLost."""
        self._welcome = control_wire.write_welcome(worker_addresses)
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for rank, worker in enumerate(self._workers):
                    self._tasks.create_task(self._hear_worker(Rank(rank), worker))
                try:
                    while True:
                        self._tasks.create_task(self._accept(await listener.accept()))
                finally:
                    self._is_over = True
        finally:
            self._ticking.stop()

    # -- for the host --------------------------------------------------------------------------

    def tell_time(self) -> None:
        """The half knows how late it is: before anything is asked of it."""
        self.half.clock(time.monotonic())

    def take(self) -> list[ForHost]:
        """Carry out what the half wants done, but for what concerns the host, which is returned."""
        for_host: list[ForHost] = []
        for effect in self.half.take_effects():
            match effect:
                case SendToNode():
                    self._say(effect)
                case SendToWorker(rank, message):
                    self._workers[rank].say(message)
                    self._marks.said(message)
                case PeerRefused(node, differences):
                    _log.warning("no K/V are exchanged", peer=node, why=list(map(str, differences)))
                case DutyOver(duty):
                    _log.info("nothing is left of a former role", duty=duty.name.lower())
                case _:
                    for_host.append(effect)
        self._ticking.set()
        return for_host

    # -- events --------------------------------------------------------------------------------

    def _do(self, event: Callable[[], None]) -> None:
        self.tell_time()
        event()
        self._wake()

    async def _hear_worker(self, rank: Rank, worker: LocalLink) -> None:
        def hear(message: FromWorker | Ask) -> None:
            if isinstance(message, Ask):
                self._find(worker, message.node)
            else:
                self._marks.heard(message)
                self._do(lambda: self.half.from_worker(rank, message))

        await worker.run(hear)

    def _heard(self, link: ControlLink, message: NodeMessage | Greeting) -> None:
        """Raises: RemoteProtocol."""
        if link.run < self._runs.get(link.peer, link.run):
            raise RemoteProtocol("a later run of it was heard of (T21)")
        self._marks.heard(message)
        self._do(lambda: self.half.from_node(link.peer, message))

    # -- saying --------------------------------------------------------------------------------

    def _say(self, effect: SendToNode) -> None:
        other = self._other(effect.node)
        if other is None:
            return
        if other.links:
            other.links[-1].say(effect.message, effect.version)
        elif self._may_dial(effect.node, other) and len(other.messages) < _MOST:
            other.messages.append(effect)

    def _find(self, worker: LocalLink, node: NodeId) -> None:
        """A worker asks where another node's are."""
        other = self._other(node)
        if other is not None and other.links:
            worker.say(Known(node, other.links[-1].workers))
        elif other is not None and self._may_dial(node, other):
            other.asking.append(worker)
        else:
            worker.say(Known(node, ()))

    def _other(self, node: NodeId) -> _Other | None:
        """None: nobody knows it, and it isn't linked with us."""
        other = self._others.get(node)
        if other is None and node != self._node and self._members.control_address(node) is not None:
            other = self._others[node] = _Other()
        return other

    def _may_dial(self, node: NodeId, other: _Other) -> bool:
        """True if it is dialled, from now on or already."""
        if not other.is_dialled and not self._is_over:
            address = self._members.control_address(node)
            is_new = address != other.failed  # it has come back elsewhere
            if address is not None and (is_new or time.monotonic() >= other.try_at):
                other.is_dialled = True
                self._tasks.create_task(self._dial(node, other, address))
        return other.is_dialled

    # -- links ---------------------------------------------------------------------------------

    async def _dial(self, node: NodeId, other: _Other, address: str) -> None:
        link = None
        try:
            async with asyncio.timeout(_DIAL_S):
                link = await self._reach(node, address)
        except Refused as refusal:
            self._turned_away(node, other, str(refusal))
        except (TransportError, RemoteProtocol, TimeoutError) as error:
            _log.info("no control link", peer=node, reason=str(error) or "nobody answers")
        other.is_dialled = False
        other.failed = address if link is None else None
        if link is None:
            other.try_at = time.monotonic() + other.back_off
            other.back_off = min(2 * other.back_off, _BACK_OFF_S[1])
            other.messages.clear()
            self._answer(node, other, ())
        else:
            other.back_off, other.refusal = _BACK_OFF_S[0], ""
            await self._live(link)

    def _turned_away(self, node: NodeId, other: _Other, why: str) -> None:
        """Told once: it doesn't pass by itself, and nobody waits for that."""
        tell = _log.debug if other.refusal == why else _log.warning
        tell("no control link: is the cluster token the same?", peer=node, reason=why)
        other.refusal = why
        self._do(partial(self.half.turned_away, node, why))

    async def _reach(self, node: NodeId, address: str) -> ControlLink:
        link = await self._transport.connect(address)
        try:
            if link.peer.node_id != node:
                raise RemoteProtocol(f"{link.peer.node_id} is there")
            control = ControlLink(link, self._marks)
            await control.introduce(self._welcome)
        except BaseException:
            link.abort()
            raise
        return control

    async def _accept(self, link: Link) -> None:
        try:
            control = ControlLink(link, self._marks)
            await control.introduce(self._welcome)
        except (TransportError, RemoteProtocol, TimeoutError) as error:
            _log.info("control link refused", peer=link.peer.node_id, reason=str(error))
            link.abort()
            return
        await self._live(control)

    async def _live(self, link: ControlLink) -> None:
        other = self._others.setdefault(link.peer, _Other())
        other.links.append(link)
        messages, other.messages = other.messages, []
        for effect in messages:
            link.say(effect.message, effect.version)
        self._answer(link.peer, other, link.workers)
        if link.run > self._runs.get(link.peer, -1):
            self._runs[link.peer] = link.run
            self._do(partial(self.half.node_seen, link.peer, link.run))
        try:
            await link.live(partial(self._heard, link))
        finally:
            other.links.remove(link)

    def _answer(self, node: NodeId, other: _Other, workers: tuple[str, ...]) -> None:
        asking, other.asking = other.asking, []
        for worker in asking:
            worker.say(Known(node, workers))
