"""A process that listens, and what it does when it is asked to end.

Owns:   what SIGTERM and SIGINT mean, and how patient a process is with its clients.
Knows nothing of: routes; what is drained.

    SIGTERM   nothing new is taken; what was taken is answered, then the process ends
    again, or after a while: what is left ends with an error
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.log import server_logger

from kvdist.web.arrival import Arrival
from kvdist.web.reserving import cannot_listen

_log = structlog.get_logger(__name__)

_LINE_BYTES: Final = 8190
_MAX_HEADERS: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long clients may take, in seconds."""

    #: For the head of the first request of a connection.
    head_s: float = 20.0
    #: Between two requests, the head of the next one included.
    idle_s: float = 75.0
    #: To read anything of an answer that is being sent.
    unread_s: float = 60.0
    #: To read the rest of their answers when the process ends.
    last_words_s: float = 5.0


PATIENCE: Final = Patience()


class _OfClients(logging.Filter):
    """What clients get wrong is theirs to hear, and no error of ours with all its calls."""

    def filter(self, record: logging.LogRecord) -> bool:
        """False: it isn't logged as aiohttp would."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError | web.RequestPayloadError):
            return True
        _log.info("a request that can't be read", reason=str(error).split("\n", 1)[0])
        return False


server_logger.addFilter(_OfClients())


def face(app: web.Application, patience: Patience = PATIENCE) -> web.AppRunner:
    """What runs `app`. Heads are bounded: 8 KiB a line, 128 lines; a client that leaves cancels."""
    return web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=patience.last_words_s,
        keepalive_timeout=patience.idle_s,
        max_line_size=_LINE_BYTES,
        max_field_size=_LINE_BYTES,
        max_headers=_MAX_HEADERS,
    )


class _Site(web.BaseSite):
    """A TCP address, where connections have to say what they want."""

    def __init__(self, runner: web.AppRunner, host: str, port: int, patience: Patience) -> None:
        super().__init__(runner)
        self._host, self._port, self._patience = host, port, patience

    @property
    def name(self) -> str:
        """For messages."""
        return f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        """Connections are taken."""
        await super().start()
        server = self._runner.server
        assert server is not None
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Arrival(server(), self._patience.head_s, self._patience.unread_s),
            self._host,
            self._port,
            backlog=self._backlog,
        )


async def listen(
    runner: web.AppRunner, host: str, port: int, patience: Patience = PATIENCE
) -> None:
    """`runner` takes connections there. Raises: ConfigError."""
    try:
        await _Site(runner, host, port, patience).start()
    except OSError as error:
        raise cannot_listen(f"{host}:{port} (--port)", error) from error


@contextmanager
def signals(drain: Callable[[], None], deadline: asyncio.Timeout, drain_s: float) -> Iterator[None]:
    """The first signal calls `drain` and gives it `drain_s` until `deadline`; a second one none."""
    loop = asyncio.get_running_loop()
    asked = False

    def end() -> None:
        nonlocal asked
        _log.info("asked to end", again=asked)
        deadline.reschedule(loop.time() + (0 if asked else drain_s))
        asked = True
        drain()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
