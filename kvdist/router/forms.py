"""A client's request with a file, and what nodes are sent instead.

Owns:   nothing.
Knows nothing of: what is in the file, which nodes there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Json as InJson

from kvdist.connector.params import Lend, write_params
from kvdist.ids import NodeId, TransferId
from kvdist.router.bodies import PARAMS, Asked, Form, Json
from kvdist.web.reading import read_form

_FILE = "file"


class _Fields(BaseModel):
    """All others are passed on."""

    model_config = ConfigDict(extra="allow")

    kv_transfer_params: InJson[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class AskedAloud(Asked):
    """A request to write down what is said in `file`."""

    file: bytes

    @classmethod
    async def receive(cls, request: web.Request, *, allow_params: bool) -> Self:
        """From what a client sends. Raises: InvalidRequest; HTTPException."""
        async with read_form(request, _Fields, _FILE) as (told, file):
            params = told.kv_transfer_params if allow_params else None
            return cls(told.model_extra or {}, params, file.read())

    @property
    def num_chars(self) -> int:
        """It is long: an encoder's work is always worth more than its way."""
        return len(self.file)

    @property
    def can_overlap(self) -> bool:
        """Nobody reads along with an encoder."""
        return False

    @property
    def wants_json(self) -> bool:
        """Or a text."""
        return self.body.get("response_format") != "text"

    def alone(self) -> Form:
        """See `Asked.alone`."""
        return self._form({} if self.params is None else {PARAMS: self.params})

    def for_prefill(
        self, transfer: TransferId, hint: NodeId | None = None, *, reads_along: bool
    ) -> Form:
        """See `Asked.for_prefill`."""
        lend = write_params(Lend(transfer, reads_along, hint))
        return self._form({"stream": "false", "response_format": "json", PARAMS: lend})

    def for_decode(self, ticket: Json) -> Form:
        """See `Asked.for_decode`."""
        return self._form({PARAMS: ticket})

    def _form(self, more: Mapping[str, Any]) -> Form:
        return Form({**self.body, **more}, _FILE, self.file)
