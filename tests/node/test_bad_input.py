"""Whatever clients send, they hear an honest status and an error in one shape."""

import asyncio
import json
from typing import Any

import pytest

from kvdist.node.tokenizer import Tokenizer
from tests.node.running import TOKENIZER, running

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
SAID = [{"role": "user", "content": "x"}]


def ask(path: str, data: bytes, method: str = "POST", **settings: Any) -> tuple[int, Any]:
    async def main() -> tuple[int, Any]:
        async with running(**settings) as node:
            async with node.http.request(method, path, data=data) as response:
                answer = response.status, await response.json()
            node.assert_nothing_held()
        return answer

    return asyncio.run(main())


WRONG: list[tuple[str, Any, str | None]] = [
    (TEXT, {}, "prompt"),
    (TEXT, {"prompt": ""}, None),
    (TEXT, {"prompt": []}, "prompt"),
    (TEXT, {"prompt": [[]]}, "prompt"),
    (TEXT, {"prompt": [1, "x"]}, "prompt"),
    (TEXT, {"prompt": [-1]}, "prompt"),
    (TEXT, {"prompt": [999]}, None),
    (TEXT, {"prompt": {"a": 1}}, "prompt"),
    (TEXT, {"prompt": None}, "prompt"),
    (TEXT, {"prompt": ["x"] * 65, "n": 2}, None),
    (TEXT, {"prompt": ["x", ""]}, None),
    (TEXT, {"prompt": "x", "max_tokens": 0}, "max_tokens"),
    (TEXT, {"prompt": "x", "max_tokens": 1.5}, "max_tokens"),
    (TEXT, {"prompt": "x", "max_tokens": "7"}, "max_tokens"),
    (TEXT, {"prompt": "x", "max_tokens": 10**30}, "max_tokens"),
    (TEXT, {"prompt": "x", "max_tokens": 300}, None),
    (TEXT, {"prompt": "x", "n": 0}, "n"),
    (TEXT, {"prompt": "x", "n": 100_000}, "n"),
    (TEXT, {"prompt": "x", "stream": "yes"}, "stream"),
    (TEXT, {"prompt": "x", "stream_options": {"include_usage": True}}, None),
    (TEXT, {"prompt": "x", "stop": ""}, "stop"),
    (TEXT, {"prompt": "x", "stop": ["x"] * 65}, "stop"),
    (TEXT, {"prompt": "x", "stop_token_ids": [-3]}, "stop_token_ids"),
    (TEXT, {"prompt": "x", "temperature": -1}, "temperature"),
    (TEXT, {"prompt": "x", "temperature": 2.5}, "temperature"),
    (TEXT, {"prompt": "x", "top_p": 0}, "top_p"),
    (TEXT, {"prompt": "x", "top_k": -2}, "top_k"),
    (TEXT, {"prompt": "x", "min_p": 2}, "min_p"),
    (TEXT, {"prompt": "x", "seed": 1 << 70}, "seed"),
    (TEXT, {"prompt": "x", "presence_penalty": 3}, "presence_penalty"),
    (TEXT, {"prompt": "x", "repetition_penalty": 0}, "repetition_penalty"),
    (TEXT, {"prompt": "x", "repetition_penalty": 1e9}, "repetition_penalty"),
    (TEXT, {"prompt": "x", "logprobs": 100}, "logprobs"),
    (TEXT, {"prompt": "x", "echo": True}, None),
    (TEXT, {"prompt": "x", "suffix": "y"}, None),
    (TEXT, {"prompt": "x", "best_of": 3}, None),
    (TEXT, {"prompt": "x", "logit_bias": {"1": 1}}, None),
    (TEXT, {"prompt": "x", "min_tokens": 2}, None),
    (TEXT, {"prompt": "x", "min_tokens": 2, "ignore_eos": True, "stop": "y"}, None),
    (TEXT, {"prompt": "x", "cache_salt": ""}, "cache_salt"),
    (TEXT, {"prompt": "x", "cache_salt": "s" * 5000}, "cache_salt"),
    (TEXT, {"prompt": "x", "priority": 1.5}, "priority"),
    (CHAT, {}, "messages"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": "hello"}, "messages"),
    (CHAT, {"messages": [{"content": "x"}]}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": 7}]}, "messages"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages",
    ),
    (CHAT, {"messages": SAID, "tools": [{"type": "function"}]}, None),
    (CHAT, {"messages": SAID, "response_format": {"type": "json_object"}}, "response_format"),
    (CHAT, {"messages": SAID, "top_logprobs": 2}, None),
    (CHAT, {"messages": SAID, "logprobs": True, "top_logprobs": 99}, "top_logprobs"),
    ("/tokenize", {}, None),
    ("/tokenize", {"prompt": "x", "messages": SAID}, None),
    ("/detokenize", {"tokens": ["x"]}, "tokens"),
]


@pytest.mark.parametrize(("path", "body", "param"), WRONG)
def test_a_field_that_is_wrong(path: str, body: Any, param: str | None) -> None:
    status, answer = ask(path, json.dumps(body).encode())
    assert status == 400
    error = answer["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["message"]
    assert error["code"] in (400, "context_length_exceeded")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": ' + b"[" * 100_000,
        b"x" * 10_000,
    ],
)
def test_what_is_no_json_object(data: bytes) -> None:
    status, answer = ask(TEXT, data)
    assert status == 400 and answer["error"]["type"] == "invalid_request_error"


def test_an_unknown_model() -> None:
    for path, body in ((TEXT, {"prompt": "x"}), (CHAT, {"messages": SAID})):
        status, answer = ask(path, json.dumps({"model": "no", **body}).encode())
        assert status == 404
        assert answer["error"]["code"] == "model_not_found"
        assert answer["error"]["param"] == "model"


def test_an_unknown_route_and_a_wrong_method() -> None:
    status, answer = ask("/v1/nothing", b"{}")
    assert (status, answer["error"]["type"]) == (404, "not_found_error")
    status, answer = ask(TEXT, b"", method="GET")
    assert (status, answer["error"]["type"]) == (405, "invalid_request_error")


def test_a_body_that_is_too_large() -> None:
    data = json.dumps({"prompt": "x" * 2000}).encode()
    status, answer = ask(TEXT, data, max_body_bytes=1000)
    assert (status, answer["error"]["type"]) == (413, "invalid_request_error")


def test_a_prompt_that_no_sequence_has_room_for() -> None:
    status, answer = ask(TEXT, json.dumps({"prompt": "x" * 256, "max_tokens": 1}).encode())
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


def test_a_body_that_is_not_what_its_head_says() -> None:
    async def main() -> None:
        async with running() as node:
            headers = {"Content-Encoding": "gzip"}
            async with node.http.post(TEXT, data=b"no gzip", headers=headers) as response:
                assert response.status == 400
                assert (await response.json())["error"]["type"] == "invalid_request_error"

    asyncio.run(main())


def test_what_nobody_asked_for_has_room() -> None:
    status, answer = ask(TEXT, json.dumps({"prompt": "x" * 250}).encode())
    assert status == 200 and answer["usage"]["completion_tokens"] == 6


def test_fields_that_nobody_knows_are_left_unread() -> None:
    body = {"prompt": "x", "max_tokens": 1, "user": "u", "store": False, "whatever": [1]}
    body |= {"min_tokens": 1, "ignore_eos": True}
    status, answer = ask(TEXT, json.dumps(body).encode())
    assert status == 200 and answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("prompt", ["fine ~", [5, 60]])
def test_a_token_that_the_tokenizer_knows_and_the_model_does_not(prompt: str | list[int]) -> None:
    tokenizer = Tokenizer(
        TOKENIZER._vocabulary,
        chat_template=None,
        special={},
        eos_token_ids=frozenset(),
        vocab_size=50,
    )
    data = json.dumps({"prompt": prompt}).encode()
    status, answer = ask(TEXT, data, tokenizer=tokenizer)
    assert status == 400 and "which ends with 49" in answer["error"]["message"]
