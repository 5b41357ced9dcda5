"""What a peer says that isn't its to say: others' words in its own name, or its own gone wrong.

Owns:   what was said of late, and to whom.
Knows nothing of: how messages travel; who sends one has proved who it is, and nothing else.

Nobody lies to its own harm: pulls and questions get numbers that it never uses itself.
"""

from collections import deque
from dataclasses import replace
from random import Random
from typing import Final

from kvdist.connector.messages import (
    Borrow,
    Confirm,
    Confirmed,
    Lent,
    Message,
    Open,
    Opened,
    PartId,
    Release,
    Renew,
    Stream,
)
from kvdist.ids import Incarnation, LeaseId, PullId, Rank

#: How much is remembered.
LENGTH: Final = 64
#: Added to numbers of pulls and questions; what was opened is never confirmed by a lie.
_OPENED: Final = 1 << 20
_CONFIRMED: Final = 1 << 21


class Lies:
    """Of a network."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        #: To whom, by whom, what.
        self._said: deque[tuple[str, str, Message]] = deque(maxlen=LENGTH)

    def note(self, by: str, to: str, message: Message) -> None:
        """That is what was really said."""
        self._said.append((to, by, message))

    def beside(self, by: str, to: str, message: Message, kinds: tuple[type, ...]) -> Message | None:
        """What `by` says to `to` beside a message of its own, of some of these kinds."""
        others = [m for t, b, m in self._said if t == to and b != by and isinstance(m, kinds)]
        if Opened in kinds:  # what `to` asks others, `by` answers
            asked = [m for t, b, m in self._said if b == to and t != by]
            others += [_answer(m) for m in asked if isinstance(m, Open | Confirm)]
        if others and self._chance.random() < 0.7:
            return _as_ones_own(self._chance.choice(others))
        return _gone_wrong(self._chance, message)


def _answer(question: Open | Confirm) -> Message:
    if isinstance(question, Open):
        return Opened(question.part, (), 0)
    return Confirmed(question.part)


def _as_ones_own(message: Message) -> Message:
    match message:
        case Open(part=part):
            return replace(message, part=_other(part, _OPENED))
        case Confirm(part=part):
            return replace(message, part=_other(part, _CONFIRMED))
        case Borrow(number=number):
            return replace(message, number=PullId(number + _OPENED))
        case _:
            return message


def _gone_wrong(chance: Random, message: Message) -> Message | None:
    match message:
        case Open():
            return _open_gone_wrong(chance, replace(message, part=_other(message.part, _OPENED)))
        case Confirm(part=part):
            return replace(message, part=_other(part, _CONFIRMED))
        case Release(lease, run):
            return chance.choice(
                (Release(LeaseId(chance.randbytes(16)), run), Release(lease, Incarnation(run + 1)))
            )
        case Renew():
            return Renew((LeaseId(chance.randbytes(16)),))
        case Lent(reader_run=run):
            return replace(message, reader_run=Incarnation(run + 1))
        case Stream(transfer):
            return Stream(transfer + "?")
        case _:
            return None


def _open_gone_wrong(chance: Random, message: Open) -> Open:
    """Of another run, lease, rank or heads, of more tokens; or once more what is being read."""
    first, last = message.heads
    more = chance.randint(1, 40)
    longer = tuple((begin, end + more) for begin, end in message.wanted)
    return chance.choice(
        (
            message,
            replace(message, owner=Incarnation(message.owner + 1)),
            replace(message, lease=LeaseId(chance.randbytes(16))),
            replace(message, part=replace(message.part, owner=Rank(message.part.owner + 1))),
            replace(message, heads=(first + 1, last + 1)),
            replace(message, wanted=longer),
            replace(message, wanted=longer[1:]),
        )
    )


def _other(part: PartId, more: int) -> PartId:
    return replace(part, pull=PullId(part.pull + more))
