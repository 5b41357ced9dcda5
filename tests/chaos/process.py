"""A node as a process of its own, and its worker's process, which befall all kinds of things.

Owns:   the process, and its addresses, which stay.
Knows nothing of: clients, what befalls whom.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence as Listing
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

from kvdist.launch.child import Child, Lifeline

#: PyTorch takes its time on a busy machine.
_READY_S: Final = 120.0
_ENDS_S: Final = 25.0


class NotThere(Exception):
    """It isn't ready, or hasn't ended, in time."""


def free_port() -> int:
    """Of this host, now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def state_of(pid: int) -> str:
    """Of a process, by its letter; empty: there is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


@dataclass
class Process:
    """One place, where one process after the other runs: a node, or a router."""

    name: str
    #: What follows `kvdist`.
    words: Listing[str]
    env: Mapping[str, str]
    log: Path
    lifeline: Lifeline
    port: int = field(default_factory=free_port)
    child: Child = field(init=False)

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of what runs there now."""
        return self.child.process.pid

    @property
    def has_ended(self) -> bool:
        """Nothing runs there."""
        return self.child.has_ended

    @property
    def worker(self) -> int | None:
        """The process id of its worker; None: it has none."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        with suppress(OSError):
            if children := path.read_text().split():
                return int(children[0])
        return None

    @property
    def standing(self) -> int | None:
        """Of its two processes the one that stands still."""
        both = (self.pid, self.worker)
        return next((pid for pid in both if pid is not None and state_of(pid) == "T"), None)

    async def start(self, *more: str) -> None:
        """Another run of it, told `more`."""
        program = [sys.executable, "-m", "kvdist", f"--lifeline={self.lifeline.theirs}"]
        command = [*program, *self.words, *more, f"--port={self.port}", "--log-format=json"]
        self.child = await Child.start(self.name, command, self.env, self.lifeline, self._hear)

    def _hear(self, name: str, line: str) -> None:
        with self.log.open("a") as log:
            log.write(f"{self.pid} {line}\n")

    async def ready(self) -> None:
        """It takes work. Raises: NotThere."""
        try:
            async with asyncio.timeout(_READY_S), aiohttp.ClientSession() as http:
                while not await self._is_ready(http):
                    if self.has_ended:
                        raise NotThere(self.child.last_words)
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise NotThere(f"{self.name} isn't ready after {_READY_S:g} s") from None

    async def _is_ready(self, http: aiohttp.ClientSession) -> bool:
        try:
            async with http.get(f"{self.url}/ready", timeout=aiohttp.ClientTimeout(2)) as response:
                return response.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def ended(self) -> None:
        """By itself. Raises: NotThere, and it is killed."""
        try:
            async with asyncio.timeout(_ENDS_S):
                await self.child.process.wait()
        except TimeoutError:
            held = await self._ledger()
            self.child.kill()
            raise NotThere(f"{self.name} hasn't ended after {_ENDS_S:g} s: {held}") from None
        finally:
            await self.child.ended()

    async def _ledger(self) -> str:
        """What it still holds, if it says so."""
        url, patience = f"{self.url}/debug/ledger", aiohttp.ClientTimeout(5)
        try:
            async with aiohttp.ClientSession() as http, http.get(url, timeout=patience) as response:
                return await response.text()
        except (aiohttp.ClientError, OSError) as error:
            return repr(error)

    def send(self, number: signal.Signals, *, to_worker: bool = False) -> None:
        """To what runs there now, if it does."""
        pid = self.worker if to_worker else self.pid
        if pid is not None and not self.has_ended:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
