"""What a node answers, on its way to the client.

Owns:   the client's response, once it has begun.
Knows nothing of: which node answers, and why.

A stream that has begun and can't be brought to its end gets an error event, and no `[DONE]`.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import structlog
from aiohttp import web

from kvdist.errors import KvdistError, NodeFailed
from kvdist.router.bodies import PARAMS, Asked, Json
from kvdist.router.events import Events, event_of
from kvdist.router.metrics import Metrics
from kvdist.router.upstream import Reply
from kvdist.router.usage import Found, Sources, with_sources
from kvdist.web.failures import error_body
from kvdist.web.reading import REQUEST_ID, status_of

_log = structlog.get_logger(__name__)

#: What the prefill node said of the prompt, as far as it has said anything.
Had = Callable[[], Found | None]


class Relay:
    """Of one request; `hear` is called whenever a node has said something whole."""

    def __init__(
        self, request: web.Request, asked: Asked, metrics: Metrics, hear: Callable[[], None]
    ) -> None:
        self._request, self._asked, self._metrics = request, asked, metrics
        self._hear = hear
        self._began_s = time.monotonic()
        self._stream: web.StreamResponse | None = None

    @property
    def has_begun(self) -> bool:
        """The client has seen something: no other node can answer any more."""
        return self._stream is not None

    async def send(self, reply: Reply, had: Had) -> web.StreamResponse:
        """Pass `reply` on, to its end. Raises: NodeFailed."""
        if reply.is_stream and reply.status == 200:
            return await self._send_stream(reply, had)
        data = await reply.whole()
        if reply.status == 200:
            data = self._whole(data, had) if self._asked.wants_json else data
            self._metrics.first_byte(time.monotonic() - self._began_s)
        return as_it_is(reply, data)

    async def fail(self, error: KvdistError) -> web.StreamResponse:
        """What has begun ends here, and says why."""
        assert self._stream is not None
        _log.warning("stream failed", reason=str(error))
        await self._stream.write(event_of(error_body(status_of(error), str(error))))
        await self._stream.write_eof()
        return self._stream

    async def _send_stream(self, reply: Reply, had: Had) -> web.StreamResponse:
        def show(usage: Json) -> Json:
            return with_sources(usage, Sources.of(Found.read(usage), had()))

        events = Events(show, wants_usage=self._asked.wants_usage)
        async for piece in reply.pieces():
            await self._write(events.feed(piece))
        events.end()
        if events.found is not None:
            self._metrics.prompt(Sources.of(events.found, had()))
        stream = await self._begun()
        await stream.write_eof()
        return stream

    async def _write(self, data: bytes) -> None:
        if data:
            self._hear()
            await (await self._begun()).write(data)

    async def _begun(self) -> web.StreamResponse:
        if self._stream is None:
            self._stream = web.StreamResponse(
                headers={
                    "Content-Type": "text/event-stream",
                    "Cache-Control": "no-cache",
                    "X-Request-Id": self._request[REQUEST_ID],
                }
            )
            await self._stream.prepare(self._request)
            self._metrics.first_byte(time.monotonic() - self._began_s)
        return self._stream

    def _whole(self, data: bytes, had: Had) -> bytes:
        answer = read_answer(data)
        if self._asked.params is None:
            answer.pop(PARAMS, None)
        if isinstance(usage := answer.get("usage"), dict):
            sources = Sources.of(Found.read(usage), had())
            answer["usage"] = with_sources(usage, sources)
            self._metrics.prompt(sources)
        return json.dumps(answer).encode()


def read_answer(data: bytes) -> Json:
    """A node's whole answer. Raises: NodeFailed."""
    try:
        answer: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise NodeFailed("an answer that is not JSON") from None
    if not isinstance(answer, dict):
        raise NodeFailed("an answer that is not an object")
    return answer


def as_it_is(reply: Reply, data: bytes) -> web.Response:
    """`data` with the reply's status."""
    kept = ("Content-Type", "Retry-After", "Allow")
    headers = {name: reply.headers[name] for name in kept if name in reply.headers}
    return web.Response(status=reply.status, body=data, headers=headers)
