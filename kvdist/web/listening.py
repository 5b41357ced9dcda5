"""A process that listens, and what it does when it is asked to end.

Owns:   what SIGTERM and SIGINT mean.
Knows nothing of: routes; what is drained.

    SIGTERM   nothing new is taken; what was taken is answered, then the process ends
    again, or after a while: what is left ends with an error
"""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from aiohttp import web

from kvdist.errors import ConfigError

_log = structlog.get_logger(__name__)


async def listen(runner: web.AppRunner, host: str, port: int) -> None:
    """`runner` takes connections there. Raises: ConfigError."""
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        raise ConfigError(f"can't listen at {host}:{port}: {error.strerror}") from error


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
