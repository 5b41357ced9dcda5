"""What one peer says changes nothing that is another's; before hello, and of another run, nothing.
Greetings aside: `manners` looks at them.

Owns:   how things stood before a message was acted on.
Knows nothing of: what messages are for, how they travel.
"""

from typing import Final

from kvdist.connector.contacts import Contacts
from kvdist.connector.messages import Denied, Greeting, Lent, Message, Open, PartId, Release, since
from kvdist.connector.scheduler_half import SchedulerHalf
from kvdist.connector.tables.contact import State
from kvdist.connector.worker_half import WorkerHalf
from kvdist.errors import InvariantViolation
from kvdist.ids import Incarnation, NodeId

#: Nobody's: whatever changes then is somebody's.
_NOBODY: Final = ("", Incarnation(0))
Who = tuple[NodeId, Incarnation]
_State = dict[object, object]


class NodeSaySo:
    """Of a scheduler half. Raises: InvariantViolation."""

    def __init__(self, half: SchedulerHalf, run: Incarnation) -> None:
        self._half, self._run = half, run
        self._who, self._before = _NOBODY, {}  # type: tuple[Who, _State]

    def hears(self, peer: NodeId, run: Incarnation, message: Message) -> None:
        """It is about to act on that."""
        heard = _may_be_heard(self._half.contacts, peer, message)
        match message:
            case Release(incarnation=named) | Lent(reader_run=named):
                heard &= named == self._run
            case _:
                pass
        self._who = (peer, run) if heard else _NOBODY
        self._before = self._others()

    def has_heard(self, message: Message) -> None:
        """It has."""
        if not isinstance(message, Greeting):
            _compare(self._before, self._others(), message)

    def _others(self) -> _State:
        lender, peer = self._half.lender, self._who[0]
        found: _State = {
            claim.name: claim.machine.state
            for claim in self._half.borrower.open_claims
            if claim.node != peer
        }
        for lease in lender.leases.values():
            if lease.number is not None and lease.reader != peer:
                clock = lender.timers.at(("clock", lease.lease))
                found[lease.lease] = (lease.machine.state, clock)
            elif not peer:  # a ticket is whose it is given to
                found[lease.lease] = lease.machine.state
        return found


class WorkerSaySo:
    """Of a worker half. Raises: InvariantViolation."""

    def __init__(self, half: WorkerHalf, run: Incarnation) -> None:
        self._half, self._run = half, run
        self._who, self._before = _NOBODY, {}  # type: tuple[Who, _State]
        self._denies: PartId | None = None

    def hears(self, link: str, who: Who, message: Message) -> None:
        """It is about to act on that."""
        heard = _may_be_heard(self._half.contacts, link, message)
        if isinstance(message, Open):
            heard &= message.owner == self._run
        self._who = who if heard else _NOBODY
        # A later run of an owner may say, too, that it doesn't serve a part.
        self._denies = message.part if isinstance(message, Denied) and heard else None
        self._before = self._others()

    def has_heard(self, message: Message) -> None:
        """It has."""
        if not isinstance(message, Greeting):
            _compare(self._before, self._others(), message)

    def _others(self) -> _State:
        half, who = self._half, self._who
        parts, serves = half.fetcher.parts, half.server.pulls
        owners = half.fetcher.owners
        found: _State = {
            part: parts[part]
            for part, owner in owners.items()
            if owner != who and not (part == self._denies and owner[0] == who[0])
        }
        found |= {key: serve for key, serve in serves.items() if key[:2] != who}
        return found


def _may_be_heard(contacts: Contacts, name: str, message: Message) -> bool:
    contact = contacts[name]
    if contact is None or contact.machine.state is not State.AGREED:
        return False
    return since(type(message)) <= contact.version


def _compare(before: _State, after: _State, message: Message) -> None:
    if before != after:
        changed = sorted(str(name) for name, _ in before.items() ^ after.items())
        raise InvariantViolation(f"{message} isn't its sender's to say, and changes {changed}")
