"""The control link between nodes: messages that get lost, doubled, late, out of order.

Owns:   which nodes can't reach each other, and the order of what is under way.
Knows nothing of: what messages mean; they travel as bytes.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kvdist.connector.codec import decode, encode
from kvdist.connector.effects import SendToNode
from kvdist.connector.messages import Greeting, Hello, Message, NodeMessage, since
from kvdist.errors import RemoteProtocol
from kvdist.ids import Incarnation, NodeId
from kvdist.sim.faults import Faults
from kvdist.sim.gate import Gate
from kvdist.sim.lies import Lies
from kvdist.sim.world import World

#: What a receiver is called with: from whom, which run of it, the message.
Receive = Callable[[NodeId, Incarnation, NodeMessage | Greeting], None]


class Post:
    """Between all nodes."""

    def __init__(self, world: World, faults: Faults, gate: Gate, latency_s: float) -> None:
        self._world, self._gate, self._latency_s = world, gate, latency_s
        self.faults = faults
        self._receivers: dict[NodeId, tuple[Receive, int]] = {}
        self._apart: dict[frozenset[NodeId], float] = {}
        #: By direction: when the last in order arrives.
        self._last: dict[tuple[NodeId, NodeId], float] = {}
        self._lies = Lies(world.chance)
        self.num_bad = 0

    def attach(self, node: NodeId, receive: Receive, version: int) -> None:
        """`node`, which speaks up to that version, is reached so from now on."""
        self._receivers[node] = (receive, version)

    def separate(self, one: NodeId, other: NodeId, until: float) -> None:
        """These two can't reach each other."""
        self._apart[frozenset((one, other))] = until

    def heal(self) -> None:
        """All nodes reach each other."""
        self._apart.clear()

    def are_apart(self, one: NodeId, other: NodeId) -> bool:
        """Whether they can't reach each other now."""
        return self._apart.get(frozenset((one, other)), 0.0) > self._world.now

    def send(self, sender: NodeId, run: Incarnation, effect: SendToNode) -> None:
        """It may arrive, once or twice, some time."""
        to, message = effect.node, effect.message
        world, faults = self._world, self.faults
        if self.are_apart(sender, to) or world.happens(faults.drop):
            world.note(sender, f"lost on the way to {to}", message)
            return
        data = encode(message, effect.version)
        misread = encode(misread_hello(message), effect.version)
        if self._gate.stops(message, lambda: self._deliver(sender, run, to, data)):
            return
        if world.happens(faults.garbage):
            data = _spoilt(world, data)
        for _ in range(1 + world.happens(faults.duplicate)):
            comes = (
                misread if isinstance(message, Hello) and world.happens(faults.misread) else data
            )
            delay = world.between(0.0001, self._latency_s)
            if world.happens(faults.late):
                delay = world.between(0.5, 10.0)
            at = world.now + delay
            if not world.happens(faults.reorder):
                at = max(at, self._last.get((sender, to), 0.0))
                self._last[sender, to] = at
            world.at(at, partial(self._deliver, sender, run, to, comes))
        self._lie(sender, run, effect)

    def _lie(self, sender: NodeId, run: Incarnation, effect: SendToNode) -> None:
        """Beside what is true something else may be said."""
        to, by, version = effect.node, f"{sender}#{run}", effect.version
        if isinstance(effect.message, Greeting):
            return
        if self._world.happens(self.faults.lie):
            lie = self._lies.beside(by, to, effect.message, (object,))
            if lie is not None and since(type(lie)) <= version:
                self._world.note(sender, f"lies to {to}", lie)
                delay = self._world.between(0.0001, self._latency_s)
                data = encode(lie, version)
                self._world.after(delay, partial(self._deliver, sender, run, to, data))
        self._lies.note(by, to, effect.message)

    def _deliver(self, sender: NodeId, run: Incarnation, to: NodeId, data: bytes) -> None:
        if to not in self._receivers or self.are_apart(sender, to):
            return
        receive, version = self._receivers[to]
        try:
            message = decode(data, version)
        except RemoteProtocol:
            self.num_bad += 1  # costs the peer its link; the next message makes a new one
            return
        receive(sender, run, message)  # type: ignore[arg-type]


def misread_hello(message: Message) -> Message:
    """What a hello is taken for if its fingerprint comes wrongly; anything else is as it is."""
    if not isinstance(message, Hello):
        return message
    return replace(message, fingerprint=replace(message.fingerprint, weights="misread"))


def _spoilt(world: World, data: bytes) -> bytes:
    """Like `data`, but for some bytes."""
    spoilt = bytearray(data)
    for _ in range(world.chance.randint(1, 4)):
        spoilt[world.chance.randrange(len(spoilt))] = world.chance.randrange(256)
    return bytes(spoilt[: world.chance.randint(1, len(spoilt))])
