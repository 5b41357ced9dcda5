"""The routes of a node, and what every answer has: a request id, a log line, errors in one shape.

Owns:   the aiohttp application.
Knows nothing of: steps, tokens; `completions` answers what takes them.
"""

import hmac
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import structlog
from aiohttp import web

import kvdist
from kvdist.errors import KvdistError, RequestTooLarge, UnknownModel
from kvdist.node import answers
from kvdist.node.completions import Completions
from kvdist.node.engine import Engine
from kvdist.node.models import Models
from kvdist.node.reading import REQUEST_ID, BadField, read_body, status_of
from kvdist.node.schema import DetokenizeRequest, TokenizeRequest
from kvdist.node.tokenizer import Tokenizer

_log = structlog.get_logger(__name__)

_Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

#: What a client may call its request.
_ID = re.compile(r"[\w.:-]{1,128}")
#: Need no key, so that whatever watches the node needs none.
_OPEN = frozenset({"/health", "/ready", "/metrics", "/version"})


class Api:
    """The application is `app`."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        models: Models,
        *,
        max_body_bytes: int = 32 << 20,
        api_key: str | None = None,
    ) -> None:
        self._engine, self._tokenizer, self._models = engine, tokenizer, models
        self._api_key = api_key
        completions = Completions(engine, tokenizer, models)
        self.app = web.Application(
            client_max_size=max_body_bytes, middlewares=[self._named, self._shaped, self._keyed]
        )
        self.app.add_routes(
            [
                web.post("/v1/completions", completions.text),
                web.post("/v1/chat/completions", completions.chat),
                web.get("/v1/models", self._list_models),
                web.get("/v1/models/{name:.+}", self._show_model),
                web.post("/tokenize", self._tokenize),
                web.post("/detokenize", self._detokenize),
                web.get("/health", self._health),
                web.get("/ready", self._ready),
                web.get("/metrics", self._metrics),
                web.get("/version", self._version),
            ]
        )

    # -- what all have -------------------------------------------------------------------------

    @web.middleware
    async def _named(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Each request has an id, and leaves a line in the log."""
        given = request.headers.get("X-Request-Id", "")
        request[REQUEST_ID] = given if _ID.fullmatch(given) else uuid.uuid4().hex
        began_s, status = time.monotonic(), 499  # the client was gone before there was one
        with structlog.contextvars.bound_contextvars(request=request[REQUEST_ID]):
            try:
                response = await handler(request)
                status = response.status
                return response
            finally:
                _log.info(
                    "answered",
                    method=request.method,
                    path=request.path,
                    status=status,
                    seconds=round(time.monotonic() - began_s, 4),
                )

    @web.middleware
    async def _shaped(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Errors have OpenAI's shape, and a status that says whose they are."""
        try:
            response = await handler(request)
        except KvdistError as error:
            response = _refusal(error)
        except web.HTTPException as error:
            message = (error.text or error.reason).removeprefix(f"{error.status}: ")
            response = web.json_response(answers.error(error.status, message), status=error.status)
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        except web.RequestPayloadError as error:
            message = f"the body can't be read: {error}"
            response = web.json_response(answers.error(400, message), status=400)
        except (ConnectionError, TimeoutError):
            raise  # of the client's own connection
        except Exception:  # noqa: BLE001
            _log.exception("a bug in a handler")
            response = web.json_response(answers.error(500, "internal error"), status=500)
        if not response.prepared:
            response.headers["X-Request-Id"] = request[REQUEST_ID]
        return response

    @web.middleware
    async def _keyed(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Only who has the key is let in, where there is one."""
        if self._api_key is not None and request.path not in _OPEN:
            given = request.headers.get("Authorization", "").encode()
            if not hmac.compare_digest(given, f"Bearer {self._api_key}".encode()):
                raise web.HTTPUnauthorized(text="the API key is missing or wrong")
        return await handler(request)

    # -- routes --------------------------------------------------------------------------------

    async def _list_models(self, request: web.Request) -> web.Response:
        models = [self._model(name) for name in self._models.names]
        return web.json_response({"object": "list", "data": models})

    async def _show_model(self, request: web.Request) -> web.Response:
        return web.json_response(self._model(self._models.check(request.match_info["name"])))

    def _model(self, name: str) -> answers.Json:
        return {
            "id": name,
            "object": "model",
            "created": self._models.created,
            "owned_by": "kvdist",
            "max_model_len": self._models.max_model_len,
        }

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await read_body(request, TokenizeRequest)
        self._models.check(body.model)
        text, special = body.prompt, body.add_special_tokens
        if body.messages is not None:
            text = self._tokenizer.chat(
                [message.plain() for message in body.messages],
                add_generation_prompt=body.add_generation_prompt,
                more={},
            )
            special = special or False
        tokens = self._tokenizer.encode(text or "", add_special_tokens=special is not False)
        return web.json_response(
            {
                "count": len(tokens),
                "max_model_len": self._models.max_model_len,
                "tokens": tokens,
            }
        )

    async def _detokenize(self, request: web.Request) -> web.Response:
        body = await read_body(request, DetokenizeRequest)
        self._models.check(body.model)
        return web.json_response({"prompt": self._tokenizer.decode(body.tokens)})

    async def _health(self, request: web.Request) -> web.Response:
        """Alive: it can still do what it is for."""
        return web.Response(status=200 if self._engine.lost is None else 503)

    async def _ready(self, request: web.Request) -> web.Response:
        """New work is taken."""
        return web.Response(status=200 if self._engine.ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._engine.metrics.text(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": kvdist.__version__})


def _refusal(error: KvdistError) -> web.Response:
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
    body = answers.error(status, str(error), param=param, code=code)
    return web.json_response(body, status=status, headers=headers)
