"""Data links between workers: in order, until they are cut; each side hears of the end by itself.

Owns:   the links that are open, and what is under way on them.
Knows nothing of: what messages mean, where bytes lie.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvdist.connector.codec import decode, encode
from kvdist.connector.messages import (
    Close,
    Confirm,
    Confirmed,
    Denied,
    Greeting,
    Hello,
    Open,
    Opened,
    Settled,
    StillReading,
    WorkerMessage,
    since,
)
from kvdist.errors import RemoteProtocol
from kvdist.sim.post import misread_hello
from kvdist.sim.world import World

if TYPE_CHECKING:
    from kvdist.sim.worker import SimWorker

#: A side that hears nothing more of the other notices within this (keep-alive).
LOST_AFTER_S = 4.0
#: Said by readers, on links that they dialled; and by owners, as answers.
BY_READERS = (Open, Confirm, Close, StillReading)
BY_OWNERS = (Opened, Settled, Denied, Confirmed)


class DataLink:
    """From a reader's worker, who dialled, to an owner's."""

    def __init__(self, world: World, number: int, reader: "SimWorker", owner: "SimWorker") -> None:
        self._world = world
        self.reader: SimWorker = reader
        self.owner: SimWorker = owner
        #: How the owner calls it.
        self.name: str = f"link {number} from {reader.name}"
        self.open = {reader: True, owner: True}
        #: True once some side has ended it: nothing arrives any more.
        self.is_cut = False
        self.stalled_until = 0.0
        self._last = {reader: 0.0, owner: 0.0}

    def other(self, side: "SimWorker") -> "SimWorker":
        """Who is at the other end."""
        return self.owner if side is self.reader else self.reader

    def send(self, sender: "SimWorker", message: WorkerMessage | Greeting, version: int) -> None:
        """It arrives in order, once, unless the link is cut."""
        world, faults = self._world, sender.cluster.faults
        if world.happens(faults.drop / 5):
            return  # not what links do; but nothing may hang on that
        data = encode(message, version)
        if isinstance(message, Hello) and world.happens(faults.misread):
            data = encode(misread_hello(message), version)
        if sender.cluster.gate.stops(
            message, lambda: self.carry(sender, lambda: self._deliver(sender, data))
        ):
            return
        if not isinstance(message, Greeting):
            self._lie(sender, message, version)
        if world.happens(faults.garbage / 10):
            data = bytes([0xC1]) + data  # what no message begins with
        self.carry(sender, lambda: self._deliver(sender, data))
        if world.happens(faults.duplicate / 2):
            self.carry(sender, lambda: self._deliver(sender, data))

    def _lie(self, sender: "SimWorker", message: WorkerMessage, version: int) -> None:
        """Before what is true something else may be said."""
        lies, by, to = sender.cluster.lies, sender.name, self.other(sender).name
        if self._world.happens(sender.cluster.faults.lie):
            kinds = BY_READERS if sender is self.reader else BY_OWNERS
            lie = lies.beside(by, to, message, kinds)
            if lie is not None and since(type(lie)) <= version:
                self._world.note(sender.name, f"lies to {to}", lie)
                data = encode(lie, version)
                self.carry(sender, lambda: self._deliver(sender, data))
        lies.note(by, to, message)

    def carry(self, sender: "SimWorker", arrive: Callable[[], None]) -> None:
        """Something goes to the other side, in order with all else."""
        to = self.other(sender)
        at = self._world.now + self._world.between(0.0001, to.cluster.config.latency_s)
        at = max(at, self._last[to], self.stalled_until)
        self._last[to] = at
        self._world.at(at, lambda: self._arrive(sender, to, arrive))

    def _arrive(self, sender: "SimWorker", to: "SimWorker", arrive: Callable[[], None]) -> None:
        if self.stalled_until > self._world.now:
            self._world.at(self.stalled_until, lambda: self._arrive(sender, to, arrive))
        elif self.is_cut or not to.is_alive or not self.open[to]:
            return
        elif self._world.now < to.cluster.apart_until(sender.node_id, to.node_id):
            self.cut_from_outside()
        else:
            arrive()

    def _deliver(self, sender: "SimWorker", data: bytes) -> None:
        to = self.other(sender)
        try:
            message = decode(data, to.version)
        except RemoteProtocol:
            to.cluster.num_bad += 1
            self.cut(to)
            return
        to.receive(self, sender, message)  # type: ignore[arg-type]

    # -- the end -------------------------------------------------------------------------------

    def cut(self, side: "SimWorker") -> None:
        """One side ends it: it hears so at once, the other a little later."""
        self.is_cut = True
        self._end(side, 0.0)
        self._end(self.other(side), self._world.between(0.0005, 0.05))

    def cut_from_outside(self) -> None:
        """Both sides find out, each in its own time."""
        self.is_cut = True
        for side in (self.reader, self.owner):
            self._end(side, self._world.between(0.001, LOST_AFTER_S))

    def end_other_than(self, side: "SimWorker") -> None:
        """One side has died: the other notices some time."""
        self.is_cut = True
        self._end(self.other(side), self._world.between(0.001, 2.0))

    def _end(self, side: "SimWorker", delay: float) -> None:
        def end() -> None:
            if self.open[side]:
                self.open[side] = False
                if side.is_alive:
                    side.lost(self)

        self._world.after(delay, end)
