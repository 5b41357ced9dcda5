"""Requests to nodes.

Owns:   nothing; the connections are the session's, which the caller opens and closes.
Knows nothing of: what is asked.

What a node says is passed on; that it doesn't say anything, or that it is busy, is `NodeFailed`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import Final

import aiohttp

from kvdist.errors import InvalidRequest, NodeBusy, NodeFailed
from kvdist.router.bodies import Body, Form, Json
from kvdist.router.nodes import Node

_BUSY: Final = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
#: Said by what stands before a node.
_UNREACHED: Final = {HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT}
_MAX_ANSWER: Final = 64 << 20
_CONNECT_S: Final = 5.0
#: Nodes begin an answer that isn't streamed when they have all of it.
WHOLE_S = 60.0


class Reply:
    """What a node answers, from its status on."""

    def __init__(self, node: Node, response: aiohttp.ClientResponse) -> None:
        self._node, self._response = node, response
        self.status = response.status
        self.headers = response.headers
        self.is_stream = response.content_type == "text/event-stream"

    async def whole(self) -> bytes:
        """All of it, which has to be there soon after its head. Raises: NodeFailed."""
        try:
            async with asyncio.timeout(WHOLE_S):
                return await self._whole()
        except TimeoutError:
            raise NodeFailed(f"{self._node}: its answer wasn't there in {WHOLE_S:g} s") from None

    async def _whole(self) -> bytes:
        pieces, size = [], 0
        async for piece in self.pieces():
            pieces.append(piece)
            size += len(piece)
            if size > _MAX_ANSWER:
                raise NodeFailed(f"{self._node}: its answer has more than {_MAX_ANSWER} bytes")
        return b"".join(pieces)

    async def pieces(self) -> AsyncIterator[bytes]:
        """As they come. Raises: NodeFailed, if it ends before its end."""
        while True:
            with _mapped(self._node):
                piece = await self._response.content.readany()
            if not piece:
                return
            yield piece


class Upstream:
    """All nodes are asked through it."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    @asynccontextmanager
    async def post(
        self, node: Node, path: str, body: Body, headers: Mapping[str, str]
    ) -> AsyncIterator[Reply]:
        """What `node` answers. Leaving the block before its end cancels the request.

        Raises: NodeFailed, out of the block as well, as soon as the node is gone.
        """
        async with self._asked("POST", node, path, headers, body) as reply:
            if reply.status in _BUSY:
                raise NodeBusy(f"{node} answers with status {reply.status}")
            if reply.status in _UNREACHED:
                raise NodeFailed(f"{node} answers with status {reply.status}")
            yield reply

    @asynccontextmanager
    async def get(self, node: Node, path: str, headers: Mapping[str, str]) -> AsyncIterator[Reply]:
        """What `node` shows. Raises: NodeFailed, likewise."""
        async with self._asked("GET", node, path, headers, None) as reply:
            yield reply

    @asynccontextmanager
    async def _asked(
        self, method: str, node: Node, path: str, headers: Mapping[str, str], body: Body | None
    ) -> AsyncIterator[Reply]:
        async with node.asked():
            data: aiohttp.FormData | bytes | None = None
            if isinstance(body, Form):
                data = _as_form(body)
            elif body is not None:
                data = as_json(body)
                headers = {**headers, "Content-Type": "application/json"}
            with _mapped(node):
                response = await self._session.request(
                    method, node.url + path, data=data, headers=headers, allow_redirects=False
                )
            try:
                yield Reply(node, response)
            finally:
                response.close()  # of what is read to its end, the connection is kept


def new_session() -> aiohttp.ClientSession:
    """Nodes may take their time to answer, but not to be reached. To be closed by the caller."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept-Encoding": "identity"},
    )


def as_json(body: Json) -> bytes:
    """As it is sent. Raises: InvalidRequest for lists in lists that can only just be read."""
    try:
        return json.dumps(body).encode()
    except RecursionError:
        raise InvalidRequest("the body is too deep") from None


def _as_form(body: Form) -> aiohttp.FormData:
    form = aiohttp.FormData()
    for name, value in body.fields.items():
        form.add_field(name, value if isinstance(value, str) else json.dumps(value))
    form.add_field(body.file_name, body.file, filename=body.file_name)
    return form


@contextmanager
def _mapped(node: Node) -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, OSError) as error:
        node.is_suspect = True
        raise NodeFailed(f"{node}: {error or type(error).__name__}") from error
