"""The routes of a node.

Owns:   the aiohttp application.
Knows nothing of: steps, tokens; `completions` answers what takes them.
"""

from typing import TYPE_CHECKING, Final

from aiohttp import web

import kvdist
from kvdist.connector.messages import Ticket
from kvdist.connector.params import ByTransfer, read_params
from kvdist.errors import InvalidRequest
from kvdist.node.answers import Json
from kvdist.node.completions import Completions
from kvdist.node.defaults import SamplingDefaults
from kvdist.node.engine import Engine
from kvdist.node.ledger import ledger
from kvdist.node.models import Models
from kvdist.node.schema import DetokenizeRequest, ReleaseRequest, TokenizeRequest
from kvdist.node.tokenizer import Tokenizer
from kvdist.web.middleware import keyed, named, shaped
from kvdist.web.reading import BadField, read_body

if TYPE_CHECKING:
    from kvdist.node.transcriptions import Transcriptions

#: For whoever asks for a ledger at rest.
_LONGEST_WAIT_S: Final = 60.0


class Api:
    """The application is `app`."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        models: Models,
        transcriptions: "Transcriptions | None" = None,
        *,
        defaults: SamplingDefaults,
        max_body_bytes: int = 32 << 20,
        api_key: str | None = None,
    ) -> None:
        self._engine, self._tokenizer, self._models = engine, tokenizer, models
        completions = Completions(engine, tokenizer, models, defaults)
        hears = transcriptions is not None
        transcribe = transcriptions.transcribe if transcriptions is not None else _is_deaf
        translate = transcriptions.translate if transcriptions is not None else _is_deaf
        self.app = web.Application(
            client_max_size=max_body_bytes, middlewares=[named, shaped, keyed(api_key)]
        )
        self.app.add_routes(
            [
                web.post("/v1/completions", _only_hears if hears else completions.text),
                web.post("/v1/chat/completions", _only_hears if hears else completions.chat),
                web.post("/v1/audio/transcriptions", transcribe),
                web.post("/v1/audio/translations", translate),
                web.get("/v1/models", self._list_models),
                web.get("/v1/models/{name:.+}", self._show_model),
                web.post("/tokenize", self._tokenize),
                web.post("/detokenize", self._detokenize),
                web.get("/health", self._health),
                web.get("/ready", self._ready),
                web.get("/metrics", self._metrics),
                web.get("/version", self._version),
                web.get("/debug/ledger", self._ledger),
                web.post("/v1/kv/release", self._release),
            ]
        )

    # -- routes --------------------------------------------------------------------------------

    async def _list_models(self, request: web.Request) -> web.Response:
        models = [self._model(name) for name in self._models.names]
        return web.json_response({"object": "list", "data": models})

    async def _show_model(self, request: web.Request) -> web.Response:
        return web.json_response(self._model(self._models.check(request.match_info["name"])))

    def _model(self, name: str) -> Json:
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

    async def _ledger(self, request: web.Request) -> web.Response:
        """What is held; `?wait_s=`: when all is over, if that isn't longer."""
        try:
            wait_s = float(request.query.get("wait_s", 0))
        except ValueError:
            raise BadField("wait_s is a number of seconds", "wait_s") from None
        return web.json_response(await ledger(self._engine, min(max(wait_s, 0.0), _LONGEST_WAIT_S)))

    async def _release(self, request: web.Request) -> web.Response:
        """Nobody will come for what a prefill has left here, or computes."""
        body = await read_body(request, ReleaseRequest)
        exchange, lent = self._engine.exchange, read_params(body.kv_transfer_params)
        if exchange is None or not isinstance(lent, Ticket | ByTransfer):
            raise BadField("no ticket of this node, and no transfer", "kv_transfer_params")
        if lent.node != exchange.settings.node_id:
            raise BadField(f"a ticket or a transfer of {lent.node}", "kv_transfer_params")
        exchange.give_back(lent)
        return web.json_response({})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": kvdist.__version__})


async def _is_deaf(request: web.Request) -> web.Response:
    raise InvalidRequest("this model doesn't hear: ask /v1/completions or /v1/chat/completions")


async def _only_hears(request: web.Request) -> web.Response:
    raise InvalidRequest("this model answers to sound alone: ask /v1/audio/transcriptions")
