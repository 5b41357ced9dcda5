"""A node's life as a process: it listens, it drains when it is asked to end, it is gone.

Owns:   the listening socket, and what SIGTERM and SIGINT mean.
Knows nothing of: routes, steps, models.

    SIGTERM   nothing new is taken, /ready says 503; what was taken is answered, then it ends
    again, or after `drain_s`: what is left ends with an error
"""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from aiohttp import web

from kvdist.errors import ConfigError
from kvdist.node.build import NodeSettings, build_api
from kvdist.node.engine import Engine
from kvdist.node.tokenizer import Tokenizer

_log = structlog.get_logger(__name__)

#: How long clients may take to read the rest of their answers.
_LAST_WORDS_S = 5.0


async def serve(settings: NodeSettings, engine: Engine, tokenizer: Tokenizer) -> None:
    """Until it has drained or its worker is lost. Raises: WorkerLost; ConfigError."""
    api = build_api(settings, engine, tokenizer)
    runner = web.AppRunner(
        api.app, handler_cancellation=True, access_log=None, shutdown_timeout=_LAST_WORDS_S
    )
    await runner.setup()
    try:
        await _listen(runner, settings)
        _log.info("listening", address=str(runner.addresses[0]), model=settings.names[0])
        async with asyncio.timeout(None) as deadline:
            with _signals(engine, deadline, settings.drain_s):
                await engine.run()
    except TimeoutError:
        _log.warning("requests were cut off", drain_s=settings.drain_s)
    finally:
        await runner.cleanup()
    if engine.lost is not None:
        raise engine.lost
    _log.info("drained")


async def _listen(runner: web.AppRunner, settings: NodeSettings) -> None:
    try:
        await web.TCPSite(runner, settings.host, settings.port).start()
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise ConfigError(f"can't listen at {where}: {error.strerror}") from error


@contextmanager
def _signals(engine: Engine, deadline: asyncio.Timeout, drain_s: float) -> Iterator[None]:
    """The first signal drains `engine`, a second one is impatient."""
    loop = asyncio.get_running_loop()
    asked = False

    def end() -> None:
        nonlocal asked
        _log.info("asked to end", again=asked)
        deadline.reschedule(loop.time() + (0 if asked else drain_s))
        asked = True
        engine.drain()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
