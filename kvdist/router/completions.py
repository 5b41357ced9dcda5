"""`/v1/completions`, `/v1/chat/completions` and `/v1/audio/`, in front of many nodes.

Owns:   the requests that are open.
Knows nothing of: which nodes answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from aiohttp import web

from kvdist.errors import KvdistError, NodeFailed, Unavailable
from kvdist.router.bodies import Asked
from kvdist.router.exchange import Cluster, Exchange
from kvdist.router.forms import AskedAloud
from kvdist.router.relay import Relay
from kvdist.router.scope import Clock, Scope
from kvdist.web.reading import REQUEST_ID, read_bytes, status_of

_Read: TypeAlias = Callable[[web.Request], Awaitable[Asked]]


class Completions:
    """The handlers of these routes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open: set[Scope] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.is_draining = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One request. A client that leaves cancels it, and all that nodes do for it."""
        return await self._counting(request, self._read)

    async def write_down(self, request: web.Request) -> web.StreamResponse:
        """The same of one with sound."""
        return await self._counting(request, self._hear)

    async def _read(self, request: web.Request) -> Asked:
        allow = self._cluster.settings.allow_kv_transfer_params
        return Asked.read(await read_bytes(request), allow_params=allow)

    async def _hear(self, request: web.Request) -> Asked:
        allow = self._cluster.settings.allow_kv_transfer_params
        return await AskedAloud.receive(request, allow_params=allow)

    async def _counting(self, request: web.Request, read: _Read) -> web.StreamResponse:
        status = 499  # the client was gone before there was one
        try:
            response = await self._answer(request, read)
            status = response.status
            return response
        except KvdistError as error:
            status = status_of(error)
            raise
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            self._cluster.metrics.answered(status)

    async def _answer(self, request: web.Request, read: _Read) -> web.StreamResponse:
        if self.is_draining:
            raise Unavailable("the router is draining")
        cluster = self._cluster
        asked = await read(request)
        exchange = Exchange(cluster, asked, request.path, passed_on(request))
        patience_s = cluster.settings.answer_s
        scope = Scope()
        clock = Clock(scope, patience_s, lambda: NodeFailed(f"no answer for {patience_s:g} s"))
        relay = Relay(request, asked, cluster.metrics, clock.wind)
        try:
            async with scope:
                with self._counted(scope), clock:
                    return await exchange.run(relay)
        except KvdistError as error:
            if relay.has_begun:
                return await relay.fail(error)
            if isinstance(error, NodeFailed):
                raise Unavailable(str(error)) from error
            raise

    @contextmanager
    def _counted(self, scope: Scope) -> Iterator[None]:
        self._open.add(scope)
        self._is_idle.clear()
        try:
            yield
        finally:
            self._open.discard(scope)
            if not self._open:
                self._is_idle.set()

    # -- the end -------------------------------------------------------------------------------

    async def drained(self) -> None:
        """All that was taken is answered."""
        await self._is_idle.wait()

    def cut_off(self) -> None:
        """What is open ends with an error."""
        for scope in list(self._open):
            scope.cut(Unavailable("the router has ended"))


def passed_on(request: web.Request) -> dict[str, str]:
    """What nodes are told beside the body: the client's key, and what the request is called."""
    headers = {"X-Request-Id": request[REQUEST_ID]}
    if "Authorization" in request.headers:
        headers["Authorization"] = request.headers["Authorization"]
    return headers
