"""Shared memory by who made it: others on this machine may use UCX as well."""

import os
import time
from pathlib import Path


def segments_of(*pids: int) -> list[str]:
    """System V segments that these processes made and that are still there."""
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return [line for line in lines if int(line.split()[4]) in pids]


def files_that_stay(before: set[str], patience_s: float = 5.0) -> set[str]:
    """What is new in /dev/shm and doesn't go: those of others that live come and go."""
    new, deadline = set(os.listdir("/dev/shm")) - before, time.monotonic() + patience_s
    while new and time.monotonic() < deadline:
        time.sleep(0.02)
        new &= set(os.listdir("/dev/shm"))
    return new
