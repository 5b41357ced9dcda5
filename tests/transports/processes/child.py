"""A second process that listens, as its test sees it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


class Child:
    """Runs `peer.py`; it listens at `address`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.address = self.line()

    def line(self) -> str:
        """The next line it prints; waits for it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the other process has ended"
        return line.strip()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; a stop has taken effect on return."""
        os.kill(self.process.pid, number)
        if number is signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)


@contextlib.contextmanager
def child(
    scenario: str, address: str, prefix: Sequence[str] = (), **settings: Any
) -> Iterator[Child]:
    """A process that plays `scenario` of `peer.py`; killed at the end, if it is still there."""
    command = [*prefix, sys.executable, "-m", "tests.transports.processes.peer", scenario, address]
    with subprocess.Popen(
        [*command, json.dumps(settings)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            yield Child(process)
        finally:
            process.kill()
