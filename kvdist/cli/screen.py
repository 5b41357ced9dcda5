"""What all commands write with: lines on standard output, complaints on standard error, a bar.

Owns:   how kvdist looks on a terminal.
Knows nothing of: commands.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.text import Text

_Item = TypeVar("_Item")


class Screen:
    """Text goes out as it is; colours and the bar are for terminals alone."""

    def __init__(self) -> None:
        self._out = Console(markup=False, emoji=False, highlight=False, soft_wrap=True)
        self._err = Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)

    @property
    def is_terminal(self) -> bool:
        """Somebody looks at what is complained."""
        return self._err.is_terminal

    def line(self, text: str, style: str | None = None) -> None:
        """Print a line; above the bar, if there is one."""
        _print(self._out, text, style)

    def complain(self, error: object) -> None:
        """Print what went wrong, as one line, on standard error. Not while there is a bar."""
        _print(self._err, "kvdist: " + " ".join(str(error).split()), "red")

    def tagged(self, tag: str, text: str, style: str, tag_style: str) -> None:
        """Print a line on standard error that says whose it is."""
        for line in text.splitlines():
            self._err.print(Text.assemble((tag, tag_style), (_fit(self._err, line), style)))

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

    @contextmanager
    def all_loading(self) -> Iterator[Callable[[str, str, float], None]]:
        """Like `loading`, for many: who does something comes first."""
        with Progress(console=self._err, transient=True, disable=not self._err.is_terminal) as bar:
            tasks: dict[str, TaskID] = {}

            def tell(who: str, what: str, share: float) -> None:
                if who not in tasks:
                    tasks[who] = bar.add_task(who, total=1.0)
                bar.update(tasks[who], description=f"{who}: {what}", completed=share)

            yield tell


def _print(console: Console, text: str, style: str | None) -> None:
    console.print(_fit(console, text), style=style)


def _fit(console: Console, text: str) -> str:
    """A file's name may hold what can't be written here."""
    encoding = getattr(console.file, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _tracked(bar: Progress, items: Sequence[_Item], what: str) -> Generator[_Item]:
    yield from bar.track(items, description=what)
