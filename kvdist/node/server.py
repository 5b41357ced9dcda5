"""A node's life as a process: it listens, it drains when it is asked to end, it is gone.

Owns:   the listening socket.
Knows nothing of: routes, steps, models.
"""

import asyncio

import structlog
from aiohttp import web

from kvdist.node.build import NodeSettings, build_api
from kvdist.node.engine import Engine
from kvdist.node.speech import Speech
from kvdist.node.tokenizer import Tokenizer
from kvdist.web.listening import listen, signals

_log = structlog.get_logger(__name__)

#: How long clients may take to read the rest of their answers.
_LAST_WORDS_S = 5.0


async def serve(
    settings: NodeSettings, engine: Engine, tokenizer: Tokenizer, speech: Speech | None = None
) -> None:
    """Until it has drained or its worker is lost. Raises: WorkerLost; ConfigError."""
    api = build_api(settings, engine, tokenizer, speech)
    runner = web.AppRunner(
        api.app, handler_cancellation=True, access_log=None, shutdown_timeout=_LAST_WORDS_S
    )
    await runner.setup()
    try:
        await listen(runner, settings.host, settings.port)
        _log.info("listening", address=str(runner.addresses[0]), model=settings.names[0])
        async with asyncio.timeout(None) as deadline:
            with signals(engine.drain, deadline, settings.drain_s):
                await engine.run()
    except TimeoutError:
        _log.warning("requests were cut off", drain_s=settings.drain_s)
    finally:
        await runner.cleanup()
    if engine.lost is not None:
        raise engine.lost
    _log.info("drained")
