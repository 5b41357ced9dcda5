"""Errors as clients see them: OpenAI's shape, and a status that says whose they are.

Owns:   the names of an error's fields.
Knows nothing of: routes.
Source: OpenAI's API.
"""

from http import HTTPStatus
from typing import Any, Final

import structlog
from aiohttp import web

from kvdist.errors import KvdistError, RequestTooLarge, UnknownModel
from kvdist.web.reading import BadField, status_of

_log = structlog.get_logger(__name__)

_ERROR_TYPES: Final = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
}


def error_body(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """An error's body."""
    kind = _ERROR_TYPES.get(
        HTTPStatus(status), "server_error" if status >= 500 else "invalid_request_error"
    )
    return {"error": {"message": message, "type": kind, "param": param, "code": code or status}}


def error_response(status: int, message: str) -> web.Response:
    """An error as a whole answer."""
    return web.json_response(error_body(status, message), status=status)


def refusal(error: KvdistError) -> web.Response:
    """What a request that ends with `error` is answered."""
    status, code, param, headers = status_of(error), None, None, {}
    match error:
        case BadField():
            param = error.param
        case RequestTooLarge():
            code = "context_length_exceeded"
        case UnknownModel():
            code, param = "model_not_found", "model"
        case _:
            pass
    if status == 503:
        headers["Retry-After"] = "1"
    if status == 500:
        _log.error("request failed", reason=str(error))
    body = error_body(status, str(error), param=param, code=code)
    return web.json_response(body, status=status, headers=headers)
