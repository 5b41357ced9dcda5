"""`kvdist trace`: what a node wrote into its trace file, in three ways.

Owns:   the options.
Knows nothing of: what is in a trace, how it is told.
"""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from kvdist.cli.screen import Screen
from kvdist.trace.explain import explain as explained
from kvdist.trace.lines import step_lines
from kvdist.trace.reading import TraceFiles
from kvdist.trace.story import story as told

_File: TypeAlias = Annotated[
    Path,
    typer.Option(
        "--file", envvar="KVDIST_TRACE_FILE", help="What `kvdist serve --trace-file` wrote."
    ),
]
_Request: TypeAlias = Annotated[
    str, typer.Argument(metavar="REQ", help="Its id in the trace, or the id of its answer.")
]

trace = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@trace.callback()
def main() -> None:
    """What became of requests and blocks, out of a trace file.

    Exit status 2 for a file that is no trace, or was cut off, or a request that it doesn't have.
    """


@trace.command()
def lines(file: Annotated[Path, typer.Argument(metavar="FILE")]) -> None:
    """A line for each step and request: ids and counts."""
    screen, files = Screen(), TraceFiles(file)
    for line in step_lines(files):
        screen.line(line)
    _end(screen, files)


@trace.command()
def story(request: _Request, file: _File) -> None:
    """One request's life, from its arrival to its end, with the causes."""
    screen, files = Screen(), TraceFiles(file)
    request_id = files.find(request)
    for line in told(files.run_of(request_id), request_id):
        screen.line(line)
    _end(screen, files)


@trace.command()
def explain(request: _Request, file: _File) -> None:
    """Seven places to look at in the block manager's flow, with one request's numbers."""
    screen, files = Screen(), TraceFiles(file)
    request_id = files.find(request)
    for line in explained(files.run_of(request_id), request_id):
        screen.line(line)
    _end(screen, files)


def _end(screen: Screen, files: TraceFiles) -> None:
    if files.is_cut:
        screen.complain(f"{files.path}: cut off in the middle of its last line")
        raise typer.Exit(2)
