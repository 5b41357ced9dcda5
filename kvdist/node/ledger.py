"""What a node holds now, and whether that adds up: for people, and for those who test it.

Owns:   nothing; everything is read from its owner when asked.
Knows nothing of: HTTP.
Units:  blocks, unless named.
"""

import asyncio
from typing import Any, Final

from kvdist.errors import InvariantViolation
from kvdist.node.engine import Engine

_LOOK_S: Final = 0.05


async def ledger(engine: Engine, wait_s: float = 0.0) -> dict[str, Any]:
    """Now, or when there is nothing to do any more, if that comes within `wait_s`."""
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_s
    while not engine.idle and loop.time() < until:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_S)
    return _now(engine)


def _now(engine: Engine) -> dict[str, Any]:
    """`balanced`: an idle node holds nothing, and the auditor finds nothing; null: it is busy."""
    scheduler, exchange = engine.scheduler, engine.exchange
    manager, roster = scheduler.manager, scheduler.roster
    pool = manager.config.num_blocks - 1
    held = pool - manager.block_pool.get_num_free_blocks()
    told: dict[str, Any] = {
        "balanced": None,
        "held": {
            "blocks": held,
            "of": pool,
            "running": len(roster.running),
            "waiting": len(roster.waiting),
        },
    }
    if exchange is not None:
        told["held"] |= exchange.held
        told["counts"] = dict(exchange.half.counts)
    if engine.idle:
        told["findings"] = _findings(engine)
        told["balanced"] = not held and not told["findings"]
    return told


def _findings(engine: Engine) -> str:
    try:
        engine.scheduler.manager.check()
    except InvariantViolation as violation:
        return str(violation)
    return ""
