"""What became of each planted bug, kept between runs: a run that was stopped goes on where it was.

One JSON object a line, written as soon as it is known. What another source gave counts no more.
"""

import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent.parent
#: What findings depend on.
SOURCES: Final = (
    *(f"kvdist/{floor}/**/*.py" for floor in ("cache", "connector", "sched", "sim")),
    "tests/mutation/guards.py",
    "tests/mutation/protocol.py",
)
KEPT: Final = ROOT / ".protocol_mutants.jsonl"


class Finding(NamedTuple):
    """Of one planted bug: the first seed whose walk notices it, and what that says; no seed: none
    of `num_seeds` does.
    """

    seed: int | None
    says: str
    num_seeds: int


def digest(root: Path = ROOT, patterns: Iterable[str] = SOURCES) -> str:
    """Of all that findings depend on."""
    paths = sorted(path for pattern in patterns for path in root.glob(pattern))
    texts = (f"{path.relative_to(root)}\0{path.read_text()}\0" for path in paths)
    return sha256("".join(texts).encode()).hexdigest()[:16]


class Results:
    """Findings of one source.

    `path` is a file of JSON lines; a last line that was cut short is overlooked.
    """

    def __init__(self, path: Path, source: str) -> None:
        self._path, self._source = path, source
        self._found: dict[str, Finding] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            if entry["source"] == source:
                self._found[entry["mutant"]] = Finding(*entry["finding"])

    def of(self, mutant: str, num_seeds: int) -> Finding | None:
        """What is known: which seed notices it, or that at least so many don't; None: neither."""
        found = self._found.get(mutant)
        if found is None or (found.seed is None and found.num_seeds < num_seeds):
            return None
        return found

    def keep(self, mutant: str, finding: Finding) -> None:
        """From now on this is known."""
        self._found[mutant] = finding
        entry = {"source": self._source, "mutant": mutant, "finding": finding}
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
