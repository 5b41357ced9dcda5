"""Steps in flight: what each was to do for whom, and in which order they end.

Owns:   the plans that are not over.
Knows nothing of: queues, blocks; what a result means.
Source: S26; vLLM 0.32 recognises stale output by counting placeholders, here attempts are.

Steps end in the order in which they were planned, whatever order their results come in. A turn is
stale when its sequence has begun a new attempt since: it was preempted, or has to be computed anew.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvdist.cache import BlockCopy
from kvdist.ids import RequestId
from kvdist.sched.plan import StepResult
from kvdist.sched.sequence import Sequence


@dataclass(slots=True)
class Turn:
    """What one step does for one sequence."""

    sequence: Sequence
    attempt: int
    #: First position, and how many; with the drafts.
    start: int
    num_tokens: int
    samples: bool
    draft_token_ids: tuple[int, ...]

    @property
    def stale(self) -> bool:
        """True if nobody waits for its outcome any more."""
        return self.attempt != self.sequence.attempt


@dataclass(slots=True)
class StepInFlight:
    """A planned step."""

    number: int
    turns: list[Turn] = field(default_factory=list)
    block_copies: tuple[BlockCopy, ...] = ()
    #: Rows that its plan tells the worker to drop.
    dropped_rows: tuple[tuple[RequestId, ...], tuple[RequestId, ...]] = ((), ())
    #: It, or one before it, failed: nothing that it wrote counts.
    failed: bool = False
    #: What the worker should find in its tables; None: nobody has looked.
    table_checksum: int | None = None
    #: None while it runs.
    result: StepResult | None = None


class StepsInFlight:
    """In the order of planning."""

    __slots__ = ("_open", "last")

    def __init__(self) -> None:
        self._open: list[StepInFlight] = []
        #: The number of the latest step.
        self.last = 0

    def open(self) -> StepInFlight:
        """A new step, to be planned."""
        self.last += 1
        step = StepInFlight(self.last)
        self._open.append(step)
        return step

    def find(self, number: int) -> StepInFlight | None:
        """The step of that number, if it still runs."""
        for step in self._open:
            if step.number == number and step.result is None:
                return step
        return None

    def since(self, number: int) -> Iterator[StepInFlight]:
        """That step and all after it."""
        return (step for step in self._open if step.number >= number)

    def pop_over(self) -> StepInFlight | None:
        """The oldest step, if it is over."""
        if self._open and self._open[0].result is not None:
            return self._open.pop(0)
        return None

    @property
    def num_running(self) -> int:
        """Steps whose result isn't there."""
        return sum(step.result is None for step in self._open)

    def __len__(self) -> int:
        return len(self._open)
