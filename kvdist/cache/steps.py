"""Which steps are planned and not over yet, and what hangs on their end (T1, S27).

Owns:   the numbers of the open steps, their publications, and the frees that wait for them.
Knows nothing of: block contents, hashes, what a step computes.
Cost:   O(1) a publication and a deferred free.

Without `open` there are no steps: all that is published counts as settled, frees happen at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvdist.cache.block import KVCacheBlock
from kvdist.cache.request import Request
from kvdist.errors import UnknownStep
from kvdist.ids import GroupId


class Publication(NamedTuple):
    """Blocks that a step published."""

    #: Whose table they stand in, from `first_block` on; None if in nobody's.
    request: Request | None
    group_id: GroupId
    first_block: int
    blocks: Sequence[KVCacheBlock]


@dataclass(slots=True)
class _OpenStep:
    number: int
    publications: list[Publication] = field(default_factory=list)
    freed: list[list[KVCacheBlock]] = field(default_factory=list)


class StepLog:
    """Steps open in rising order and settle in the same order.

    >>> steps = StepLog()
    >>> steps.open(7)
    >>> steps.current, steps.settled
    (7, 0)
    >>> steps.settle(7), steps.settled
    ([], 7)
    """

    __slots__ = ("_open", "current", "settled")

    def __init__(self) -> None:
        self._open: list[_OpenStep] = []
        #: The step that is being planned.
        self.current = 0
        #: All steps up to this one are over.
        self.settled = 0

    def __bool__(self) -> bool:
        """True if a step is open."""
        return bool(self._open)

    def open(self, step: int) -> None:
        """Begin to plan `step`. Raises: UnknownStep unless it is above all before it."""
        if type(step) is not int or step <= self.current:
            raise UnknownStep(f"step {step!r} opens after step {self.current}")
        self._open.append(_OpenStep(step))
        self.current = step

    def settle(self, step: int) -> list[list[KVCacheBlock]]:
        """End the oldest open step; returns the lists of blocks whose free waited for it.

        Raises: UnknownStep if `step` isn't the oldest open one.
        """
        if type(step) is not int or not self._open or self._open[0].number != step:
            oldest = self._open[0].number if self._open else None
            raise UnknownStep(f"step {step} can't settle, the oldest open one is {oldest}")
        self.settled = step
        return self._open.pop(0).freed

    def published(self, publication: Publication) -> None:
        """Note what the current step publishes; nothing to note without open steps."""
        if self._open:
            self._open[-1].publications.append(publication)

    def withdraw(self, step: int) -> list[Publication]:
        """Forget and return the publications of `step` and all later ones, latest first.

        The steps stay open: their writes may go on. Raises: UnknownStep if `step` isn't open.
        """
        if type(step) is not int or all(open_.number != step for open_ in self._open):
            raise UnknownStep(f"step {step} is not open")
        withdrawn: list[Publication] = []
        for open_step in reversed(self._open):
            if open_step.number >= step:
                withdrawn += reversed(open_step.publications)
                open_step.publications.clear()
        return withdrawn

    def defer_free(self, step: int, blocks: list[KVCacheBlock]) -> bool:
        """Keep `blocks` until `step` settles. False if it is over, and nothing is kept."""
        for open_step in self._open:
            if open_step.number >= step > self.settled:
                open_step.freed.append(blocks)
                return True
        return False

    def waiting_blocks(self) -> list[KVCacheBlock]:
        """Blocks whose free waits for a step, once for each reference."""
        return [b for open_step in self._open for blocks in open_step.freed for b in blocks]
