"""Named marks that a transfer passes, where a process can be made to end or to stand still.

Owns:   how often each was passed by this process, and what is to happen there.
Knows nothing of: what a mark is for; processes pass marks wherever they hear, say and move.

    confirm-said     a message has been handed to the socket; it arrives whatever happens now
    confirm-heard    it is here, and nothing has come of it yet
    landed           and a few beside messages: see `MARKS`
"""

import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import structlog

from kvdist.connector import local, messages as said
from kvdist.connector.host import Moved
from kvdist.connector.local import FromWorker, ToWorker
from kvdist.connector.messages import Greeting, NodeMessage, WorkerMessage
from kvdist.errors import ConfigError

_log = structlog.get_logger(__name__)

Deed: TypeAlias = Literal["kill", "stop"]
Said: TypeAlias = NodeMessage | WorkerMessage | Greeting | ToWorker | FromWorker

_SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Passed(NamedTuple):
    """Who passes a mark: whose process, and on which side of a transfer; None: both."""

    process: Literal["node", "worker"] | None
    side: Literal["owner", "reader"] | None


_names: Final[dict[type, str]] = {}


def name_of(kind: type) -> str:
    """As marks have it.

    >>> name_of(said.StreamState)
    'stream-state'
    """
    if kind not in _names:  # every message asks, and links are waited for
        _names[kind] = re.sub("(?<!^)(?=[A-Z])", "-", kind.__name__).lower()
    return _names[kind]


_BY_READERS: Final = frozenset(
    {
        *(said.Release, said.Renew, said.Borrow, said.Stream),
        *(said.Open, said.Confirm, said.Close, said.StillReading),
    }
)
_OF_READERS: Final = frozenset({local.Fetch, local.Cancel, local.PartEnded, local.PartQuiet})


def _all() -> dict[str, Passed]:
    found: dict[str, Passed] = {}
    for kind in get_args(NodeMessage) + get_args(WorkerMessage):
        process: Literal["node", "worker"] = "node" if kind in get_args(NodeMessage) else "worker"
        asks = kind in _BY_READERS
        found[f"{name_of(kind)}-said"] = Passed(process, "reader" if asks else "owner")
        found[f"{name_of(kind)}-heard"] = Passed(process, "owner" if asks else "reader")
    for kind in get_args(ToWorker) + get_args(FromWorker):
        down = kind in get_args(ToWorker)
        side: Literal["owner", "reader"] = "reader" if kind in _OF_READERS else "owner"
        found[f"{name_of(kind)}-said"] = Passed("node" if down else "worker", side)
        found[f"{name_of(kind)}-heard"] = Passed("worker" if down else "node", side)
    for kind in get_args(Greeting):
        found[f"{name_of(kind)}-said"] = found[f"{name_of(kind)}-heard"] = Passed(None, None)
    return found | {
        "ticket-ready": Passed("node", "owner"),
        "blocks-returned": Passed("node", "owner"),
        "loaded": Passed("node", "reader"),
        "published": Passed("node", "reader"),
        "load-failed": Passed("node", "reader"),
        "load-quiet": Passed("node", "reader"),
        "sending": Passed("worker", "owner"),
        "sent": Passed("worker", "owner"),
        "landing": Passed("worker", "reader"),
        "reading": Passed("worker", "reader"),
        "landed": Passed("worker", "reader"),
    }


#: By name. `docs/chaos.md` says what each is.
MARKS: Final = _all()


@dataclass(frozen=True, slots=True)
class AtMark:
    """What a process does to itself when it passes a mark for the `nth` time."""

    deed: Deed
    mark: str
    nth: int = 1

    @classmethod
    def read(cls, text: str) -> "AtMark":
        """Raises: ConfigError.

        >>> AtMark.read("stop@landed=3")
        AtMark(deed='stop', mark='landed', nth=3)
        """
        deed, _, rest = text.partition("@")
        mark, _, nth = rest.partition("=")
        if deed not in _SIGNALS or not (nth or "1").isdecimal() or int(nth or 1) < 1:
            raise ConfigError(f"kill@MARK=N or stop@MARK=N, and {text!r} is neither")
        if mark not in MARKS:
            raise ConfigError(f"there is no mark {mark!r}; marks: {', '.join(MARKS)}")
        return cls(deed, mark, int(nth or 1))  # type: ignore[arg-type]


def _do(deed: Deed) -> None:
    """To this process, at this very place of this very thread."""
    signal.pthread_kill(threading.get_ident(), _SIGNALS[deed])


class Marks:
    """Of one process."""

    def __init__(self, deeds: Iterable[AtMark] = (), do: Callable[[Deed], None] = _do) -> None:
        self._deeds, self._do = tuple(deeds), do
        self._counts: Counter[str] = Counter()

    def heard(self, message: Said) -> None:
        """It is here, and nothing has come of it yet."""
        self.passed(f"{name_of(type(message))}-heard")

    def said(self, message: Said) -> None:
        """It is on its way."""
        self.passed(f"{name_of(type(message))}-said")

    def moved(self, news: Moved) -> None:
        """The scheduler is about to hear of it."""
        self.passed(name_of(type(news)))

    def passed(self, mark: str) -> None:
        """What is to happen there happens."""
        if not self._deeds:
            return
        self._counts[mark] += 1
        for told in self._deeds:
            if (told.mark, told.nth) == (mark, self._counts[mark]):
                _log.warning("at a mark", mark=mark, nth=told.nth, deed=told.deed)
                self._do(told.deed)
