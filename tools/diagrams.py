"""The protocol's state machines, from their tables: `python tools/diagrams.py` writes the page.

A test compares the page with the tables.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvdist.connector.machine import Table
from kvdist.connector.tables import claim, contact, duty, grant, lease, part, pull, serve

PAGE = Path(__file__).resolve().parent.parent / "docs/protocol-tables.md"
MODULES = (contact, duty, lease, grant, serve, claim, pull, part)


def page() -> str:
    """The whole page."""
    lines = [
        "# The protocol's tables",
        "",
        "Printed from the tables by `tools/diagrams.py`. What each state and event means stands",
        "beside it in `kvdist/connector/tables`. An event that a diagram doesn't show in a state",
        "changes nothing there if it is listed as late; else it can't be, for the reason given.",
    ]
    for module in MODULES:
        (table,) = (value for value in vars(module).values() if isinstance(value, Table))
        lines += ["", *_section(module.__doc__ or "", table)]
    return "\n".join(lines) + "\n"


def _section(doc: str, table: Table[Any, Any, Any]) -> Iterator[str]:
    yield f"## {table.name}"
    yield ""
    yield doc.splitlines()[0]
    yield ""
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield f"    [*] --> {table.start.name}"
    for (state, event), (target, effects) in table.rows.items():
        does = f" / {', '.join(effect.value for effect in effects)}" if effects else ""
        yield f"    {state.name} --> {target.name}: {event.value}{does}"
    yield "```"
    yield ""
    yield f"Late: {', '.join(sorted(event.value for event in table.late)) or 'none'}."
    yield ""
    for (state, event), reason in table.impossible.items():
        yield f"- {state.name}, {event.value}: {reason}"


if __name__ == "__main__":
    PAGE.write_text(page())
