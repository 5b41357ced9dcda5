"""The router's own routes: models, health, the registry over HTTP, what every answer has."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from openai import AsyncOpenAI
from structlog.testing import capture_logs

import kvdist
from kvdist.errors import InvalidRequest
from kvdist.router.upstream import as_json
from tests.router.fake import LONG, FakeNode, Json, Running, pair, running

Talk = Callable[[Running], Awaitable[None]]
MEMBER: Json = {
    **{"node_id": "n0", "incarnation": 3, "role": "both", "model": "tiny", "ready": True},
    **{"api": "http://127.0.0.1:1", "control": "tcp://127.0.0.1:2"},
}
NODES = "/registry/nodes"


def talk(conversation: Talk, *fakes: FakeNode, **settings: Any) -> None:
    async def main() -> None:
        async with running(*fakes, **settings) as router:
            await conversation(router)

    asyncio.run(main())


async def status(router: Running, method: str, path: str, **more: Any) -> int:
    async with router.http.request(method, path, **more) as response:
        return response.status


def test_the_sdk_of_openai() -> None:
    async def main() -> None:
        async with running(*pair()) as router:
            url = str(router.http.make_url("/v1"))
            async with AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
                assert [model.id async for model in client.models.list()] == ["tiny"]
                stream = await client.completions.create(model="tiny", prompt=LONG, stream=True)
                assert [chunk.choices[0].text async for chunk in stream] == [
                    "one ",
                    "two ",
                    "three",
                ]
                whole = await client.completions.create(model="tiny", prompt=LONG)
                assert whole.usage is not None and whole.usage.prompt_tokens == 100

    asyncio.run(main())


def test_models_of_all_nodes() -> None:
    async def main() -> None:
        fakes = [FakeNode("a", "prefill", "red"), FakeNode("b", "decode", "red")]
        async with running(*fakes, FakeNode("c", "both", "blue")) as router:
            async with router.http.get("/v1/models") as response:
                told = await response.json()
            assert [model["id"] for model in told["data"]] == ["red", "blue"]
            async with router.http.get("/v1/models/blue") as response:
                assert await response.json() == {"id": "blue"}
            assert await status(router, "GET", "/v1/models/green") == 404

    asyncio.run(main())


def test_tokens_are_for_any_node() -> None:
    async def main() -> None:
        prefill, decode = pair()
        async with running(prefill, decode) as router:
            told, answer = await router.post({"prompt": "x", "kv_transfer_params": {}}, "/tokenize")
            assert (told, answer) == (200, {"tokens": [1, 2], "asked": {"prompt": "x"}})

    asyncio.run(main())


def test_without_nodes() -> None:
    async def conversation(router: Running) -> None:
        assert await status(router, "GET", "/health") == 200
        assert await status(router, "GET", "/ready") == 503
        assert await status(router, "GET", "/v1/models") == 503
        assert await status(router, "POST", "/tokenize", json={"prompt": "x"}) == 503
        async with router.http.get("/version") as response:
            assert await response.json() == {"version": kvdist.__version__}

    talk(conversation)


@pytest.mark.parametrize(
    ("roles", "without_prefill", "ready"),
    [
        ("d", "compute", True),
        ("d", "fail", False),
        ("pd", "fail", True),
        ("p", "compute", False),
        ("b", "fail", True),
    ],
)
def test_ready_means_that_some_node_can_answer(
    roles: str, without_prefill: str, ready: bool
) -> None:
    async def main() -> None:
        names: dict[str, Any] = {"p": "prefill", "d": "decode", "b": "both"}
        fakes = [FakeNode(role, names[role]) for role in roles]
        async with running(*fakes, without_prefill=without_prefill) as router:
            assert await status(router, "GET", "/ready") == (200 if ready else 503)
            for node in router.nodes:
                node.heard(ready=False, role=node.role)
            assert await status(router, "GET", "/ready") == 503

    asyncio.run(main())


def test_a_node_registers_and_leaves() -> None:
    async def conversation(router: Running) -> None:
        told, answer = await router.post(MEMBER | {"more": 1}, NODES)
        assert told == 200
        assert answer == {"members": [MEMBER], "expires_s": 20.0}
        assert await status(router, "GET", "/ready") == 200
        async with router.http.get(NODES) as response:
            assert (await response.json())["nodes"] == [
                {
                    **{"node_id": "n0", "role": "both", "model": "tiny", "ready": True},
                    **{"api": "http://127.0.0.1:1", "knows_all": True, "requests": 0},
                }
            ]
        told, answer = await router.post(MEMBER | {"incarnation": 2}, NODES)
        assert (told, answer["error"]["message"]) == (409, "a later run of n0 is there")
        assert await status(router, "DELETE", f"{NODES}/n0?incarnation=2") == 204
        assert await status(router, "GET", "/ready") == 200
        assert await status(router, "DELETE", f"{NODES}/n0?incarnation=3") == 204
        assert await status(router, "GET", "/ready") == 503
        assert (await router.post(MEMBER, NODES))[0] == 409

    talk(conversation)


def test_what_a_registry_does_not_take() -> None:
    async def conversation(router: Running) -> None:
        told, answer = await router.post(MEMBER | {"role": "cook"}, NODES)
        assert (told, answer["error"]["param"]) == (400, "role")
        assert await status(router, "POST", NODES, data=b"\xff") == 400
        assert await status(router, "DELETE", f"{NODES}/n0") == 400
        assert await status(router, "DELETE", f"{NODES}/n0?incarnation=x") == 400
        assert await status(router, "POST", NODES, data=b"x" * 2000) == 413
        assert not list(router.nodes)

    talk(conversation, max_body_bytes=1000)


def test_a_registry_with_a_token() -> None:
    async def conversation(router: Running) -> None:
        for given in ({}, {"Authorization": "Bearer other"}, {"Authorization": "Bearer client"}):
            assert await status(router, "POST", NODES, json=MEMBER, headers=given) == 401
            assert await status(router, "GET", NODES, headers=given) == 401
        given = {"Authorization": "Bearer secret"}
        assert await status(router, "POST", NODES, json=MEMBER, headers=given) == 200
        assert await status(router, "POST", "/v1/completions", json={}, headers=given) == 401

    talk(conversation, registry_token="secret", api_key="client")


def test_a_registry_without_a_token_is_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def conversation(router: Running) -> None:
        monkeypatch.setattr("aiohttp.web.Request.remote", "10.1.2.3")
        told, answer = await router.post(MEMBER, NODES)
        assert told == 403 and "registry token" in answer["error"]["message"]

    talk(conversation)


def test_ids_and_log_lines() -> None:
    async def conversation(router: Running) -> None:
        with capture_logs() as lines:
            async with router.http.post("/v1/completions", data=b"{") as response:
                assert response.status == 400
                assert response.headers["X-Request-Id"]
                assert (await response.json())["error"]["type"] == "invalid_request_error"
            await status(router, "GET", "/health")
            await router.post(MEMBER, NODES)
        told = [(line["log_level"], line["path"]) for line in lines if line["event"] == "answered"]
        assert told == [("info", "/v1/completions"), ("debug", "/health"), ("debug", NODES)]

    talk(conversation)


def test_what_is_counted_of_nodes() -> None:
    async def main() -> None:
        async with running(*pair()) as router:
            labels = '{node="p0",role="prefill"}'
            assert await router.number(f"node_ready{labels}") == 1
            assert await router.number(f"node_requests{labels}") == 0

    asyncio.run(main())


# -- bodies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
@pytest.mark.parametrize("coding", ["utf-16", "utf-32", "utf-8-sig"])
def test_json_that_is_not_utf_8_is_none_here_as_at_nodes(path: str, coding: str) -> None:
    async def conversation(router: Running) -> None:
        body = json.dumps({"prompt": LONG}).encode(coding)
        async with router.http.post(path, data=body) as response:
            error = (await response.json())["error"]
        assert (response.status, error["type"]) == (400, "invalid_request_error")

    talk(conversation)


def test_lists_in_lists_in_lists() -> None:
    async def main() -> None:
        async with running(*pair()) as router:
            body = b'{"prompt": ' + b"[" * 400 + b"]" * 400 + b"}"
            async with router.http.post("/v1/completions", data=body) as response:
                assert response.status == 200  # whether that is a prompt is a node's to say

    asyncio.run(main())
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match="too deep"):
        as_json({"prompt": deep})
