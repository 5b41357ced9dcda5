"""The story of a request: of all that happened, what concerns it.

Owns:   nothing.
Knows nothing of: how a run went, beyond its log.
"""

import re
from collections.abc import Iterable

from kvdist.sim.world import Entry
from kvdist.trace.line import story_line

#: Names by which entries are tied to each other: request ids, leases, pulls, transfers.
_NAMES = re.compile(r"\bjob\d+(?:-\d+)?\b|\blease=(b'.*?'|b\".*?\")|\bpull=\d+")


def story(log: Iterable[Entry], about: str) -> list[str]:
    """Lines of the log that concern `about`, or something that such a line names beside it."""
    lines = [(entry, f"{entry.actor} {entry.what} {entry.about}") for entry in log]
    names = {about}
    for _, text in lines:
        if about in _names_in(text):
            names |= {name for name in _names_in(text) if not name.startswith("job")}
    return [
        story_line(entry.time, text)
        for entry, text in lines
        if not names.isdisjoint(_names_in(text))
    ]


def jobs_in(text: str) -> list[str]:
    """The jobs that a text names, each once."""
    return list(dict.fromkeys(re.findall(r"\bjob\d+\b", text)))


def _names_in(text: str) -> set[str]:
    names = {match.group(0) for match in _NAMES.finditer(text)}
    return names | {name.partition("-")[0] for name in names if name.startswith("job")}
