"""The guards behind the protocol's rules, and what each says once it is switched off.

A guard is a function of a module, or a method or property of a class; with the bug in place it says
yes (or no) whatever it is asked.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from kvdist.connector import borrower, contacts, lender, rules, server
from kvdist.connector.borrower import Borrower
from kvdist.connector.contacts import Contacts
from kvdist.connector.duties import Duties
from kvdist.connector.fallback import Fallback
from kvdist.connector.fetcher import Fetcher
from kvdist.connector.leases import Lease
from kvdist.connector.lender import Lender
from kvdist.connector.messages import Hello, Refused
from kvdist.connector.scheduler_half import SchedulerHalf
from kvdist.connector.server import Server
from kvdist.sched import lending


class Guard(NamedTuple):
    """`owner` has it under `name`; `instead` takes its place."""

    owner: Any
    name: str
    instead: Any
    #: What it says is all that it does: so it is known which walks the bug makes no difference to.
    is_pure: bool = True

    @property
    def where(self) -> str:
        """How reports call it."""
        return f"rule {self.owner.__name__.rpartition('.')[2]}.{self.name}"


def _yes(*_: object) -> bool:
    return True


def _no(*_: object) -> bool:
    return False


def _nothing(*_: object) -> None:
    return None


@contextmanager
def watched() -> Iterator[set[str]]:
    """While inside, of which guards the bug would have said otherwise, or may have."""
    seen = {guard.where for guard in GUARDS if not guard.is_pure}
    before = [(guard, vars(guard.owner)[guard.name]) for guard in GUARDS if guard.is_pure]
    for guard, asked in before:
        setattr(guard.owner, guard.name, _watching(guard, asked, seen))
    try:
        yield seen
    finally:
        for guard, asked in before:
            setattr(guard.owner, guard.name, asked)


def _watching(guard: Guard, asked: Callable[..., Any], seen: set[str]) -> Callable[..., Any]:
    def answer(*about: Any) -> Any:
        said = asked(*about)
        if said != guard.instead(*about):
            seen.add(guard.where)
        return said

    return answer


_hear = Contacts.hear


def _hears_all(contact: Contacts, *heard: Any) -> bool:
    return _hear(contact, *heard) or not isinstance(heard[-1], Hello | Refused)


GUARDS: Final = [
    Guard(rules, "is_same_run", _yes),
    Guard(rules, "is_same_content", _yes),
    Guard(rules, "may_lend", _yes),
    Guard(rules, "may_take_over", _yes),
    Guard(rules, "may_resume", lambda resume, local, known, anywhere: max(0, resume - local)),
    Guard(rules, "may_confirm", _yes),
    Guard(rules, "may_return", _yes),
    Guard(rules, "may_issue", _yes),
    Guard(rules, "may_cancel", _yes),
    Guard(rules, "all_parts", _yes),
    Guard(rules, "readable", lambda settled, first, last, is_state: last),
    Guard(rules, "may_park", _yes),
    Guard(rules, "soft_room", lambda share, lent, room: room),
    Guard(rules, "burst_end", lambda first, last, burst, is_state: last),
    Guard(lending, "may_lend", _yes),
    Guard(lending, "may_serve", _yes),
    # -- what halves ask themselves
    Guard(Server, "_is_used_up", _no),
    Guard(Server, "_covers", _yes),
    Guard(Lender, "is_full", _no),
    Guard(Lender, "_fits", _yes),
    Guard(Lender, "_room", lambda lender: lender._holdings.pool_blocks),
    Guard(Lender, "may_preempt", _yes),
    Guard(Lender, "_reader_of", _nothing),
    Guard(Lease, "is_for", _yes),
    Guard(lender, "covers", _yes),
    Guard(Fetcher, "_part_of", lambda fetcher, peer, run, name: fetcher._parts.get(name)),
    Guard(Fallback, "_refusal", lambda *_: ""),
    # -- who is heard, by its run, its hello, its version and our role
    Guard(Contacts, "run_seen", _nothing, is_pure=False),
    Guard(Contacts, "hear", _hears_all, is_pure=False),
    Guard(Borrower, "node_seen", _nothing, is_pure=False),
    Guard(borrower, "can_ask", _yes),
    Guard(contacts, "since", lambda _: 1),
    Guard(server, "since", lambda _: 1),
    Guard(Duties, "check", _nothing, is_pure=False),
    Guard(SchedulerHalf, "is_ready", property(_yes), is_pure=False),
]
