"""What came in a request's body, checked; and which status an error is.

Owns:   the mapping of errors to statuses.
Knows nothing of: routes.
"""

from typing import Final, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from kvdist.errors import (
    InvalidRequest,
    KvdistError,
    NodeFailed,
    Superseded,
    Unavailable,
    UnknownModel,
)

#: What a request is called in logs and answers.
REQUEST_ID: Final = web.RequestKey("request_id", str)

_Body = TypeVar("_Body", bound=BaseModel)


class BadField(InvalidRequest):
    """A field of a body that is not what the schema says."""

    def __init__(self, message: str, param: str | None) -> None:
        super().__init__(message)
        #: Its name.
        self.param = param


async def read_body(request: web.Request, kind: type[_Body]) -> _Body:
    """The body as `kind`. Raises: BadField; HTTPRequestEntityTooLarge."""
    data = await request.read()
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = str(first["loc"][0]) if first["loc"] else None  # the rest may name our own types
        message = first["msg"].removeprefix("Value error, ")
        raise BadField(f"{param}: {message}" if param else message, param) from None


def status_of(error: KvdistError) -> int:
    """The HTTP status that tells whose fault it is."""
    match error:
        case UnknownModel():
            return 404
        case InvalidRequest():
            return 400
        case Superseded():
            return 409
        case NodeFailed():
            return 502
        case Unavailable():
            return 503
        case _:
            return 500
