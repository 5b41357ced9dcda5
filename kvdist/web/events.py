"""Server-sent events: an answer in pieces.

Owns:   the response under way.
Knows nothing of: what events say.
"""

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web


class EventStream:
    """Its status and head are out when it has begun."""

    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response

    @classmethod
    async def begin(cls, request: web.Request) -> "EventStream":
        """Status 200 goes out."""
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        await response.prepare(request)
        return cls(response)

    async def send(self, body: Mapping[str, Any]) -> None:
        """One event."""
        data = json.dumps(body, ensure_ascii=False).encode()
        await self._response.write(b"data: " + data + b"\n\n")

    async def end(self, *, done: bool = False) -> web.StreamResponse:
        """It is over; with `done` it says that it was all."""
        if done:
            await self._response.write(b"data: [DONE]\n\n")
        await self._response.write_eof()
        return self._response
