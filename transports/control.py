"""Frames that a link owes its peer: answers, one for each of the peer's, or merged.

Owns:    what is due and not written yet; bounded, since the peer can't ask for more than it was
         granted, and grants are made, and regions forgotten, only as that is written.
Knows nothing of: wires, tasks, users.
"""

import asyncio
from collections import deque

from transports.frame import Type
from transports.session import Session


class Control:
    """What is due, the most urgent first."""

    def __init__(self, session: Session) -> None:
        #: Set when there may be something to write.
        self.due = asyncio.Event()
        self._session = session
        self._answers: deque[tuple[Type, int]] = deque()
        self._grant = self._ping = self._pong = False

    def say(self, type_: Type, argument: int) -> None:
        """Answer, in order with other answers."""
        self._answers.append((type_, argument))
        self.due.set()

    def ping(self) -> None:
        """Ask whether the peer lives."""
        self._ping = True
        self.due.set()

    def pong(self) -> None:
        """Say that we live."""
        self._pong = True
        self.due.set()

    def took(self, price: int) -> None:
        """Our user took a message that cost `price`."""
        if self._session.take(price):
            self._grant = True
            self.due.set()

    def next(self) -> tuple[Type, int] | None:
        """Type and argument of the next frame; it must be written."""
        if self._pong:
            self._pong = False
            return Type.PONG, 0
        if self._grant:
            self._grant = False
            return Type.CREDIT, self._session.grant()
        if self._ping:
            self._ping = False
            return Type.PING, 0
        if not self._answers:
            return None
        type_, argument = self._answers.popleft()
        if type_ is Type.UNSHARED:  # only now: one that shares and never reads must run dry
            self._session.regions_in.forget(argument)
        return type_, argument
