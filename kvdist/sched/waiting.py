"""Who is next: sequences in order, block owners first.

Owns:   the order of the sequences that wait.
Knows nothing of: why they wait, what they need.
Cost:   O(log n) a look, and a move of pointers to add or remove; nothing for who waits for an
        answer.
Source: `kv_holding_waiting` and the queues of vLLM 0.32 (vllm/v1/core/sched/request_queue.py).

First come, first served is the order of arrival; by priority, the lower number goes first, and
equal ones by arrival. Preempted sequences have their old place.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from kvdist.ids import RequestId
from kvdist.sched.sequence import Sequence


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


class InOrder:
    """Sequences sorted by their `order`."""

    __slots__ = ("_sequences",)

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """Put it in its place."""
        insort(self._sequences, sequence, key=_order)

    def remove(self, sequence: Sequence) -> None:
        """Take it out; it has to be there."""
        i = self._find(sequence)
        assert i is not None, sequence
        del self._sequences[i]

    def last(self) -> Sequence:
        """The one that would be missed least."""
        return self._sequences[-1]

    def _find(self, sequence: Sequence) -> int | None:
        i = bisect_left(self._sequences, sequence.order, key=_order)
        found = i < len(self._sequences) and self._sequences[i] is sequence
        return i if found else None

    def __contains__(self, sequence: Sequence) -> bool:
        return self._find(sequence) is not None

    def __iter__(self) -> Iterator[Sequence]:
        """In order; whoever is added or removed meanwhile changes nothing."""
        return iter(self._sequences.copy())

    def __len__(self) -> int:
        return len(self._sequences)


class WaitingQueue:
    """Those that own blocks already, since their load is done, then the others; beside them those
    of which the remote cache doesn't know yet what can be loaded: nobody looks at them meanwhile.
    """

    __slots__ = ("_unanswered", "others", "owners")

    def __init__(self) -> None:
        self.owners = InOrder()
        self.others = InOrder()
        self._unanswered: dict[RequestId, Sequence] = {}

    def wait_for_answer(self, sequence: Sequence) -> None:
        """One of the others isn't looked at before `ask_again`."""
        self.others.remove(sequence)
        self._unanswered[sequence.request_id] = sequence

    def ask_again(self, request_id: RequestId) -> None:
        """It is in its old place among the others; nothing if it isn't waiting for an answer."""
        if (sequence := self._unanswered.pop(request_id, None)) is not None:
            self.others.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take it out; it has to be there."""
        if self._unanswered.pop(sequence.request_id, None) is None:
            queue = self.owners if sequence in self.owners else self.others
            queue.remove(sequence)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.owners
        yield from self.others
        yield from self._unanswered.values()

    def __len__(self) -> int:
        return len(self.owners) + len(self.others) + len(self._unanswered)
