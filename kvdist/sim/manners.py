"""Who speaks to a stranger is greeted, or told why not.

Owns:   what a node, or a worker, owes to whom it has just heard.
Knows nothing of: what messages are for, how they travel; a peer is whatever contacts call it.
"""

from kvdist.connector.contacts import Contacts
from kvdist.connector.messages import (
    Confirmed,
    Denied,
    Greeting,
    Hello,
    Lent,
    Message,
    Opened,
    Refused,
    Released,
)
from kvdist.connector.tables.contact import State

#: Said at once to whoever asks, and is known.
_ANSWERS = (Released, Lent, Opened, Denied, Confirmed)


class Manners:
    """Of one node or worker, in the midst of one event."""

    def __init__(self, contacts: Contacts) -> None:
        self._contacts = contacts
        self._owed: dict[str, type[Greeting]] = {}
        #: Strangers who have spoken, and what waited for their hello before.
        self._waited: dict[str, set[Message]] = {}

    def hears(self, name: str, message: Message) -> None:
        """It is about to act on that."""
        if not isinstance(message, Hello | Refused) and not self._is(name, State.AGREED):
            self._owed[name] = Refused if self._is(name, State.REFUSED) else Hello
            self._waited.setdefault(name, self._waiting(name))

    def has_heard(self, name: str, message: Message) -> None:
        """It has acted on it: a hello that it can't live with is answered with why."""
        if isinstance(message, Hello) and self._is(name, State.REFUSED):
            self._owed[name] = Refused

    def owes_all(self, kind: type[Greeting]) -> None:
        """Something has changed that all have to hear with whom it has agreed."""
        self._owed |= dict.fromkeys(self._contacts.versions, kind)

    def says(self, name: str, message: Message) -> None:
        """What it says because of that."""
        if isinstance(message, self._owed.get(name, ())):
            del self._owed[name]

    def lacking(self) -> str:
        """When all was said: what it still owes; empty: nothing. The next event begins anew."""
        owed, self._owed = self._owed, {}
        waited, self._waited = self._waited, {}
        answers = [
            f"no {type(answer).__name__} to {name}, a stranger"
            for name, before in waited.items()
            for answer in self._waiting(name) - before
            if isinstance(answer, _ANSWERS)
        ]
        return "; ".join([f"{kind.__name__} to {name}" for name, kind in owed.items()] + answers)

    def _waiting(self, name: str) -> set[Message]:
        contact = self._contacts[name]
        return set() if contact is None else set(contact.waiting)

    def _is(self, name: str, state: State) -> bool:
        contact = self._contacts[name]
        return contact is not None and contact.machine.state is state
