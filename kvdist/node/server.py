"""A node's life as a process: it listens, it drains when it is asked to end, it is gone.

Owns:   the listening socket.
Knows nothing of: routes, steps, models.
"""

import asyncio
from collections.abc import Callable

import structlog

from kvdist.node.build import NodeSettings, build_api
from kvdist.node.engine import Engine
from kvdist.node.registration import Registration, Replaced
from kvdist.node.speech import Speech
from kvdist.node.tokenizer import Tokenizer
from kvdist.web.listening import face, listen, signals
from kvdist.web.membership import Member

_log = structlog.get_logger(__name__)


async def serve(
    settings: NodeSettings,
    engine: Engine,
    tokenizer: Tokenizer,
    speech: Speech | None = None,
    registration: Registration | None = None,
) -> None:
    """Until it has drained, its worker is lost, or a later run of it is there.

    Raises: WorkerLost; ConfigError; Replaced.
    """
    api = build_api(settings, engine, tokenizer, speech)
    runner = face(api.app)
    await runner.setup()
    try:
        await listen(runner, settings.host, settings.port)
        _log.info("listening", address=str(runner.addresses[0]), model=settings.names[0])
        async with asyncio.timeout(None) as deadline:
            with signals(engine.drain, deadline, settings.drain_s):
                if registration is None:
                    await engine.run()
                else:
                    port = runner.addresses[0][1]
                    await _run_registered(engine, registration, _introduced(settings, engine, port))
    except TimeoutError:
        _log.warning("requests were cut off", drain_s=settings.drain_s)
    finally:
        await runner.cleanup()
    if engine.lost is not None:
        raise engine.lost
    _log.info("drained")


async def _run_registered(
    engine: Engine, registration: Registration, me: Callable[[], Member]
) -> None:
    """Raises: Replaced."""
    try:
        async with asyncio.TaskGroup() as tasks:
            registered = tasks.create_task(registration.run(me), name="registration")
            await engine.run()
            registered.cancel()
    except* Replaced as replaced:
        raise replaced.exceptions[0] from None


def _introduced(settings: NodeSettings, engine: Engine, port: int) -> Callable[[], Member]:
    exchange = engine.exchange
    assert exchange is not None, "who is registered exchanges"

    def me() -> Member:
        told = exchange.settings
        host = f"[{told.host}]" if ":" in told.host else told.host
        return Member(
            node_id=told.node_id,
            incarnation=told.run,
            role=told.role,
            model=settings.names[0],
            api=f"http://{host}:{port}",
            control=exchange.control_address,
            ready=engine.ready,
        )

    return me
