"""The document's lines, out of a trace.

Owns:   nothing.
Knows nothing of: files.
"""

from collections.abc import Iterable, Iterator

from kvdist.trace.events import Entry, Planned
from kvdist.trace.line import step_line


def step_lines(entries: Iterable[Entry]) -> Iterator[str]:
    """A line for each step and request."""
    for entry in entries:
        event = entry.event
        if isinstance(event, Planned):
            yield step_line(
                event.step,
                event.req,
                event.hit_tokens,
                event.scheduled,
                event.owned,
                event.new,
                event.free,
                event.ref_hit,
            )
