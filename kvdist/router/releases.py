"""Leases that nobody will use are given back, though nobody waits for that.

Owns:   the requests that do so.
Knows nothing of: why.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Final

import structlog

from kvdist.errors import NodeFailed
from kvdist.router.bodies import PARAMS, Json
from kvdist.router.metrics import Metrics
from kvdist.router.nodes import Node
from kvdist.router.upstream import Upstream

_log = structlog.get_logger(__name__)

_PATH: Final = "/v1/kv/release"
#: Then the lease's own life has to end it.
_PATIENCE_S: Final = 5.0
#: An answer that takes longer isn't under way: it is still being computed.
_UNDER_WAY_S: Final = 0.25


class Releases:
    """To be closed when no more come."""

    def __init__(self, upstream: Upstream, metrics: Metrics) -> None:
        self._upstream, self._metrics = upstream, metrics
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self, node: Node, ticket: Coroutine[None, None, Json | None], headers: Mapping[str, str]
    ) -> None:
        """Nobody comes for what `node` computes, or has computed: `ticket` waits for its answer.

        An answer may be under way, and then it names a lease. One that isn't is not waited for:
        cancelled, the request is withdrawn.
        """
        task = asyncio.create_task(self._abandon(node, ticket, headers), name="release")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """All have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _abandon(
        self, node: Node, ticket: Coroutine[None, None, Json | None], headers: Mapping[str, str]
    ) -> None:
        answer = asyncio.create_task(ticket)
        await asyncio.wait([answer], timeout=_UNDER_WAY_S)
        answer.cancel()
        await asyncio.wait([answer])
        if answer.cancelled() or answer.exception() is not None:
            return
        if (found := answer.result()) is not None:
            self._metrics.released()
            await self._release(node, found, headers)

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
