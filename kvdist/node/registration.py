"""A node tells its registry that it is there, and hears who else is.

Owns:   what the registry said last.
Knows nothing of: what a registry does with it; links.
Source: `kvdist.web.membership` has the fields and the routes.
"""

import asyncio
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

import structlog
from aiohttp import ClientError, ClientResponse, ClientResponseError, ClientSession, ClientTimeout
from pydantic import ValidationError

from kvdist.errors import ConfigError
from kvdist.ids import NodeId
from kvdist.web.membership import BEAT_S, Member, Members, read_url

_log = structlog.get_logger(__name__)

#: Where nodes come and go there are more to come soon, who want to know each other.
_FIRST_PAUSE_S: Final = 0.1
_MAX_ANSWER: Final = 8 << 20
_TIMEOUT = ClientTimeout(total=2 * BEAT_S)


class Replaced(ConfigError):
    """A later run of this node is there: this one has to end (T21)."""


class Registration:
    """It is also `kvdist.links.members.Members`."""

    def __init__(self, registry: str, token: str | None = None) -> None:
        """Raises: ConfigError for an address that is none."""
        self._nodes = f"{read_url(registry)}/registry/nodes"
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._members: dict[NodeId, Member] = {}
        self._is_heard = True
        self._pause_s = _FIRST_PAUSE_S

    def control_address(self, node: NodeId) -> str | None:
        """See `Members`."""
        member = self._members.get(node)
        return None if member is None else member.control

    async def run(self, me: Callable[[], Member]) -> None:
        """Tell it again and again what `me` says, until cancelled. Raises: Replaced."""
        async with ClientSession(headers=self._headers, timeout=_TIMEOUT) as session:
            try:
                while True:
                    await self._beat(session, me())
                    await asyncio.sleep(self._pause_s)
                    self._pause_s = min(2 * self._pause_s, BEAT_S)
            except asyncio.CancelledError:
                await self._leave(session, me())
                raise

    async def _beat(self, session: ClientSession, me: Member) -> None:
        try:
            async with session.post(self._nodes, json=me.model_dump()) as answer:
                if answer.status == 409:
                    raise Replaced(f"a later run of {me.node_id} is there")
                answer.raise_for_status()
                members = Members.model_validate_json(await _read(answer))
        except (ClientError, TimeoutError, ValidationError) as error:
            if self._is_heard:
                is_refused = isinstance(error, ClientResponseError) and error.status < 500
                event = "registry refuses this node" if is_refused else "registry doesn't answer"
                _log.warning(event, registry=self._nodes, reason=str(error))
            self._is_heard = False  # who was there is still believed to be
            return
        self._is_heard = True
        found = {member.node_id: member for member in members.members}
        if found.keys() != self._members.keys():
            self._pause_s = _FIRST_PAUSE_S
        self._members = found

    async def _leave(self, session: ClientSession, me: Member) -> None:
        try:
            async with asyncio.timeout(1):
                await session.delete(
                    f"{self._nodes}/{quote(me.node_id, safe='')}",
                    params={"incarnation": str(me.incarnation)},
                )
        except (ClientError, TimeoutError):
            pass  # it finds out by itself


async def _read(answer: ClientResponse) -> bytes:
    """All of it; of more than any registry says, so much that it can't be read."""
    pieces, room = [], _MAX_ANSWER
    while room > 0 and (piece := await answer.content.read(room)):
        pieces.append(piece)
        room -= len(piece)
    return b"".join(pieces)
