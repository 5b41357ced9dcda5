"""A folder for a worker's socket, which is gone when the worker is, however that ended.

Owns:   the folder, and the lock in it that says that its owner is there.
Knows nothing of: what lies in it.

A process that is killed removes nothing. Its lock goes with it, though, and by that whoever comes
next knows which folders nobody needs: its node, or any other worker that has the same TMPDIR. A
process id would not do: who shares TMPDIR may be in another container, which has ids of its own.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "kvdist-worker-"
_LOCK: Final = "owner"


@contextmanager
def socket_folder() -> Iterator[Path]:
    """A new one, while the block runs; those that nobody needs any more are removed."""
    clear()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        lock = _locked(folder)
        try:
            yield folder
        finally:
            os.close(lock)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clear() -> None:
    """Remove the folders whose owners are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # somebody else's, or gone by now
            if _is_abandoned(folder):
                shutil.rmtree(folder)


def _locked(folder: Path) -> int:
    """The lock has its name from when it is held: nobody takes its owner for dead before."""
    new = folder / f"{_LOCK}.new"
    lock = os.open(new, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(folder / _LOCK)
    return lock


def _is_abandoned(folder: Path) -> bool:
    """Raises: OSError."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(lock)
