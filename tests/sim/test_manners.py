"""The simulator's look at greetings: what is owed, and when it is settled."""

from kvdist.connector.contacts import Contacts
from kvdist.connector.messages import Hello, Message, Renew
from kvdist.connector.settings import Settings
from kvdist.ids import LeaseId
from kvdist.sim.manners import Manners
from tests.halves import RUN, a_fingerprint

RENEW = Renew((LeaseId(b"l" * 16),))


class Host:
    """Of `p`; what it says is looked at unless it keeps silent."""

    def __init__(self) -> None:
        self.is_silent = False
        self.said: list[tuple[str, Message]] = []
        self.contacts = Contacts(
            Hello("p", RUN, a_fingerprint()), Settings(), self._say, lambda *_: None,
            lambda *_: None,
        )  # fmt: skip
        self.manners = Manners(self.contacts)

    def _say(self, name: str, message: Message, _: int) -> None:
        self.said.append((name, message))

    def hear(self, message: Message) -> str:
        self.manners.hears("d", message)
        self.contacts.hear("d", "d", RUN, message)
        self.manners.has_heard("d", message)
        for name, said in self.said:
            if not self.is_silent:
                self.manners.says(name, said)
        self.said.clear()
        return self.manners.lacking()


def test_a_stranger_is_greeted() -> None:
    host = Host()
    assert host.hear(RENEW) == ""
    host.is_silent = True
    assert host.hear(RENEW) == "Hello to d"
    assert host.manners.lacking() == "", "the next event begins anew"


def test_who_is_refused_hears_why() -> None:
    host = Host()
    other = Hello("d", RUN, a_fingerprint(weights="other"))
    assert host.hear(other) == ""
    assert host.hear(RENEW) == ""
    host.is_silent = True
    assert host.hear(other) == "Refused to d"
    assert host.hear(RENEW) == "Refused to d"


def test_whoever_has_agreed_hears_of_a_change() -> None:
    host = Host()
    assert host.hear(Hello("d", RUN, a_fingerprint())) == ""
    host.manners.owes_all(Hello)
    assert host.manners.lacking() == "Hello to d"
    assert host.hear(RENEW) == "", "with whom all was said nothing is owed"
