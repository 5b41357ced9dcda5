"""What a test leaves behind: threads, open files, child processes, asyncio tasks and loops.

Owns:   the loops opened under `watch`.
Knows nothing of: kvdist.
"""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

#: How long a thread that is on its way out may still need.
_THREAD_ENDS_S = 1.0


@contextmanager
def watch() -> Iterator[None]:
    """Raise AssertionError, after the block has ended well, with a list of what it left behind."""
    loops: list[_Loop] = []

    def new_event_loop() -> asyncio.AbstractEventLoop:
        loops.append(_Loop())
        return loops[-1]

    threads, files, children = set(threading.enumerate()), _open_files(), _children()
    with mock.patch.multiple("asyncio.events", new_event_loop=new_event_loop):
        yield
    for thread in set(threading.enumerate()) - threads:
        thread.join(_THREAD_ENDS_S)
    left = [f"thread {thread.name}" for thread in set(threading.enumerate()) - threads]
    left += [f"child process {child}" for child in _children() - children]
    left += [f"task {name}" for loop in loops for name in loop.loose_tasks]
    left += [f"open {loop}" for loop in loops if not loop.is_closed()]
    left += [f"open file {number} -> {target}" for number, target in _open_files() - files]
    assert not left, "left behind: " + ", ".join(left)


class _Loop(asyncio.SelectorEventLoop):
    """Remembers the tasks that outlive the call they belong to; `asyncio.run` would cancel them."""

    def __init__(self) -> None:
        super().__init__()
        self.loose_tasks: set[str] = set()

    def run_until_complete(self, future: Any) -> Any:
        try:
            return super().run_until_complete(future)
        finally:
            self.loose_tasks |= {task.get_name() for task in asyncio.all_tasks(self)}


def _open_files() -> set[tuple[str, str]]:
    """Descriptors with what they point to; empty where there is no /proc."""
    found = set()
    folder = Path("/proc/self/fd")
    for number in os.listdir(folder) if folder.exists() else ():
        with suppress(FileNotFoundError):  # the one that listed the folder
            found.add((number, os.readlink(folder / number)))
    return found


def _children() -> set[str]:
    """Process ids of direct children; empty where there is no /proc."""
    found: set[str] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError):  # a thread that ended meanwhile
            found.update(listing.read_text().split())
    return found
