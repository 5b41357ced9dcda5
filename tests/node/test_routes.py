"""Routes that compute nothing, and what every answer has."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

import kvdist
from tests.node.running import TOKENIZER, Running, running

Talk = Callable[[Running], Awaitable[None]]


def talk(conversation: Talk, **settings: Any) -> None:
    async def main() -> None:
        async with running(**settings) as node:
            await conversation(node)

    asyncio.run(main())


def test_tokens_of_a_text_and_back() -> None:
    async def conversation(node: Running) -> None:
        status, answer = await node.post("/tokenize", {"prompt": "abc \N{SNOWMAN}"})
        tokens = TOKENIZER.encode("abc \N{SNOWMAN}")
        assert (status, answer["tokens"], answer["count"]) == (200, tokens, len(tokens))
        assert answer["max_model_len"] == 256
        status, answer = await node.post("/detokenize", {"tokens": tokens})
        assert (status, answer) == (200, {"prompt": "abc \N{SNOWMAN}"})
        status, answer = await node.post(
            "/tokenize", {"messages": [{"role": "user", "content": "hi"}]}
        )
        text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        assert (status, answer["tokens"]) == (200, TOKENIZER.encode(text))
        assert (await node.post("/tokenize", {"prompt": "x", "model": "no"}))[0] == 404

    talk(conversation)


def test_version() -> None:
    async def conversation(node: Running) -> None:
        async with node.http.get("/version") as response:
            assert await response.json() == {"version": kvdist.__version__}

    talk(conversation)


@pytest.mark.parametrize(
    ("given", "is_kept"), [("my-id.7", True), ("x" * 129, False), ("no spaces", False)]
)
def test_each_request_has_an_id_and_a_log_line(given: str, is_kept: bool) -> None:
    async def conversation(node: Running) -> None:
        headers = {"X-Request-Id": given}
        body = {"prompt": "secret words", "max_tokens": 1}
        with capture_logs() as lines:
            async with node.http.post("/v1/completions", json=body, headers=headers) as response:
                name = response.headers["X-Request-Id"]
                assert (name == given) is is_kept
                assert (await response.json())["id"] == f"cmpl-{name}"
        (line,) = (line for line in lines if line["event"] == "answered")
        assert (line["status"], line["path"]) == (200, "/v1/completions")
        assert "secret" not in str(lines)

    talk(conversation)


def test_two_requests_of_one_id_are_two_requests() -> None:
    async def conversation(node: Running) -> None:
        async def one() -> int:
            headers = {"X-Request-Id": "same"}
            body = {"prompt": "x", "max_tokens": 20}
            async with node.http.post("/v1/completions", json=body, headers=headers) as response:
                await response.read()
                return response.status

        async with asyncio.TaskGroup() as tasks:
            asking = [tasks.create_task(one()) for _ in range(5)]
        assert [task.result() for task in asking] == [200] * 5

    talk(conversation)


def test_usage_in_every_chunk_if_it_is_wanted() -> None:
    async def conversation(node: Running) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = {"prompt": "x", "max_tokens": 4, "stream": True, "stream_options": options}
        async with node.http.post("/v1/completions", json=body) as response:
            assert response.content_type == "text/event-stream"
            text = await response.text()
        events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        assert events.pop() == "[DONE]"
        told = [json.loads(event)["usage"]["completion_tokens"] for event in events]
        assert told == [1, 2, 3, 4, 4]

    talk(conversation)


def test_a_key_that_is_no_text_is_wrong_and_no_more() -> None:
    async def conversation(node: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", node.http.port)
        writer.write(b"GET /v1/models HTTP/1.0\r\nAuthorization: Bearer \xff\xfe\r\n\r\n")
        assert b" 401 " in await reader.readline()
        writer.close()
        await writer.wait_closed()

    talk(conversation, api_key="secret")
