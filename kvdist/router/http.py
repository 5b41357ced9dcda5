"""The routes of a router.

Owns:   the aiohttp application.
Knows nothing of: how requests are answered.
"""

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

import kvdist
from kvdist.errors import InvalidRequest, NodeFailed, Unavailable, UnknownModel
from kvdist.router.bodies import Asked, Json
from kvdist.router.completions import Completions, passed_on
from kvdist.router.exchange import Cluster
from kvdist.router.nodes import Node
from kvdist.router.registry import Registry
from kvdist.router.relay import as_it_is, read_answer
from kvdist.web.membership import EXPIRES_S, Member, Members
from kvdist.web.middleware import OPEN, keyed, named, shaped, shows
from kvdist.web.reading import read_body, read_bytes

_REGISTRY = "/registry/nodes"
#: To tell models, or tokens of a text.
SMALL_S = 30.0


class Api:
    """The application is `app`."""

    def __init__(self, cluster: Cluster, registry: Registry) -> None:
        self._cluster, self._registry = cluster, registry
        self._token = cluster.settings.registry_token
        self.completions = Completions(cluster)
        self.app = web.Application(
            client_max_size=cluster.settings.max_body_bytes,
            middlewares=[named, shaped, keyed(cluster.settings.api_key, _is_open)],
        )
        self.app.add_routes(
            [
                web.post("/v1/completions", self.completions.answer),
                web.post("/v1/chat/completions", self.completions.answer),
                web.post("/v1/audio/transcriptions", self.completions.write_down),
                web.post("/v1/audio/translations", self.completions.write_down),
                web.get("/v1/models", self._list_models),
                web.get("/v1/models/{name:.+}", self._show_model),
                web.post("/tokenize", self._pass_on),
                web.post("/detokenize", self._pass_on),
                web.get("/health", self._health),
                web.get("/ready", self._ready),
                web.get("/metrics", self._metrics),
                web.get("/version", self._version),
                web.get(_REGISTRY, self._list_nodes),
                web.post(_REGISTRY, self._register),
                web.delete(_REGISTRY + "/{name}", self._leave),
            ]
        )

    @property
    def ready(self) -> bool:
        """Some node can answer a request."""
        needs_prefill = self._cluster.settings.without_prefill == "fail"
        can_answer = self._cluster.nodes.can_answer(needs_prefill=needs_prefill)
        return can_answer and not self.completions.is_draining

    # -- what every node knows -----------------------------------------------------------------

    async def _list_models(self, request: web.Request) -> web.Response:
        models = await self._models(request)
        return web.json_response({"object": "list", "data": list(models.values())})

    async def _show_model(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if (model := (await self._models(request)).get(name)) is None:
            raise UnknownModel(f"the model {name!r} does not exist")
        return web.json_response(model)

    async def _models(self, request: web.Request) -> dict[str, Json]:
        """By name, of all nodes: one is asked for each model."""
        found: dict[str, Json] = {}
        asked: dict[str | None, Node] = {}
        for node in self._cluster.nodes:
            if node.ready:
                asked.setdefault(node.model, node)
        if not asked:
            raise Unavailable("no node takes requests now")
        for node in asked.values():
            async with (
                _in_time(node),
                self._cluster.upstream.get(node, "/v1/models", passed_on(request)) as reply,
            ):
                data = read_answer(await reply.whole()).get("data")
            for model in data if isinstance(data, list) else ():
                if isinstance(model, dict) and isinstance(model.get("id"), str):
                    found.setdefault(model["id"], model)
        return found

    async def _pass_on(self, request: web.Request) -> web.Response:
        asked = Asked.read(await read_bytes(request), allow_params=False)
        if (node := self._cluster.nodes.any_of(asked.model)) is None:
            raise Unavailable("no node takes requests now")
        async with (
            _in_time(node),
            self._cluster.upstream.post(
                node, request.path, asked.body, passed_on(request)
            ) as reply,
        ):
            return as_it_is(reply, await reply.whole())

    # -- of its own ----------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.Response:
        """Alive."""
        return web.Response()

    async def _ready(self, request: web.Request) -> web.Response:
        """Requests are taken."""
        return web.Response(status=200 if self.ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._cluster.metrics.text(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": kvdist.__version__})

    # -- the registry --------------------------------------------------------------------------

    async def _register(self, request: web.Request) -> web.Response:
        self._check_token(request)
        member = await read_body(request, Member)
        self._registry.heard(member, asyncio.get_running_loop().time())
        told = Members(members=self._registry.members, expires_s=EXPIRES_S)
        self._registry.told(member.node_id)
        return web.json_response(text=told.model_dump_json())

    async def _leave(self, request: web.Request) -> web.Response:
        self._check_token(request)
        try:
            incarnation = int(request.query["incarnation"])
        except (KeyError, ValueError):
            raise InvalidRequest("incarnation is a whole number") from None
        self._registry.left(request.match_info["name"], incarnation)
        return web.Response(status=204)

    async def _list_nodes(self, request: web.Request) -> web.Response:
        self._check_token(request)
        nodes = list(self._cluster.nodes)
        shown = [
            {
                "node_id": node.name,
                "role": node.role,
                "model": node.model,
                "api": node.url,
                "ready": node.ready,
                "knows_all": all(map(node.knows, nodes)),
                "requests": node.num_requests,
            }
            for node in nodes
        ]
        return web.json_response({"nodes": shown})

    def _check_token(self, request: web.Request) -> None:
        """Prompts go to whoever registers: that is for those who have the token."""
        if self._token is None:
            if not _is_of_this_machine(request.remote):
                raise web.HTTPForbidden(
                    text="without a registry token only this machine's nodes may register"
                )
        elif not shows(request, self._token):
            raise web.HTTPUnauthorized(text="the registry token is missing or wrong")


@asynccontextmanager
async def _in_time(node: Node) -> AsyncIterator[None]:
    """For what needs no computing."""
    try:
        async with asyncio.timeout(SMALL_S):
            yield
    except TimeoutError:
        raise NodeFailed(f"{node} hasn't answered in {SMALL_S:g} s") from None


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(_REGISTRY)


def _is_of_this_machine(remote: str | None) -> bool:
    try:
        return ipaddress.ip_address(remote or "").is_loopback
    except ValueError:
        return False
