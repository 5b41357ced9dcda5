"""The real OpenAI SDK, unmodified, against a node."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest

from tests.node.running import TOKENIZER, Running, perfect, running

Talk = Callable[[Running], Awaitable[None]]


def talk(conversation: Talk, **settings: Any) -> None:
    async def main() -> None:
        async with running(**settings) as node:
            await conversation(node)
            await asyncio.sleep(0)
        node.assert_nothing_held()

    asyncio.run(main())


def test_a_completion() -> None:
    async def conversation(node: Running) -> None:
        answer = await node.openai.completions.create(
            model="tiny", prompt="once upon a time", max_tokens=12, temperature=0
        )
        (choice,) = answer.choices
        assert choice.text == perfect("once upon a time", 12)
        assert choice.finish_reason == "length"
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (16, 12)
        assert answer.id.startswith("cmpl-")

    talk(conversation)


def test_a_chat() -> None:
    async def conversation(node: Running) -> None:
        answer = await node.openai.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=5
        )
        text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
        assert answer.choices[0].message.content == perfect(text, 5)
        assert answer.choices[0].message.role == "assistant"
        assert answer.object == "chat.completion"

    talk(conversation)


def test_a_chat_goes_on_as_long_as_there_is_room() -> None:
    async def conversation(node: Running) -> None:
        answer = await node.openai.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hello"}]
        )
        assert answer.usage is not None and answer.usage.total_tokens == 256

    talk(conversation)


def test_streams_say_what_whole_answers_say() -> None:
    async def conversation(node: Running) -> None:
        stream: Any = await node.openai.completions.create(
            model="tiny",
            prompt=["one", "two"],
            n=2,
            max_tokens=9,
            stream=True,
            stream_options={"include_usage": True},
        )
        texts, ends = [""] * 4, [""] * 4
        usage: Any = None
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                ends[choice.index] = choice.finish_reason or ends[choice.index]
            usage = chunk.usage
        assert texts == [perfect("one", 9)] * 2 + [perfect("two", 9)] * 2
        assert ends == ["length"] * 4
        assert (usage.prompt_tokens, usage.completion_tokens) == (6, 36)

    talk(conversation)


def test_a_chat_stream() -> None:
    async def conversation(node: Running) -> None:
        stream = await node.openai.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
            max_completion_tokens=6,
            stream=True,
        )
        chunks = [chunk async for chunk in stream]
        deltas = [chunk.choices[0].delta for chunk in chunks]
        assert deltas[0].role == "assistant" and deltas[1].role is None
        text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
        assert "".join(delta.content or "" for delta in deltas) == perfect(text, 6)
        assert chunks[-1].choices[0].finish_reason == "length"

    talk(conversation)


def test_stop_strings_end_a_sequence_before_them() -> None:
    said = perfect("abc", 40)
    stop = said[10:13]

    async def conversation(node: Running) -> None:
        for stream in (False, True):
            answer: Any = await node.openai.completions.create(
                model="tiny", prompt="abc", max_tokens=40, stop=["never", stop], stream=stream
            )
            chunks = [chunk async for chunk in answer] if stream else [answer]
            assert "".join(chunk.choices[0].text for chunk in chunks) == said[:10]
            assert chunks[-1].choices[0].finish_reason == "stop"
            assert chunks[-1].choices[0].stop_reason == stop
        answer = await node.openai.completions.create(
            model="tiny",
            prompt="abc",
            max_tokens=40,
            stop=stop,
            extra_body={"include_stop_str_in_output": True},
        )
        assert answer.choices[0].text == said[:13]
        numbers = await node.numbers()
        assert numbers['vllm:request_success_total{finished_reason="stop"}'] == 3
        assert numbers["vllm:generation_tokens_total"] < 3 * 30  # of 40: the rest isn't computed

    talk(conversation)


def test_stop_tokens() -> None:
    tokens = TOKENIZER.encode(perfect("abc", 8))

    async def conversation(node: Running) -> None:
        answer = await node.openai.completions.create(
            model="tiny", prompt="abc", max_tokens=40, extra_body={"stop_token_ids": [tokens[5]]}
        )
        cut = tokens.index(tokens[5])
        assert answer.choices[0].text == TOKENIZER.decode(tokens[:cut])
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].model_extra == {"stop_reason": tokens[5]}
        assert answer.usage is not None and answer.usage.completion_tokens == cut + 1

    talk(conversation)


def test_logprobs() -> None:
    async def conversation(node: Running) -> None:
        whole = await node.openai.completions.create(
            model="tiny", prompt="abc", max_tokens=3, logprobs=2
        )
        told = whole.choices[0].logprobs
        assert told is not None and told.tokens is not None
        assert "".join(told.tokens) == whole.choices[0].text
        assert told.token_logprobs == [-0.5] * 3 and told.text_offset == [0, 1, 2]
        assert told.top_logprobs is not None and len(told.top_logprobs[0]) == 2
        stream = await node.openai.completions.create(
            model="tiny", prompt="abc", max_tokens=3, logprobs=2, stream=True
        )
        offsets = [chunk.choices[0].logprobs async for chunk in stream]
        assert [one.text_offset for one in offsets if one] == [[0], [1], [2]]
        chat = await node.openai.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "x"}],
            max_tokens=2,
            logprobs=True,
            top_logprobs=3,
        )
        said = chat.choices[0].logprobs
        assert said is not None and said.content is not None
        assert [len(one.top_logprobs) for one in said.content] == [3, 3]
        assert said.content[0].bytes == list(said.content[0].token.encode())

    talk(conversation)


def test_what_was_computed_before_is_found_and_told() -> None:
    prompt = "a prefix that two requests have in common"

    async def cached(node: Running, **more: Any) -> int | None:
        answer = await node.openai.completions.create(
            model="tiny", prompt=prompt, max_tokens=1, extra_body=more
        )
        assert answer.choices[0].text == perfect(prompt, 1)
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens

    async def conversation(node: Running) -> None:
        found = [await cached(node), await cached(node)]
        found += [await cached(node, cache_salt="mine"), await cached(node, cache_salt="mine")]
        assert found == [0, 40, 0, 40]
        numbers = await node.numbers()
        assert numbers["vllm:prefix_cache_queries_total"] == 4 * len(prompt)
        assert numbers["vllm:prefix_cache_hits_total"] == 80
        assert numbers['vllm:prompt_tokens_by_source_total{source="local_cache_hit"}'] == 80

    async def without(node: Running) -> None:
        assert [await cached(node), await cached(node)] == [0, 0]

    talk(conversation)
    talk(without, enable_prefix_caching=False)


def test_models() -> None:
    async def conversation(node: Running) -> None:
        assert [model.id async for model in node.openai.models.list()] == ["tiny"]
        assert (await node.openai.models.retrieve("tiny")).owned_by == "kvdist"
        with pytest.raises(openai.NotFoundError) as found:
            await node.openai.models.retrieve("other")
        assert found.value.code == "model_not_found"

    talk(conversation)


def test_errors_are_the_sdks_own() -> None:
    async def conversation(node: Running) -> None:
        create = node.openai.completions.create
        with pytest.raises(openai.NotFoundError):
            await create(model="nope", prompt="x")
        with pytest.raises(openai.BadRequestError) as bad:
            await create(model="tiny", prompt="x", max_tokens=-3)
        assert bad.value.param == "max_tokens"
        with pytest.raises(openai.BadRequestError) as long:
            await create(model="tiny", prompt="x" * 300, stream=True)
        assert long.value.code == "context_length_exceeded"
        node.engine.drain()
        with pytest.raises(openai.InternalServerError) as late:
            await create(model="tiny", prompt="x")
        assert late.value.status_code == 503

    talk(conversation)


def test_a_key() -> None:
    async def conversation(node: Running) -> None:
        await node.openai.models.list()
        async with node.http.get("/v1/models") as response:
            assert response.status == 401
            assert (await response.json())["error"]["type"] == "authentication_error"
        async with node.http.get("/health") as response:
            assert response.status == 200

    talk(conversation, api_key="secret")


def test_a_hundred_streams() -> None:
    async def one(node: Running, i: int) -> None:
        prompt = f"stream number {i} has a prompt of its own"
        stream = await node.openai.completions.create(
            model="tiny", prompt=prompt, max_tokens=20, stream=True
        )
        text = "".join([chunk.choices[0].text async for chunk in stream])
        assert text == perfect(prompt, 20)

    async def conversation(node: Running) -> None:
        async with asyncio.TaskGroup() as tasks:
            for i in range(100):
                tasks.create_task(one(node, i))
        numbers = await node.numbers()
        assert numbers["vllm:generation_tokens_total"] == 2000
        assert numbers["vllm:num_preemptions_total"] > 0

    talk(conversation)
