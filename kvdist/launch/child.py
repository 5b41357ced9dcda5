"""One process of a cluster: started, listened to, ended.

Owns:   the process, and its last lines.
Knows nothing of: what it does.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence as Listing
from typing import Final, Self

_MAX_TAIL: Final = 3
_MAX_LINE: Final = 1 << 16
#: Its own children may still hold its pipe.
_LAST_WORDS_S: Final = 1.0


class Lifeline:
    """The pipe that tells processes that their starter is gone; see `lifeline.hold`."""

    def __init__(self) -> None:
        self.theirs, self._ours = os.pipe()

    def close(self) -> None:
        """Processes that still hold the other end hear it."""
        os.close(self.theirs)
        os.close(self._ours)


class Child:
    """`hear` gets each line that it writes, wherever it writes it to."""

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, hear: Callable[[str, str], None]
    ) -> None:
        self.name, self.process, self._hear = name, process, hear
        self._tail: deque[str] = deque(maxlen=_MAX_TAIL)
        self._reading = asyncio.create_task(self._read(), name=f"lines of {name}")

    @classmethod
    async def start(
        cls,
        name: str,
        command: Listing[str],
        env: Mapping[str, str],
        lifeline: Lifeline,
        hear: Callable[[str, str], None],
    ) -> Self:
        """In a session of its own: what a terminal tells all, it hears from its starter alone."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=env,
            pass_fds=[lifeline.theirs],
            start_new_session=True,
        )
        return cls(name, process, hear)

    @property
    def has_ended(self) -> bool:
        """It is gone."""
        return self.process.returncode is not None

    @property
    def last_words(self) -> str:
        """How it ended, and what it said before."""
        code = self.process.returncode or 0
        how = f"by signal {-code}" if code < 0 else f"with status {code}"
        said = " | ".join(self._tail)
        return f"{self.name} ended {how}" + (f"; it last said: {said}" if said else "")

    def ask_to_end(self) -> None:
        """With SIGTERM; a second time: now."""
        if not self.has_ended:
            self.process.terminate()

    def kill(self) -> None:
        """Without asking."""
        if not self.has_ended:
            self.process.kill()

    async def ended(self) -> None:
        """It is gone, and all that it said has been heard."""
        await self.process.wait()
        await asyncio.wait([self._reading], timeout=_LAST_WORDS_S)
        self._reading.cancel()
        await asyncio.wait([self._reading])

    async def _read(self) -> None:
        assert self.process.stdout is not None
        rest = b""
        while piece := await self.process.stdout.read(_MAX_LINE):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > _MAX_LINE:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._say(line)
        if rest:
            self._say(rest)

    def _say(self, line: bytes) -> None:
        # Of a bar that is drawn again and again, how it ended.
        text = line.decode(errors="replace").rstrip().rsplit("\r", 1)[-1]
        if text:
            self._tail.append(text)
            self._hear(self.name, text)
