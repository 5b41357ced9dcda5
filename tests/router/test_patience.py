"""Whoever keeps the router waiting: clients that don't send, nodes that don't say, or a bit."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from kvdist.router import http, upstream
from kvdist.web import reading
from tests.router.fake import LONG, TEXT, FakeNode, Json, Running, pair, running, until

BODY: Json = {"prompt": LONG, "max_tokens": 9}
BOTH_WAYS = pytest.mark.parametrize("overlap", [True, False])


class Trickling(FakeNode):
    """Says less than it is asked for, and goes on to say it."""

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        is_stream = bool(self.asked[-1].get("stream"))
        kind = "text/event-stream" if is_stream else "application/json"
        response = web.StreamResponse(headers={"Content-Type": kind})
        await response.prepare(request)
        try:
            if is_stream:
                await self._event(response, {"choices": [{"text": "one "}]})
            while True:
                await response.write(b" ")
                await asyncio.sleep(0.01)
        except (asyncio.CancelledError, ConnectionError):
            self.num_cancelled += 1
            raise

    async def _tokenize(self, request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        raise AssertionError


def talk(
    conversation: Callable[[Running], Awaitable[None]], *fakes: FakeNode, **settings: Any
) -> None:
    async def main() -> None:
        async with running(*fakes, **settings) as router:
            await conversation(router)

    asyncio.run(main())


@pytest.mark.parametrize("path", [TEXT, "/tokenize", "/registry/nodes"])
def test_a_client_that_sends_its_body_a_byte_at_a_time(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(reading, "BODY_S", 0.2)

    async def conversation(router: Running) -> None:
        async def body() -> Any:
            for _ in range(1000):
                yield b" "
                await asyncio.sleep(0.02)

        async with router.http.post(path, data=body()) as response:
            answer = await response.json()
        assert (response.status, answer["error"]["code"]) == (408, 408)

    talk(conversation)


@BOTH_WAYS
def test_nodes_that_do_not_answer(overlap: bool) -> None:
    async def conversation(router: Running) -> None:
        status, answer = await router.post(BODY)
        assert (status, answer["error"]["message"]) == (503, "no answer for 0.3 s")
        await until(lambda: router.requests("p0") == router.requests("d0") == 0)

    async def main() -> None:
        prefill, decode = pair()
        decode.begin.clear()
        async with running(prefill, decode, overlap=overlap, answer_s=0.3) as router:
            await conversation(router)
            await until(lambda: decode.num_cancelled)

    asyncio.run(main())


def test_a_stream_whose_next_event_does_not_come_whole() -> None:
    async def main() -> None:
        decode = Trickling("d0", "decode")
        async with running(decode, answer_s=0.3) as router:
            first, failed = await router.events(BODY)
            assert "one " in first and "no answer for 0.3 s" in failed
            await until(lambda: decode.num_cancelled)

    asyncio.run(main())


def test_a_stream_may_take_longer_than_each_of_its_events() -> None:
    async def main() -> None:
        decode = FakeNode("d0", "decode", says=["one "] * 12)
        decode.pause_s = 0.05
        async with running(decode, answer_s=0.4) as router:
            assert (await router.events(BODY))[-1] == "[DONE]"

    asyncio.run(main())


@BOTH_WAYS
def test_an_answer_that_does_not_come_whole(monkeypatch: pytest.MonkeyPatch, overlap: bool) -> None:
    monkeypatch.setattr(upstream, "WHOLE_S", 0.2)

    async def main() -> None:
        prefill, good = pair()
        bad = Trickling("d1", "decode")
        bad_prefill = Trickling("p1", "prefill")
        async with running(bad_prefill, bad, prefill, good, overlap=overlap) as router:
            for _ in range(2):
                status, answer = await router.post(BODY)
                assert (status, answer["choices"][0]["text"]) == (200, "one two three")
            await until(lambda: bad.num_cancelled or bad_prefill.num_cancelled)

    asyncio.run(main())


def test_a_node_that_does_not_tell_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "SMALL_S", 0.2)

    async def main() -> None:
        async with running(Trickling("d0", "decode")) as router:
            status, answer = await router.post({"prompt": "x"}, "/tokenize")
            assert (status, answer["error"]["code"]) == (502, 502)

    asyncio.run(main())
