"""What all commands write with: lines on standard output, complaints on standard error, a bar.

Owns:   how kvdist looks on a terminal.
Knows nothing of: commands.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress

_Item = TypeVar("_Item")


class Screen:
    """Text goes out as it is; colours and the bar are for terminals alone."""

    def __init__(self) -> None:
        self._out = Console(markup=False, emoji=False, highlight=False, soft_wrap=True)
        self._err = Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def line(self, text: str, style: str | None = None) -> None:
        """Print a line; above the bar, if there is one."""
        _print(self._out, text, style)

    def complain(self, error: object) -> None:
        """Print what went wrong, as one line, on standard error. Not while there is a bar."""
        _print(self._err, "kvdist: " + " ".join(str(error).split()), "red")

    @contextmanager
    def progress(self, items: Sequence[_Item], what: str) -> Iterator[Iterator[_Item]]:
        """`items`, with a bar on a terminal that says how far the caller has come."""
        bar = Progress(console=self._out, transient=True, disable=not self._out.is_terminal)
        with bar, closing(_tracked(bar, items, what)) as tracked:
            yield tracked

    @contextmanager
    def loading(self) -> Iterator[Callable[[str, float], None]]:
        """Tell it what is being done and which share is done: a bar on a terminal, else nothing."""
        with Progress(console=self._err, transient=True, disable=not self._err.is_terminal) as bar:
            task = bar.add_task("loading", total=1.0)
            yield lambda what, share: bar.update(task, description=what, completed=share)


def _print(console: Console, text: str, style: str | None) -> None:
    encoding = getattr(console.file, "encoding", None) or "utf-8"
    # A file's name may hold what can't be written here.
    console.print(text.encode(encoding, "backslashreplace").decode(encoding), style=style)


def _tracked(bar: Progress, items: Sequence[_Item], what: str) -> Generator[_Item]:
    yield from bar.track(items, description=what)
