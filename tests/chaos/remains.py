"""What a play leaves behind: files, shared memory; and whether who survived it has grown.

Owns:   what was there before.
Knows nothing of: nodes.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_SHARED: Final = Path("/dev/shm")


def shared_memory() -> set[str]:
    """What UCX has in /dev/shm; nothing else of ours has a name there."""
    return {path.name for path in _SHARED.glob("ucx*")}


def orphaned(names: set[str]) -> set[str]:
    """Those that no process has mapped: nobody will ever remove them."""
    return {name for name in names if (_SHARED / name).exists()} - _mapped()


def _mapped() -> set[str]:
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            lines = [line for line in maps.read_text().splitlines() if str(_SHARED) in line]
            found |= {line.split(f"{_SHARED}/")[1].split()[0] for line in lines}
    return found


def resident_mib(pid: int) -> float:
    """Memory of a process that nobody else has, MiB; 0: it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
    return 0.0


def open_files(pid: int) -> int:
    """Descriptors of a process; 0: it is gone."""
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0
