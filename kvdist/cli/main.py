"""The command `kvdist`: its options, and what its exit status means.

Owns:   the check level, which it sets from the environment, and the exit status.
Knows nothing of: what commands do.
"""

import errno
from typing import Annotated

import typer
from typer.core import TyperGroup

import kvdist
from kvdist import check
from kvdist.cli.doctor import doctor
from kvdist.cli.replay_trace import replay_trace
from kvdist.cli.replay_workload import replay_workload
from kvdist.cli.router import router
from kvdist.cli.screen import Screen
from kvdist.cli.serve import serve
from kvdist.cli.simulate import simulate
from kvdist.cli.trace import trace
from kvdist.cli.up import up
from kvdist.cli.worker import worker
from kvdist.errors import KvdistError
from kvdist.launch import lifeline as lifelines


class _Commands(TyperGroup):
    """An error of ours, or of the system, ends a command with one line and status 2."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except KvdistError as error:
            Screen().complain(error)
            raise typer.Exit(2) from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # who reads has seen enough
                raise
            Screen().complain(error.strerror or error)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("doctor")(doctor)
app.command("replay-trace")(replay_trace)
app.command("replay-workload")(replay_workload)
app.command("simulate")(simulate)
app.command("serve")(serve)
app.add_typer(trace, name="trace")
app.command("router")(router)
app.command("up")(up)
app.command("worker", hidden=True)(worker)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"kvdist {kvdist.__version__}")
        raise typer.Exit


@app.callback()
def main(
    check_level: Annotated[
        int | None,
        typer.Option(
            "--check",
            envvar="KVDIST_CHECK",
            min=0,
            max=2,
            help="How much kvdist checks itself: 0 nothing, 1 at the end, 2 after every change.",
        ),
    ] = None,
    lifeline: Annotated[
        int | None,
        typer.Option(hidden=True, help="A pipe; when its other end is closed, the process ends."),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
) -> None:
    """A distributed KV cache: nodes that serve models, and what proves that they are right.

    Exit status: 0 all well, 1 a replay differs from its recording or a simulation breaks a
    promise, 2 wrong usage or unreadable input, 130 interrupted.
    """
    if lifeline is not None:
        lifelines.hold(lifeline)
    if check_level is not None:
        check.level = check_level  # type: ignore[assignment]
