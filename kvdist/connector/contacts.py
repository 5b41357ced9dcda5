"""Hello: nothing else is said to a peer, or acted on, before both sides have said it.

Owns:   whom we speak with in which version, what waits to be said, why somebody is refused.
Knows nothing of: what messages are for, links; a peer is a name: of a node, or of a worker's link.
Bounds: one contact a peer that spoke or that something is to be said to; `MAX_WAITING` messages
        wait for one, the oldest go first: whoever asked asks again.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from kvdist.connector.compat import refusals
from kvdist.connector.machine import Machine
from kvdist.connector.messages import Hello, Message, Refusal, Refused, Role, since
from kvdist.connector.settings import Settings
from kvdist.connector.tables.contact import CONTACT, Effect, Event, State
from kvdist.connector.timers import Timers
from kvdist.errors import InvariantViolation
from kvdist.ids import Incarnation, NodeId

MAX_WAITING: Final = 256


@dataclass(eq=False, slots=True)
class Contact:
    """A peer, as far as it is known."""

    name: str
    machine: Machine[State, Event, Effect]
    #: Its hello, once a sound one has come.
    hello: Hello | None = None
    #: The version that was agreed on.
    version: int = 1
    #: Why it is refused, or we are.
    differences: tuple[Refusal, ...] = ()
    #: To be said when it is known, in order, each once.
    waiting: dict[Message, None] = field(default_factory=dict)
    tries: int = 0
    #: Its latest run that said hello.
    heard: Incarnation | None = None
    #: Its latest run that refused us, whether or not its hello has come.
    refused_by: Incarnation | None = None


class Contacts:
    """See the module. `send`: to whom, what, in which version."""

    def __init__(
        self,
        hello: Hello,
        settings: Settings,
        send: Callable[[str, Message, int], None],
        met: Callable[[str, Contact], None],
        refused: Callable[[str, tuple[Refusal, ...]], None],
    ) -> None:
        self._hello, self._settings = hello, settings
        self._send, self._met, self._refused = send, met, refused
        #: Seconds on the host's clock, which sets it before it hands anything over.
        self.now = 0.0
        self._contacts: dict[str, Contact] = {}
        self.timers: Timers[str] = Timers()
        #: What was ignored or dropped, by kind.
        self.counts: Counter[str] = Counter()
        self._do = {
            Effect.SEND_HELLO: self._send_hello,
            Effect.MEET: self._meet,
            Effect.SAY: self._say,
            Effect.DROP: self._drop,
            Effect.SEND_REFUSED: self._send_refused,
            Effect.TELL: self._tell,
            Effect.FORGET: self._forget,
        }

    def __getitem__(self, name: str) -> Contact | None:
        """The peer, if something was said or heard."""
        return self._contacts.get(name)

    @property
    def num_waiting(self) -> int:
        """Messages that wait for a hello."""
        return sum(len(contact.waiting) for contact in self._contacts.values())

    def version_of(self, name: str) -> int:
        """The version that is spoken with it, once that is agreed on."""
        contact = self._contacts.get(name)
        return self._hello.fingerprint.oldest_version if contact is None else contact.version

    def say(self, name: str, message: Message) -> None:
        """It is said now, or after hello; never to whom is refused, or doesn't know its kind."""
        contact = self._contact(name)
        contact.waiting[message] = None
        if len(contact.waiting) > MAX_WAITING:
            del contact.waiting[next(iter(contact.waiting))]
            self.counts["messages that waited for hello over the limit"] += 1
        self._handle(contact, Event.CALL)

    def take_back(self, name: str, is_moot: Callable[[Message], bool]) -> None:
        """What still waits and is moot by now isn't said."""
        contact = self._contacts.get(name)
        if contact is not None:
            for message in [waits for waits in contact.waiting if is_moot(waits)]:
                del contact.waiting[message]

    def hear(self, name: str, node: NodeId, run: Incarnation, message: Message) -> bool:
        """Whether this message, of that run of a node as its link has proved, may be acted on."""
        if isinstance(message, Refused):
            self._on_refused(name, run, message)
            return False
        if isinstance(message, Hello):
            if (message.node, message.incarnation) == (node, run):
                self.run_seen(name, run)
                self._on_hello(self._contact(name), message)
            else:
                self.counts["hellos of somebody else"] += 1
            return False
        contact = self._contact(name)
        if contact.machine.state is not State.AGREED:
            self.counts["messages before hello"] += 1
            self._handle(contact, Event.SPOKE)
            return False
        if since(type(message)) > contact.version:
            self.counts["messages of a later version than was agreed on"] += 1
            return False
        return True

    def run_seen(self, name: str, run: Incarnation) -> None:
        """That run of a node is there: with an earlier one nothing was agreed on (T5, T21)."""
        contact = self._contacts.get(name)
        if contact is None:
            return
        known = contact.refused_by if contact.heard is None else contact.heard
        if known is not None and known < run:
            self._handle(contact, Event.LOST)

    def lost(self, name: str) -> None:
        """The link has ended: the next begins with hello."""
        if (contact := self._contacts.get(name)) is not None:
            self._handle(contact, Event.LOST)

    def announce(self, role: Role) -> None:
        """We have another role: everybody whom we speak with hears so. Who doesn't, since the word
        gets lost, hears it with the answer to what it asks for.
        """
        self._hello = replace(self._hello, role=role, changes=self._hello.changes + 1)
        for contact in self._contacts.values():
            if contact.machine.state is State.AGREED:
                self._send_hello(contact)

    def tick(self) -> None:
        """Do what is due; everything that has arrived was handed over before (T22)."""
        for name in self.timers.due(self.now):
            contact = self._contacts[name]
            again = contact.tries < self._settings.tries
            self._handle(contact, Event.UNANSWERED if again else Event.GAVE_UP)

    @property
    def versions(self) -> dict[str, int]:
        """Of all with whom one was agreed on."""
        met = (c for c in self._contacts.values() if c.machine.state is State.AGREED)
        return {contact.name: contact.version for contact in met}

    @property
    def refused(self) -> list[str]:
        """With whom nothing can be done."""
        return [c.name for c in self._contacts.values() if c.machine.state is State.REFUSED]

    def check(self) -> None:
        """Raises: InvariantViolation unless each contact keeps what goes with its state alone."""
        for contact in self._contacts.values():
            state, is_asked = contact.machine.state, self.timers.at(contact.name) is not None
            good = {
                State.GREETING: is_asked and contact.hello is None,
                State.AGREED: contact.hello is not None and not contact.differences,
                State.REFUSED: contact.hello is None,
            }.get(state, False)  # nobody else is kept
            waits = state is not State.GREETING and (is_asked or contact.waiting)
            if not good or waits:
                raise InvariantViolation(f"{contact.name} is {state.value}: {contact}")

    # -- what comes ----------------------------------------------------------------------------

    def _on_hello(self, contact: Contact, hello: Hello) -> None:
        contact.heard = hello.incarnation
        if hello.heard != self._hello.incarnation:  # it hasn't heard ours: nothing else comes first
            self._send_hello(contact)
        before = contact.hello
        if contact.machine.state is State.AGREED and before is not None:
            if hello.fingerprint != before.fingerprint:
                self.counts["fingerprints that changed in a run"] += 1
            elif hello.changes > before.changes:
                contact.hello = hello
                self._met(contact.name, contact)
            return
        contact.differences = refusals(self._hello.fingerprint, hello.fingerprint)
        if contact.differences:
            self._handle(contact, Event.DIFFER)
            return
        ours, theirs = self._hello.fingerprint, hello.fingerprint
        contact.version = min(ours.latest_version, theirs.latest_version)
        contact.hello = hello
        self._handle(contact, Event.AGREE)

    def _on_refused(self, name: str, run: Incarnation, message: Refused) -> None:
        contact = self._contacts.get(name)
        if contact is None or message.run != self._hello.incarnation:
            self.counts["refusals of somebody else"] += 1
            return
        contact.differences = contact.differences or tuple(
            Refusal(found.field, found.theirs, found.ours) for found in message.differences
        )
        contact.refused_by = run
        self._handle(contact, Event.TURNED_AWAY)

    # -- what contacts do ----------------------------------------------------------------------

    def _contact(self, name: str) -> Contact:
        contact = self._contacts.get(name)
        if contact is None:
            contact = self._contacts[name] = Contact(name, Machine(CONTACT, name))
        return contact

    def _handle(self, contact: Contact, event: Event) -> None:
        for effect in contact.machine.handle(event):
            self._do[effect](contact)

    def _send_hello(self, contact: Contact) -> None:
        """In our latest version, which is read by every one."""
        fingerprint = self._hello.fingerprint
        if contact.machine.state is State.GREETING:
            contact.tries += 1
            self.timers.set(contact.name, self.now + self._settings.answer_s)
        hello = replace(self._hello, heard=contact.heard)
        self._send(contact.name, hello, fingerprint.latest_version)

    def _meet(self, contact: Contact) -> None:
        self.timers.cancel(contact.name)
        contact.tries = 0
        contact.differences = ()
        self._met(contact.name, contact)

    def _say(self, contact: Contact) -> None:
        for message in contact.waiting:
            if since(type(message)) > contact.version:
                self.counts["messages that an older peer doesn't know"] += 1
            else:
                self._send(contact.name, message, contact.version)
        contact.waiting.clear()

    def _drop(self, contact: Contact) -> None:
        self.counts["messages to who said no hello, or is refused"] += len(contact.waiting)
        contact.waiting.clear()

    def _send_refused(self, contact: Contact) -> None:
        run = contact.refused_by if contact.heard is None else contact.heard
        if run is not None:
            refused = Refused(run, contact.differences)
            self._send(contact.name, refused, self._hello.fingerprint.latest_version)

    def _tell(self, contact: Contact) -> None:
        self.timers.cancel(contact.name)
        contact.hello = None
        self.counts["peers refused"] += 1
        self._refused(contact.name, contact.differences)

    def _forget(self, contact: Contact) -> None:
        assert contact.machine.state is State.GONE and not contact.waiting
        self.timers.cancel(contact.name)
        del self._contacts[contact.name]
