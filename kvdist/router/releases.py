"""Leases that nobody will use are given back, though nobody waits for that.

Owns:   the requests that do so.
Knows nothing of: why.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog

from kvdist.errors import NodeFailed
from kvdist.router.bodies import PARAMS, Json
from kvdist.router.nodes import Node
from kvdist.router.upstream import Upstream

_log = structlog.get_logger(__name__)

_PATH: Final = "/v1/kv/release"
#: Then the lease's own life has to end it.
_PATIENCE_S: Final = 5.0


class Releases:
    """To be closed when no more come."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, node: Node, ticket: Json, headers: Mapping[str, str]) -> None:
        """`node` is told that nobody comes for what it holds."""
        task = asyncio.create_task(self._release(node, ticket, headers), name="release")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """All have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _release(self, node: Node, ticket: Json, headers: Mapping[str, str]) -> None:
        try:
            async with (
                asyncio.timeout(_PATIENCE_S),
                self._upstream.post(node, _PATH, {PARAMS: ticket}, headers) as reply,
            ):
                await reply.whole()
                if reply.status >= 400:
                    _log.warning("a lease was not released", node=node.name, status=reply.status)
        except (NodeFailed, TimeoutError) as error:
            _log.warning("a lease was not released", node=node.name, reason=str(error))
