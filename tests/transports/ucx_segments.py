"""System V shared memory, by who made it: others on this machine may use UCX as well."""

from pathlib import Path


def segments_of(*pids: int) -> list[str]:
    """Segments that these processes made and that are still there."""
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return [line for line in lines if int(line.split()[4]) in pids]
