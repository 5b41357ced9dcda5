"""Where a worker's unix socket is, and what those that were killed have left.

Owns:   the folders' names: they tell whose they are.
Knows nothing of: sockets.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_PREFIX: Final = "kvdist-"


@contextmanager
def socket_folder() -> Iterator[str]:
    """A folder of this process's own, for as long as the block lasts."""
    _sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-") as folder:
        yield folder


def _sweep(parent: Path) -> None:
    """Remove the folders of this user's processes that are gone."""
    for folder in parent.glob(f"{_PREFIX}*-*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)  # another user's stays
