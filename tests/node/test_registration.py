"""What a node says to its registry, and what it makes of the answers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from structlog.testing import capture_logs

from kvdist.errors import ConfigError
from kvdist.node import registration as module
from kvdist.node.registration import Registration, Replaced
from kvdist.web.membership import Member

Answer = Callable[[], web.Response]


def member(node_id: str, **more: Any) -> Member:
    told: dict[str, Any] = {
        "incarnation": 3,
        "role": "both",
        "model": "m",
        "api": "http://h:1",
        "ready": True,
    }
    return Member.model_construct(node_id=node_id, control=f"tcp://{node_id}:2", **(told | more))


def members(*found: Member) -> web.Response:
    return web.json_response({"members": [one.model_dump() for one in found], "expires_s": 6.0})


class Registry:
    """Says what it is given to say."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.num_heard = 0
        self.left: list[str] = []

    async def heard(self, request: web.Request) -> web.Response:
        self.num_heard += 1
        return self.answer()

    async def leave(self, request: web.Request) -> web.Response:
        self.left.append(request.match_info["name"])
        return web.Response(status=204)


def talk(
    answer: Answer, conversation: Callable[[Registration, Registry], Awaitable[None]], name: str
) -> Registry:
    """The registration of a node of that name runs meanwhile."""
    registry = Registry(answer)

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/registry/nodes", registry.heard)
        app.router.add_delete("/registry/nodes/{name}", registry.leave)
        async with asyncio.timeout(20), TestServer(app) as server:
            found = Registration(str(server.make_url("/")))
            running = asyncio.create_task(found.run(lambda: member(name)))
            try:
                await conversation(found, registry)
            finally:
                running.cancel()
                await asyncio.wait([running])
                if not running.cancelled():
                    running.result()

    asyncio.run(main())
    return registry


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("name", ["n0", "a:b", "a/b", ".x?y#z"])
def test_it_hears_who_is_there_and_leaves_by_its_name(name: str) -> None:
    async def conversation(found: Registration, registry: Registry) -> None:
        await until(lambda: found.control_address("p0"))
        assert found.control_address("p0") == "tcp://p0:2"
        assert found.control_address("nobody") is None

    registry = talk(lambda: members(member("p0")), conversation, name)
    assert registry.left == [name]


def test_who_comes_later_is_heard_of_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that come at about the same time know each other long before the next regular word."""
    monkeypatch.setattr(module, "BEAT_S", 60.0)
    there = [member("d0")]

    async def conversation(found: Registration, registry: Registry) -> None:
        await until(lambda: found.control_address("d0"))
        there.append(member("p0"))
        await until(lambda: found.control_address("p0"))

    talk(lambda: members(*there), conversation, "d0")


@pytest.mark.parametrize(
    ("answer", "event"),
    [
        (lambda: web.Response(status=401), "registry refuses this node"),
        (lambda: web.Response(status=503), "registry doesn't answer"),
        (lambda: web.Response(body=bytes(1 << 16)), "registry doesn't answer"),
    ],
)
def test_what_cannot_be_used_is_told_once(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, event: str
) -> None:
    monkeypatch.setattr(module, "_MAX_ANSWER", 1 << 10)

    async def conversation(found: Registration, registry: Registry) -> None:
        await until(lambda: registry.num_heard > 2)
        assert found.control_address("p0") is None

    with capture_logs() as logs:
        talk(answer, conversation, "n0")
    assert [log["event"] for log in logs] == [event]


def test_who_is_replaced_hears_it() -> None:
    async def conversation(found: Registration, registry: Registry) -> None:
        await until(lambda: registry.num_heard)
        await asyncio.sleep(0.05)

    with pytest.raises(Replaced, match="a later run of n0"):
        talk(lambda: web.Response(status=409), conversation, "n0")


@pytest.mark.parametrize("url", ["nonsense", "http://", "http://h:0", "ftp://h:1", "http://h:1/x"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError, match="http://HOST:PORT"):
        Registration(url)
