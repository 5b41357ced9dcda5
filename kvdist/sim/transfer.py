"""Bytes under way: reads and sends are intervals, not moments, and may go on after they are told to
stop.

Owns:   how far one read, or one message's body, has come.
Knows nothing of: why, for whom.
"""

from collections.abc import Callable, Sequence

from kvdist.connector.geometry import Piece
from kvdist.connector.messages import Heads
from kvdist.sim.memory import Memory
from kvdist.sim.world import World

#: One cell: where it is read, where it is written: (block, head, slot) each.
Move = tuple[tuple[int, int, int], tuple[int, int, int]]


def slots(pieces: Sequence[Piece], heads: Heads) -> list[tuple[int, int, int]]:
    """(block, head, slot) of all cells, token by token: so blocks of any size fit together."""
    return [
        (piece.block, head, slot)
        for piece in pieces
        for slot in range(piece.first, piece.first + piece.num_slots)
        for head in range(*heads)
    ]


class Landing:
    """Cells that land one after the other in two parts; `on_done(complete)` comes once."""

    def __init__(
        self,
        world: World,
        read: Callable[[int], int | None],
        write: Callable[[int, int], None],
        count: int,
        on_done: Callable[[bool], None],
        *,
        stuck_until: int | None,
        writes_on: bool,
        slowness: float = 1.0,
    ) -> None:
        self._world = world
        self._read, self._write = read, write
        self._count, self._next = count, 0
        self._on_done = on_done
        #: Not None: it never ends by itself, only by a measure of this level or a higher one.
        self._stuck_until = stuck_until
        self._writes_on, self._slowness = writes_on, slowness
        self._is_stopped = self.is_over = False
        world.after(slowness * world.between(0.0002, 0.01), self._half)

    def _half(self) -> None:
        if self.is_over:
            return
        if self._is_stopped and not self._writes_on:
            self._end(complete=False)
            return
        first = self._next == 0
        until = self._count // 2 if first and self._count > 1 else self._count
        if self._stuck_until is not None:
            until = min(until, self._count // 2)
        for index in range(self._next, until):
            value = self._read(index)
            if value is None:
                self._end(complete=False)
                return
            self._write(index, value)
        self._next = until
        if until < self._count:
            if self._stuck_until is None:
                delay = self._slowness * self._world.between(0.0002, 0.05)
                self._world.after(delay, self._half)
        else:
            self._end(complete=True)

    def stop(self) -> None:
        """No more is wanted; it ends soon, or after what is under way, or by measures only."""
        self._is_stopped = True
        if self._stuck_until is None and not self._writes_on:
            self._world.after(0.0001, lambda: self._end(complete=False))

    def gives_in(self, level: int) -> bool:
        """Whether a measure of that level ends it."""
        return self._stuck_until is not None and level >= self._stuck_until

    def force(self) -> None:
        """A measure: it ends now."""
        self._end(complete=False)

    def _end(self, *, complete: bool) -> None:
        if not self.is_over:
            self.is_over = True
            self._on_done(complete)


def writer(memory: Memory, cells: Sequence[tuple[int, int, int]]) -> Callable[[int, int], None]:
    """Writes the n-th cell of a target."""

    def write(index: int, value: int) -> None:
        block, head, slot = cells[index]
        memory.cells(block, head)[slot] = value

    return write
