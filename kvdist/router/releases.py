"""Leases that nobody will use are given back, though nobody waits for that.

Owns:   the requests that do so.
Knows nothing of: why.

They are named by the transfer id that the router has made, so that it doesn't matter whether the
prefill node's answer has come, is under way, or was lost.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import structlog

from kvdist.errors import NodeBusy, NodeFailed
from kvdist.ids import TransferId
from kvdist.router.bodies import PARAMS, read_along
from kvdist.router.metrics import Metrics
from kvdist.router.nodes import Node
from kvdist.router.upstream import Upstream

_log = structlog.get_logger(__name__)

_PATH: Final = "/v1/kv/release"
#: Then the lease's own life has to end it.
_PATIENCE_S: Final = 5.0
_TRIES: Final = 3
_PAUSE_S: Final = 0.2


class Refused(Exception):
    """A prefill node has refused the request: it has computed nothing, and computes nothing."""


class Releases:
    """To be closed when no more come."""

    def __init__(self, upstream: Upstream, metrics: Metrics) -> None:
        self._upstream, self._metrics = upstream, metrics
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self,
        node: Node,
        transfer: TransferId,
        prefilling: asyncio.Task[Any],
        headers: Mapping[str, str],
    ) -> None:
        """Nobody comes for what `node` computes under that name, or has: `prefilling` ends."""
        task = asyncio.create_task(
            self._abandon(node, transfer, prefilling, headers), name="release"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """All have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _abandon(
        self,
        node: Node,
        transfer: TransferId,
        prefilling: asyncio.Task[Any],
        headers: Mapping[str, str],
    ) -> None:
        prefilling.cancel()
        await asyncio.wait([prefilling])
        error = None if prefilling.cancelled() else prefilling.exception()
        if not isinstance(error, NodeBusy | Refused):
            self._metrics.released()
            await self._release(node, transfer, headers)

    async def _release(self, node: Node, transfer: TransferId, headers: Mapping[str, str]) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                for tries_left in reversed(range(_TRIES)):
                    try:
                        await self._say(node, transfer, headers)
                        return
                    except NodeFailed:
                        if not tries_left:
                            raise
                        await asyncio.sleep(_PAUSE_S)
        except (NodeFailed, TimeoutError) as error:
            _log.warning("a lease was not released", node=node.name, reason=str(error))

    async def _say(self, node: Node, transfer: TransferId, headers: Mapping[str, str]) -> None:
        body = {PARAMS: read_along(node.name, transfer)}
        async with self._upstream.post(node, _PATH, body, headers) as reply:
            await reply.whole()
            if reply.status >= 400:
                _log.warning("a lease was not released", node=node.name, status=reply.status)
