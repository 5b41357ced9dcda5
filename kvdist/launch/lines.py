"""What processes write, for people: log lines in JSON become short, all else stays as it is.

Owns:   how a line looks.
Knows nothing of: who wrote it.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Line:
    """`event` is None if it is not a log line."""

    text: str
    event: str | None = None
    level: str = "info"
    values: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Self:
        """From what a process wrote.

        >>> Line.read('{"event": "listening", "level": "info", "port": 8000, "by": "a b"}').text
        'listening by="a b" port=8000'
        """
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return cls(text)
        if not isinstance(found, dict) or not isinstance(found.get("event"), str):
            return cls(text)
        event, level = found.pop("event"), str(found.pop("level", "info"))
        when = str(found.pop("timestamp", ""))[11:19]
        trace = found.pop("exception", None)
        told = [f"{name}={_shown(value)}" for name, value in sorted(found.items())]
        shown = " ".join([*([when] if when else []), event, *told])
        return cls(f"{shown}\n{trace}" if trace else shown, event, level, found)


def _shown(value: object) -> str:
    is_word = isinstance(value, str) and value and not any(c.isspace() or c in '"=' for c in value)
    return str(value) if is_word else json.dumps(value, default=str)
