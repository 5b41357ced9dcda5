"""What every answer has: a request id, a log line, errors in one shape; and who is let in.

Owns:   which ids clients may choose.
Knows nothing of: routes but those that are open to all.
"""

import hmac
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from kvdist.errors import KvdistError
from kvdist.web.failures import error_response, refusal
from kvdist.web.reading import REQUEST_ID

_log = structlog.get_logger(__name__)

_Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

#: In logs: the client was gone before it had its answer.
GONE: Final = 499
#: What a client may call its request.
_ID = re.compile(r"[\w.:-]{1,128}")
#: Need no key, so that whatever watches a process needs none.
OPEN = frozenset({"/health", "/ready", "/metrics", "/version"})


@web.middleware
async def named(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Each request has an id, and leaves a line in the log; for debug, if it comes all the time."""
    given = request.headers.get("X-Request-Id", "")
    request[REQUEST_ID] = given if _ID.fullmatch(given) else uuid.uuid4().hex
    began_s, status = time.monotonic(), GONE
    with structlog.contextvars.bound_contextvars(request=request[REQUEST_ID]):
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            tell = _log.debug if _is_routine(request.path) else _log.info
            tell(
                "answered",
                method=request.method,
                path=request.path,
                status=status,
                seconds=round(time.monotonic() - began_s, 4),
            )


def _is_routine(path: str) -> bool:
    return path in OPEN or path.startswith("/registry/")


@web.middleware
async def shaped(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Errors have OpenAI's shape, and a status that says whose they are."""
    try:
        response = await handler(request)
    except KvdistError as error:
        response = refusal(error)
    except web.HTTPException as error:
        message = (error.text or error.reason).removeprefix(f"{error.status}: ")
        response = error_response(error.status, message)
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
    except web.RequestPayloadError as error:
        response = error_response(400, f"the body can't be read: {error}")
    except (ConnectionError, TimeoutError):  # of the client's own connection
        if not _is_gone(request):
            raise
        response = web.Response(status=GONE)  # which nobody hears
    except Exception:  # noqa: BLE001
        _log.exception("a bug in a handler")
        response = error_response(500, "internal error")
    if not response.prepared:
        response.headers["X-Request-Id"] = request[REQUEST_ID]
    return response


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def keyed(api_key: str | None, is_open: Callable[[str], bool] = OPEN.__contains__) -> Middleware:
    """Only who has the key is let in, where there is one; paths that are open need none."""

    @web.middleware
    async def keyed(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if api_key is not None and not is_open(request.path) and not shows(request, api_key):
            raise web.HTTPUnauthorized(text="the API key is missing or wrong")
        return await handler(request)

    return keyed


def shows(request: web.Request, secret: str) -> bool:
    """The request carries `secret` as its bearer token; takes as long whatever it carries."""
    given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
    return hmac.compare_digest(given, f"Bearer {secret}".encode())
