"""`kvdist replay-trace`: recorded traces against our block manager, for people.

Owns:   how outcomes and differences are shown.
Knows nothing of: the format of traces, what an operation does.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Annotated, Final

import typer

from kvdist.cli.screen import Screen
from kvdist.errors import FormatError, KvdistError
from kvdist.replay.trace import Difference, Outcome, replay_file

_SUFFIXES: Final = (".jsonl", ".jsonl.gz")


@dataclass(slots=True)
class _Totals:
    files: int = 0
    operations: int = 0
    differences: int = 0
    #: What is wrong with the files that are no traces.
    complaints: list[str] = field(default_factory=list)


def replay_trace(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Traces, folders of traces, or patterns."),
    ],
) -> None:
    """Replay traces recorded from vLLM, and compare every result and the state after it.

    A file is replayed up to its first difference. A folder stands for all *.jsonl.gz and *.jsonl
    in it and below.
    """
    screen, paths = Screen(), _find(files)
    width = max(len(str(path)) for path in paths)
    totals = _Totals(len(paths))
    with screen.progress(paths, "replaying") as tracked:
        for path in tracked:
            _replay(path, width, screen, totals)
    for complaint in totals.complaints:
        screen.complain(complaint)
    screen.line(_sum_up(totals))
    if totals.complaints or totals.differences:
        raise typer.Exit(2 if totals.complaints else 1)


def _replay(path: Path, width: int, screen: Screen, totals: _Totals) -> None:
    """Replay one file, print what came of it and count it."""
    try:
        if path.is_dir():
            raise FormatError(f"{path}: no traces in this folder")
        outcome = replay_file(path)
    except KvdistError as error:
        named = str(path) in str(error)
        totals.complaints.append(str(error) if named else f"{path}: {error}")
        result = "broken invariant" if error.blame == "us" else "unreadable"
        screen.line(f"{path!s:<{width}}  {'':>7}  {result}", "red")
        return
    totals.operations += outcome.num_operations
    totals.differences += outcome.difference is not None
    for line in _show(outcome, width):
        screen.line(line, "red" if outcome.difference else None)


def _find(names: Iterable[str]) -> list[Path]:
    """The files that names, folders and patterns stand for; what stands for nothing stays."""
    paths: list[Path] = []
    for name in names:
        found = [Path(name)]
        if found[0].is_dir():
            found = sorted(p for p in found[0].rglob("*") if p.name.endswith(_SUFFIXES))
        elif not found[0].exists():
            found = sorted(map(Path, glob(name, recursive=True)))
        paths += found or [Path(name)]
    return list(dict.fromkeys(paths))


def _show(outcome: Outcome, width: int) -> list[str]:
    """One row, and what there is to know of a difference."""
    difference = outcome.difference
    result = f"differs at line {difference.line}" if difference else "ok"
    row = f"{outcome.path!s:<{width}}  {outcome.num_operations:>7,}  {result}"
    return [row, *(_explain(difference) if difference else ())]


def _explain(difference: Difference) -> list[str]:
    operation = {
        name: value
        for name, value in difference.operation.items()
        if name not in ("op", "expect", "state")
    }
    name = difference.operation.get("op", "header")
    place = _first_place(difference.recorded, difference.ours)
    told = {
        "operation": f"{name} {json.dumps(operation)}" if operation else name,
        "field": difference.field + place,
        "recorded": json.dumps(difference.recorded),
        "ours": json.dumps(difference.ours),
        "our state": "",
        **{f"  {name}": json.dumps(value) for name, value in difference.state.items()},
    }
    return [f"    {name:<14}{text}".rstrip() for name, text in told.items()]


def _first_place(recorded: object, ours: object) -> str:
    """Where inside a field the two part, as indices.

    >>> _first_place([[1, 2], [3, 4]], [[1, 2], [3, 5]])
    '[1][1]'
    """
    if not isinstance(recorded, list) or not isinstance(ours, list):
        return ""
    for index, (one, other) in enumerate(zip(recorded, ours, strict=False)):
        if one != other:
            return f"[{index}]{_first_place(one, other)}"
    return f"[{min(len(recorded), len(ours))}]"


def _sum_up(totals: _Totals) -> str:
    return ", ".join(
        f"{number:,} {thing if number == 1 else things}"
        for number, thing, things in (
            (totals.files, "file", "files"),
            (totals.operations, "operation", "operations"),
            (totals.differences, "difference", "differences"),
            (len(totals.complaints), "unreadable", "unreadable"),
        )
        if number or thing != "unreadable"
    )
