"""What came in a request's body, checked; and which status an error is.

Owns:   the mapping of errors to statuses.
Knows nothing of: routes.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import IO, Final, TypeVar

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
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

#: A body that takes longer isn't coming: whoever sends it a byte at a time hears 408.
BODY_S = 60.0

#: What aiohttp raises for forms that are none.
_UNREADABLE: Final = (
    ValueError,
    LookupError,
    RuntimeError,
    AssertionError,
    HttpProcessingError,
    zlib.error,
)

_Body = TypeVar("_Body", bound=BaseModel)


class BadField(InvalidRequest):
    """A field of a body that is not what the schema says."""

    def __init__(self, message: str, param: str | None) -> None:
        super().__init__(message)
        #: Its name.
        self.param = param


async def read_bytes(request: web.Request) -> bytes:
    """The body. Raises: HTTPRequestEntityTooLarge; HTTPRequestTimeout."""
    async with _in_time():
        return await request.read()


async def read_body(request: web.Request, kind: type[_Body]) -> _Body:
    """The body as `kind`. Raises: BadField; HTTPRequestEntityTooLarge; HTTPRequestTimeout."""
    data = await read_bytes(request)
    return _checked(lambda: kind.model_validate_json(data))


@asynccontextmanager
async def read_form(
    request: web.Request, kind: type[_Body], file_name: str
) -> AsyncIterator[tuple[_Body, IO[bytes]]]:
    """The fields of a multipart form, and the file of that name, while it is open.

    Raises: BadField; HTTPRequestEntityTooLarge; HTTPRequestTimeout.
    """
    if request.content_type != "multipart/form-data":
        raise BadField("the body is multipart/form-data, with a file", None)
    try:
        async with _in_time():
            form = await request.post()
    except _UNREADABLE as error:
        raise BadField(f"the form can't be read: {error}", None) from None
    with ExitStack() as files:
        for value in form.values():
            if isinstance(value, web.FileField):
                files.enter_context(value.file)
        file = form.get(file_name)
        if not isinstance(file, web.FileField):
            raise BadField(f"{file_name}: a file is required", file_name)
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        yield _checked(lambda: kind.model_validate(fields)), file.file


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(BODY_S):
            yield
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body wasn't there after {BODY_S} seconds") from None


def _checked(validate: Callable[[], _Body]) -> _Body:
    """What `validate` returns. Raises: BadField."""
    try:
        return validate()
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
