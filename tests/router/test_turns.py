"""A conversation's next turn: it goes where the last one was, whose node is named to prefill."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from kvdist.router import nodes as choices, turns as module
from kvdist.router.bodies import Asked
from kvdist.router.nodes import Node
from kvdist.router.turns import Turn, Turns, chain_of
from tests.router.fake import CHAT, LONG, TEXT, FakeNode, Json, running

ANSWER = {"role": "assistant", "content": "So it is."}
BOTH_WAYS = pytest.mark.parametrize("overlap", [True, False])


def chat(*said: str, **more: Any) -> Json:
    """A conversation so far."""
    messages: list[Json] = []
    for content in said:
        messages += [{"role": "user", "content": content}, ANSWER]
    return {"model": "tiny", "messages": messages[:-1], "max_tokens": 4, **more}


def text(prompt: str | list[int], **more: Any) -> Json:
    return {"model": "tiny", "prompt": prompt, "max_tokens": 4, **more}


def hints(prefills: Iterable[FakeNode]) -> list[Any]:
    """Whom they were told of."""
    return [(params or {}).get("remote_engine_id") for one in prefills for params in one.params]


def cluster() -> tuple[list[FakeNode], list[FakeNode]]:
    return (
        [FakeNode(f"p{i}", "prefill", says=[]) for i in range(3)],
        [FakeNode(f"d{i}", "decode") for i in range(3)],
    )


@BOTH_WAYS
@pytest.mark.parametrize(
    ("path", "turns"),
    [
        (CHAT, [chat(LONG), chat(LONG, "Why?"), chat(LONG, "Why?", "And then?")]),
        (TEXT, [text(LONG * 5), text(LONG * 5 + "So. Why?"), text(LONG * 5 + "So. Why? Oh." * 40)]),
        (TEXT, [text([1] * 70), text([1] * 70 + [2] * 9), text([1] * 70 + [2] * 90)]),
    ],
)
def test_it_goes_where_the_last_one_was(path: str, turns: list[Json], overlap: bool) -> None:
    async def main() -> None:
        prefills, decodes = cluster()
        async with running(*prefills, *decodes, overlap=overlap) as router:
            for body in turns:
                assert (await router.post(body, path))[0] == 200
                await router.post(text("another's, which takes another node for itself " * 6))
            (decode,) = [one for one in decodes if len(one.asked) >= 3]
            own = [params for params in hints(prefills) if params]
            assert own == [decode.name] * 2

    asyncio.run(main())


@pytest.mark.parametrize(
    "other",
    [
        chat("Something else that is long enough for a node of its own, as most are", "Why?"),
        chat(LONG, "Why?", model="large"),
        chat(LONG, "Why?", cache_salt="mine"),
        chat(LONG),
    ],
)
def test_what_goes_on_from_nothing_has_no_hint(other: Json) -> None:
    async def main() -> None:
        prefills, decodes = cluster()
        async with running(*prefills, *decodes) as router:
            await router.post(chat(LONG), CHAT)
            await router.post(other, CHAT)
            assert hints(prefills) == [None, None]

    asyncio.run(main())


def test_a_node_that_has_gone_is_no_hint() -> None:
    async def main() -> None:
        prefills, decodes = cluster()
        async with running(*prefills, *decodes) as router:
            await router.post(chat(LONG), CHAT)
            (first,) = [one for one in decodes if one.asked]
            gone = router.nodes.get(first.name)
            assert gone is not None
            later = Node(gone.name, gone.role, gone.url, gone.model)
            later.heard(ready=True, role="decode")
            router.nodes.put(later)  # another run of it, which has nothing
            assert (await router.post(chat(LONG, "Why?"), CHAT))[0] == 200
            assert hints(prefills) == [None, None]

    asyncio.run(main())


def test_a_node_with_much_to_do_is_a_hint_though_another_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choices, "_MAX_MORE", 0)

    async def main() -> None:
        prefills, decodes = cluster()
        async with running(*prefills, *decodes) as router:
            await router.post(chat(LONG), CHAT)
            (first,) = [one for one in decodes if one.asked]
            busy = router.nodes.get(first.name)
            assert busy is not None
            async with busy.asked():
                await router.post(chat(LONG, "Why?"), CHAT)
            assert len(first.asked) == 1
            assert hints(prefills).count(first.name) == 1

    asyncio.run(main())


def test_what_prefill_nodes_did_is_counted() -> None:
    async def main() -> None:
        prefill, decode = FakeNode("p0", "prefill", cached=16, remote=48), FakeNode("d0", "decode")
        async with running(prefill, decode, overlap=False) as router:
            await router.post(chat(LONG), CHAT)
            told = [
                await router.number(f'prefill_tokens_by_source_total{{source="{source}"}}')
                for source in ("local_cache_hit", "from_other_nodes", "local_compute")
            ]
            assert told == [16, 48, 35]

    asyncio.run(main())


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_TURNS", 10)
    found, node = Turns(), Node("d0", "decode", "http://h:1")
    for i in range(30):
        asked = Asked(chat(f"{i}"), None)
        found.answered(chain_of(asked), Turn(node, None, asked.num_chars))
    assert len(found) == 10
    later = Asked(chat("29", "Why?"), None)
    turn = found.before(chain_of(later), later.num_chars)
    assert turn is not None and turn.decode is node


@pytest.mark.parametrize(
    "body",
    [{}, {"prompt": 5}, {"prompt": [["a"] * 200]}, {"messages": [5, None]}, {"messages": "x"}],
)
def test_nonsense_is_a_chain_all_the_same(body: Json) -> None:
    assert len(chain_of(Asked(body, None))) < 5


def test_a_chain_ends_somewhere() -> None:
    assert len(chain_of(Asked({"prompt": "x" * 1_000_000}, None))) == 1024
