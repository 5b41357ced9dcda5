"""Which nodes a request goes to, what they are told, and what the client sees of it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.router.fake import CHAT, LONG, FakeNode, Json, Running, pair, running, until

Talk = Callable[[Running, FakeNode, FakeNode], Awaitable[None]]
BODY: Json = {"model": "tiny", "prompt": LONG, "max_tokens": 9, "seed": 7}
LEASE = {"kvdist": {"lease": "aa" * 16}}


def talk(conversation: Talk, **settings: Any) -> None:
    """With a prefill and a decode node behind the router."""

    async def main() -> None:
        prefill, decode = pair()
        async with running(prefill, decode, **settings) as router:
            await conversation(router, prefill, decode)

    asyncio.run(main())


def test_overlap_asks_both_at_once_under_one_transfer_id() -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        prefill.begin.clear()
        decode.begin.clear()
        asking = asyncio.create_task(router.post(BODY))
        await until(lambda: prefill.asked and decode.asked)
        prefill.begin.set()
        decode.begin.set()
        status, answer = await asking
        assert (status, answer["choices"][0]["text"]) == (200, "one two three")
        ours = prefill.params[0]
        assert ours is not None
        transfer = ours["kvdist"]["transfer_id"]
        assert len(transfer) == 32
        assert prefill.asked == [
            {
                **{"model": "tiny", "prompt": LONG, "seed": 7, "max_tokens": 1, "stream": False},
                "kv_transfer_params": {
                    "do_remote_decode": True,
                    "kvdist": {"transfer_id": transfer},
                },
            }
        ]
        expected = {
            "do_remote_prefill": True,
            "remote_engine_id": "p0",
            "kvdist": {"transfer_id": transfer},
        }
        assert decode.asked == [BODY | {"kv_transfer_params": expected}]
        assert not prefill.released

    talk(conversation)


def test_every_request_has_a_transfer_id_of_its_own() -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        for _ in range(3):
            await router.post(BODY)
        told = [params["kvdist"]["transfer_id"] for params in decode.params if params]
        assert len(set(told)) == 3

    talk(conversation)


def test_a_ticket_goes_from_prefill_to_decode_as_it_is() -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        prefill.begin.clear()
        asking = asyncio.create_task(router.post(BODY))
        await until(lambda: prefill.asked)
        assert not decode.asked
        prefill.begin.set()
        assert (await asking)[0] == 200
        (ours,) = prefill.params
        assert ours is not None and len(ours["kvdist"].pop("transfer_id")) == 32
        assert ours == {"do_remote_decode": True, "kvdist": {"read_along": False}}
        assert decode.asked == [BODY | {"kv_transfer_params": LEASE}]
        assert not prefill.released

    talk(conversation, overlap=False)


def test_a_prefill_that_leaves_nothing_to_fetch() -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        prefill.ticket = None
        assert (await router.post(BODY))[0] == 200
        assert decode.asked == [BODY]

    talk(conversation, overlap=False)


def test_what_is_about_the_output_is_not_asked_of_prefill() -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        messages = [{"role": "user", "content": [{"type": "text", "text": LONG}]}]
        body = {"messages": messages, "n": 4, "logprobs": True, "top_logprobs": 2, "unknown": "x"}
        body |= {"max_completion_tokens": 50, "temperature": 0}
        assert (await router.post(body, CHAT))[0] == 200
        del prefill.asked[0]["kv_transfer_params"]
        assert prefill.asked == [
            {
                **{"messages": messages, "unknown": "x", "temperature": 0, "stream": False},
                **{"max_tokens": 1, "max_completion_tokens": 1},
            }
        ]

    talk(conversation)


@pytest.mark.parametrize("overlap", [True, False])
def test_a_stream_hides_what_is_between_router_and_nodes(overlap: bool) -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        *chunks, last = await router.events(BODY)
        assert last == "[DONE]"
        assert [json.loads(chunk) for chunk in chunks] == [
            {"choices": [{"text": text}]} for text in decode.says
        ]
        assert decode.asked[0]["stream_options"] == {"include_usage": True}
        assert "stream_options" not in prefill.asked[0]

    talk(conversation, overlap=overlap)


def test_a_stream_tells_its_usage_if_it_is_wanted() -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        prefill.cached, decode.cached, decode.remote = 32, 16, 64
        body = BODY | {"stream_options": {"include_usage": True}}
        *_, usage, last = await router.events(body)
        assert last == "[DONE]"
        assert json.loads(usage)["usage"]["prompt_tokens_details"] == {
            "cached_tokens": 16,
            "remote_tokens": 64,
            "remote_cached_tokens": 16,
            "remote_computed_tokens": 48,
        }

    talk(conversation, overlap=False)


@pytest.mark.parametrize("stream", [True, False])
def test_each_prompt_token_is_counted_once(stream: bool) -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        prefill.cached, decode.cached, decode.remote = 32, 16, 64
        if stream:
            await router.events(BODY)
        else:
            _, answer = await router.post(BODY)
            details = answer["usage"]["prompt_tokens_details"]
            assert (details["remote_cached_tokens"], details["remote_computed_tokens"]) == (16, 48)
            assert "kv_transfer_params" not in answer
        for source, expected in (
            ("local_cache_hit", 16),
            ("remote_cache_hit", 16),
            ("remote_compute", 48),
            ("local_compute", 20),
        ):
            name = f'prompt_tokens_by_source_total{{source="{source}"}}'
            assert await router.number(name) == expected

    talk(conversation, overlap=False)


def test_a_client_says_nothing_about_transfers() -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        await router.post(BODY | {"kv_transfer_params": {"do_remote_prefill": True, "a": 1}})
        assert decode.params[0] is not None and "a" not in decode.params[0]
        await router.post({"prompt": "x", "kv_transfer_params": {"a": 1}})
        assert decode.params[1] is None

    talk(conversation)


def test_a_client_that_may_say_so_is_taken_at_its_word() -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        theirs = {"do_remote_prefill": True, "remote_engine_id": "elsewhere"}
        assert (await router.post(BODY | {"kv_transfer_params": theirs}))[0] == 200
        assert decode.params == [theirs] and not prefill.asked
        theirs = {"do_remote_decode": True}
        _, answer = await router.post(BODY | {"kv_transfer_params": theirs})
        assert prefill.params == [theirs]
        assert answer["kv_transfer_params"] == LEASE

    talk(conversation, allow_kv_transfer_params=True)


@pytest.mark.parametrize(
    ("body", "way"),
    [
        ({"prompt": "too short"}, "short"),
        ({"prompt": [1] * 15}, "short"),
        ({"prompt": [LONG, LONG]}, "several prompts"),
        ({"prompt": [[1] * 99, [2] * 99]}, "several prompts"),
    ],
)
def test_what_decode_does_by_itself(body: Json, way: str) -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        assert (await router.post(body))[0] == 200
        assert decode.asked == [body]
        assert not prefill.asked
        assert await router.number(f'tries_total{{way="{way}"}}') == 1

    talk(conversation)


@pytest.mark.parametrize("prompt", [[1] * 16, [[1] * 16], [LONG]])
def test_one_prompt_in_other_words(prompt: Any) -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        assert (await router.post({"prompt": prompt}))[0] == 200
        assert len(prefill.asked) == len(decode.asked) == 1

    talk(conversation)


def test_ids_and_keys_are_passed_on() -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        headers = {"X-Request-Id": "mine", "Authorization": "Bearer k", "X-Other": "no"}
        async with router.http.post("/v1/completions", json=BODY, headers=headers) as response:
            assert response.headers["X-Request-Id"] == "mine"
        for node in (prefill, decode):
            (told,) = node.headers
            assert (told["X-Request-Id"], told["Authorization"]) == ("mine", "Bearer k")
            assert "X-Other" not in told

    talk(conversation, api_key="k")


def test_numbers_and_letters_survive() -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        raw = b'{"prompt": "x", "seed": 123456789012345678901234567890, "a": "\\ud800", "b": 1e400}'
        async with router.http.post("/v1/completions", data=raw) as response:
            assert response.status == 200
        assert decode.asked == [json.loads(raw)]

    talk(conversation)


def test_who_has_both_roles_needs_nobody() -> None:
    async def main() -> None:
        one, other = FakeNode("b0", "both"), FakeNode("b1", "both")
        async with running(one, other) as router:
            for _ in range(4):
                assert (await router.post(BODY))[0] == 200
            assert one.params == other.params == [None, None]
            assert await router.number('tries_total{way="both"}') == 4

    asyncio.run(main())


def test_who_has_both_roles_computes_prompts_for_those_that_only_decode() -> None:
    async def main() -> None:
        one, decode = FakeNode("b0", "both"), FakeNode("d0", "decode")
        async with running(one, decode) as router:
            one.begin.clear()
            busy = asyncio.create_task(router.post(BODY))
            await until(lambda: one.asked)
            assert (await asyncio.wait_for(router.post({"prompt": "x"}), 9))[0] == 200
            asking = asyncio.create_task(router.post(BODY))
            await until(lambda: len(one.asked) == 2)
            one.begin.set()
            assert (await asking)[0] == (await busy)[0] == 200
            assert (one.params[1] or {})["do_remote_decode"]

    asyncio.run(main())


def test_requests_go_where_there_are_fewest() -> None:
    async def main() -> None:
        decodes = [FakeNode(f"d{i}", "decode") for i in range(3)]
        async with running(*decodes) as router:
            for node in decodes:
                node.begin.clear()
            async with asyncio.TaskGroup() as tasks:
                for i in range(9):
                    tasks.create_task(router.post(BODY))
                    while sum(len(node.asked) for node in decodes) <= i:  # noqa: ASYNC110
                        await asyncio.sleep(0.002)
                assert [len(node.asked) for node in decodes] == [3, 3, 3]
                for node in decodes:
                    node.begin.set()

    asyncio.run(main())


def test_prefill_nodes_take_turns_when_all_come_at_once() -> None:
    async def main() -> None:
        nodes = [FakeNode("p0", "prefill"), FakeNode("p1", "prefill"), FakeNode("d0", "decode")]
        async with running(*nodes) as router:
            for _, answer in await asyncio.gather(*(router.post(BODY) for _ in range(20))):
                assert answer["choices"]
            assert [len(node.asked) for node in nodes] == [10, 10, 20]

    asyncio.run(main())


def test_requests_go_to_nodes_of_their_model() -> None:
    async def main() -> None:
        nodes = [
            FakeNode(f"{role[0]}-{model}", role, model)
            for role in ("prefill", "decode")
            for model in ("red", "blue")
        ]
        async with running(*nodes) as router:
            for _ in range(3):
                assert (await router.post(BODY | {"model": "blue"}))[0] == 200
            assert {node.name: len(node.asked) for node in nodes} == {
                **{"p-red": 0, "p-blue": 3, "d-red": 0, "d-blue": 3}
            }
            await router.post(BODY | {"model": "green"})  # some node says that there is no such one
            assert sum(len(node.asked) for node in nodes if node.role == "decode") == 4

    asyncio.run(main())
