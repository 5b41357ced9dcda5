"""A node that says what a real one would and computes nothing, and a router in front of it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from kvdist.router.exchange import Cluster
from kvdist.router.http import Api
from kvdist.router.metrics import Metrics
from kvdist.router.nodes import Node, Nodes
from kvdist.router.registry import Registry
from kvdist.router.releases import Releases
from kvdist.router.settings import RouterSettings
from kvdist.router.upstream import Upstream, new_session
from kvdist.web.membership import Role

Json = dict[str, Any]
LONG = "a prompt that is long enough to be computed by a node of its own, as most are"
TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
SOUND = "/v1/audio/transcriptions"


@dataclass(eq=False)
class FakeNode:
    """What it is asked is in `asked`; `says` are the pieces of its answers."""

    name: str
    role: Role
    model: str = "tiny"
    says: list[str] = field(default_factory=lambda: ["one ", "two ", "three"])
    cached: int = 0
    remote: int = 0
    #: In this order, before any real answer.
    statuses: list[int] = field(default_factory=list)
    #: A ticket, in answer to a prefill.
    ticket: Json | None = field(default_factory=lambda: {"kvdist": {"lease": "aa" * 16}})
    #: A stream is cut after so many pieces.
    cut_after: int | None = None
    #: Between the pieces of a stream.
    pause_s: float = 0.0
    #: A stream ends with an error event after so many pieces.
    fails_after: int | None = None

    def __post_init__(self) -> None:
        self.asked: list[Json] = []
        self.headers: list[Mapping[str, str]] = []
        #: Of those that this one, a prefill node, has computed.
        self.transfers: set[str] = set()
        #: Whose prompts this one reads along.
        self.others: Iterable[FakeNode] = ()
        self.released: list[Json] = []
        #: So many get no answer, and change nothing.
        self.loses_releases = 0
        #: False: this one has all that it needs.
        self.reads_along = True
        self.num_cancelled = 0
        #: Answers wait for it; streams after their first piece.
        self.go_on = asyncio.Event()
        self.go_on.set()
        #: Nothing is said, not even a status, before it.
        self.begin = asyncio.Event()
        self.begin.set()
        self.is_ready = True
        app = web.Application()
        app.router.add_post(TEXT, self._completion)
        app.router.add_post(CHAT, self._completion)
        app.router.add_post(SOUND, self._completion)
        app.router.add_post("/v1/kv/release", self._release)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/ready", self._ready)
        self.server = TestServer(app)

    async def start(self) -> Self:
        await self.server.start_server()
        return self

    @property
    def url(self) -> str:
        return str(self.server.make_url("")).rstrip("/")

    @property
    def params(self) -> list[Json | None]:
        return [body.get("kv_transfer_params") for body in self.asked]

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        self.asked.append(body)
        self.headers.append(request.headers.copy())
        try:
            await self.begin.wait()
            if self.statuses:
                return self._error(request, self.statuses.pop(0))
            params = body.get("kv_transfer_params") or {}
            transfer = params.get("kvdist", {}).get("transfer_id")
            if params.get("do_remote_decode"):
                self.transfers.add(transfer)
                return web.json_response(self._whole("") | {"kv_transfer_params": self.ticket})
            if transfer is not None and self.reads_along:
                await until(lambda: any(transfer in node.transfers for node in self.others))
            if body.get("stream"):
                return await self._stream(request, body)
            await self.go_on.wait()
            answer = self._whole("".join(self.says)) | {"kv_transfer_params": None}
            return web.json_response(answer)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise

    async def _stream(self, request: web.Request, body: Json) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number, piece in enumerate(self.says):
            if number == self.cut_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            if number == self.fails_after:
                await self._event(response, {"error": {"message": "failed", "code": 500}})
                return response
            await self._event(
                response, {"choices": [{"text": piece}], "kv_transfer_params": {"secret": 1}}
            )
            await self.go_on.wait()
            await asyncio.sleep(self.pause_s)
        if (body.get("stream_options") or {}).get("include_usage"):
            await self._event(response, {"choices": [], "usage": self._usage()})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _event(self, response: web.StreamResponse, chunk: Json) -> None:
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    def _whole(self, text: str) -> Json:
        return {
            "id": "x",
            "model": self.model,
            "choices": [{"text": text, "finish_reason": "length"}],
            "usage": self._usage(),
        }

    def _usage(self) -> Json:
        details = {"cached_tokens": self.cached, "remote_tokens": self.remote}
        return {"prompt_tokens": 100, "completion_tokens": 3, "prompt_tokens_details": details}

    def _error(self, request: web.Request, status: int) -> web.Response:
        """Status 0: none, since the connection is lost."""
        if status == 0:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.json_response({"error": {"message": f"{self.name} says no"}}, status=status)

    async def _release(self, request: web.Request) -> web.Response:
        if self.loses_releases:
            self.loses_releases -= 1
            return self._error(request, 0)
        self.released.append((await request.json())["kv_transfer_params"])
        return web.json_response({})

    async def _tokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"tokens": [1, 2], "asked": await request.json()})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.model}]})

    async def _ready(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_ready else 503)


async def _body(request: web.Request) -> Json:
    """A form's parameters are JSON, all else of it is text, but for the file."""
    if request.content_type == "application/json":
        body: Json = await request.json()
        return body
    fields: Json = dict(await request.post())
    fields["file"] = fields["file"].file.read()
    if "kv_transfer_params" in fields:
        fields["kv_transfer_params"] = json.loads(fields["kv_transfer_params"])
    return fields


@dataclass
class Running:
    api: Api
    nodes: Nodes
    registry: Registry
    http: "TestClient[Any, Any]"

    def requests(self, name: str) -> int:
        """That are at this node now."""
        node = self.nodes.get(name)
        return 0 if node is None else node.num_requests

    async def post(self, body: Any, path: str = TEXT, **more: Any) -> tuple[int, Json]:
        async with self.http.post(path, json=body, **more) as response:
            return response.status, await response.json()

    async def events(self, body: Json) -> list[str]:
        """What a stream says."""
        async with self.http.post(TEXT, json=body | {"stream": True}) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            text = await response.text()
        return [event.removeprefix("data: ") for event in text.split("\n\n") if event]

    async def number(self, name: str) -> float:
        """Of /metrics, without the prefix that all have."""
        async with self.http.get("/metrics") as response:
            for line in (await response.text()).splitlines():
                if line.startswith(f"kvdist:router_{name} "):
                    return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no {name}")


@asynccontextmanager
async def running(*fakes: FakeNode, **settings: Any) -> AsyncIterator[Running]:
    """A router in this process that knows `fakes`; all of it ends with the block."""
    nodes = Nodes()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(50))
        for fake in fakes:
            stack.push_async_callback((await fake.start()).server.close)
            node = Node(fake.name, fake.role, fake.url, fake.model)
            node.heard(ready=True, role=fake.role)
            nodes.put(node)
            fake.others = fakes
        upstream = Upstream(await stack.enter_async_context(new_session()))
        metrics = Metrics(nodes)
        releases = Releases(upstream, metrics)
        registry = Registry(nodes, asyncio.get_running_loop().time())
        told = RouterSettings(**settings)
        api = Api(Cluster(nodes, upstream, releases, metrics, told), registry)
        server = TestServer(api.app)
        await server.start_server()
        stack.push_async_callback(server.close)
        stack.push_async_callback(releases.close)
        http = await stack.enter_async_context(TestClient(server))
        yield Running(api, nodes, registry, http)


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that is about to be so."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def pair(**decode: Any) -> tuple[FakeNode, FakeNode]:
    """Prefill and decode. To be called where a loop runs."""
    return FakeNode("p0", "prefill", says=[]), FakeNode("d0", "decode", **decode)
