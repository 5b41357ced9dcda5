"""Rules of the house that no linter knows; `make lint` runs it.

no file of kvdist or transports over 500 lines; no module named utils
every module of the core says what it owns and what it knows nothing of
every rule (S1, I1, T1) and every ADR that code cites is in docs; no machine's own paths
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 500
#: Whose modules say what they own.
TOLD = {("kvdist", floor) for floor in ("cache", "sched", "connector", "sim")}
MACHINE_PATH = re.compile("/" + r"(work|root|home|Users)/\w")
LABEL = re.compile(r"\b(?:[SIT]\d{1,2}|ADR-\d{4})\b")


def complaints() -> Iterator[str]:
    """One line for each broken rule."""
    rules = (ROOT / f"docs/{name}.md" for name in ("semantics", "protocol"))
    known = {label for path in rules for label in LABEL.findall(path.read_text())}
    known |= {f"ADR-{path.name[:4]}" for path in (ROOT / "docs/adr").glob("[0-9]*.md")}
    for path in tracked():
        name, text = path.relative_to(ROOT), path.read_text()
        if match := MACHINE_PATH.search(text):
            yield f"{name}: a machine's own path, {match[0]}"
        if path.suffix != ".py":
            continue
        if path.stem == "utils":
            yield f"{name}: say what it is for"
        for label in sorted(set(LABEL.findall(text)) - known):
            yield f"{name}: cites {label}, which docs don't have"
        if name.parts[0] in ("kvdist", "transports") and text.count("\n") > MAX_LINES:
            yield f"{name}: {text.count(chr(10))} lines, more than {MAX_LINES}"
        if name.parts[:2] in TOLD:
            told = ast.get_docstring(ast.parse(text)) or ""
            yield from (
                f"{name}: the docstring lacks '{word}'"
                for word in ("Owns:", "Knows nothing of:")
                if word not in told
            )


def tracked() -> Iterator[Path]:
    """Every text file that git has or would take."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listing.split("\0")):
        if (path := ROOT / name).is_file() and path.suffix not in (".gz", ".png"):
            yield path


if __name__ == "__main__":
    found = list(complaints())
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
