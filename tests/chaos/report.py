"""What happened in a play, and what must not have.

Owns:   the counts and the findings.
Knows nothing of: how anything happened.
"""

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Report:
    """Filled while a play runs."""

    title: str
    began_s: float = field(default_factory=time.monotonic)
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    #: What was measured at the end, by name.
    figures: dict[str, Any] = field(default_factory=dict)

    def count(self, what: str) -> None:
        """It happened once more."""
        self.counts[what] += 1

    def find(self, what: str) -> None:
        """A promise is broken."""
        self.findings.append(f"{time.monotonic() - self.began_s:.1f} s: {what}")

    @property
    def text(self) -> str:
        """For people."""
        lines = [f"{self.title}: {'FAILED' if self.findings else 'as promised'}"]
        lines += [f"  {count:6} {what}" for what, count in sorted(self.counts.items())]
        lines += [f"  {name}: {json.dumps(figure)}" for name, figure in self.figures.items()]
        lines += [f"  FOUND {finding}" for finding in self.findings]
        return "\n".join(lines)
