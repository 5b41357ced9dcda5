"""What a node that exchanges K/V answers over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from kvdist.connector.params import ByTransfer, write_params
from kvdist.errors import ConfigError
from kvdist.node.build import NodeSettings, build_api
from kvdist.node.job import Job
from tests.links.pairs import Book, Node, a_node, a_pair
from tests.node.running import TOKENIZER, perfect

PROMPT = "Tell me what you know of caches that are spread over many machines, and why."


@asynccontextmanager
async def http(node: Node) -> AsyncIterator[TestClient[Any, Any]]:
    api = build_api(NodeSettings(names=("stub",)), node.engine, TOKENIZER)
    async with TestClient(TestServer(api.app)) as client:
        yield client


async def post(client: TestClient[Any, Any], path: str, body: Any) -> tuple[int, Any]:
    async with client.post(path, json=body) as response:
        return response.status, await response.json()


def test_a_prompt_is_prefilled_here_and_answered_there() -> None:
    async def main() -> None:
        async with a_pair() as (p, d), http(p) as prefill, http(d) as decode:
            ask = {"prompt": PROMPT, "max_tokens": 8}
            lend = {"kv_transfer_params": {"do_remote_decode": True}}
            status, first = await post(prefill, "/v1/completions", ask | lend)
            assert status == 200
            assert first["choices"][0]["text"] == ""
            told = {"kv_transfer_params": first["kv_transfer_params"]}
            status, answer = await post(decode, "/v1/completions", ask | told)
            assert status == 200
            assert answer["choices"][0]["text"] == perfect(PROMPT, 8)
            details = answer["usage"]["prompt_tokens_details"]
            assert details == {"cached_tokens": 0, "remote_tokens": len(PROMPT) - 1}
            for client in (prefill, decode):
                async with client.get("/debug/ledger?wait_s=20") as response:
                    ledger = await response.json()
                assert ledger["balanced"] is True
                assert ledger["held"]["blocks"] == ledger["held"]["leases"] == 0
            metrics = await (await decode.get("/metrics")).text()
            assert f'source="external_kv_transfer"}} {len(PROMPT) - 1}.0' in metrics

    asyncio.run(main())


def test_a_ticket_is_given_back() -> None:
    async def main() -> None:
        async with a_pair() as (p, _), http(p) as prefill:
            ask = {"prompt": PROMPT, "kv_transfer_params": {"do_remote_decode": True}}
            _, first = await post(prefill, "/v1/completions", ask)
            assert not p.is_at_rest
            told = {"kv_transfer_params": first["kv_transfer_params"]}
            assert await post(prefill, "/v1/kv/release", told) == (200, {})
            await p.rest()
            assert await post(prefill, "/v1/kv/release", told) == (200, {})
            other = {"kv_transfer_params": first["kv_transfer_params"] | {"remote_engine_id": "x"}}
            status, error = await post(prefill, "/v1/kv/release", other)
            assert (status, error["error"]["param"]) == (400, "kv_transfer_params")

    asyncio.run(main())


@pytest.mark.parametrize("reads_along", [True, False])
def test_what_has_no_ticket_yet_is_given_back_by_its_name(reads_along: bool) -> None:
    """A17: its answer was lost, is still computed, or it comes later than the release."""

    async def main() -> None:
        async with a_pair(lease_s=600.0, life_s=900.0) as (p, d), http(p) as prefill:
            named = {"transfer_id": "t", "read_along": reads_along}
            lend = {"do_remote_decode": True, "kvdist": named}
            ask = {"prompt": PROMPT, "kv_transfer_params": lend}
            release = {"kv_transfer_params": write_params(ByTransfer("p0", "t"))}
            await post(prefill, "/v1/completions", ask)  # and what it says is lost
            assert p.exchange.held["leases"] == 1
            assert await post(prefill, "/v1/kv/release", release) == (200, {})
            await p.rest()
            status, error = await post(prefill, "/v1/completions", ask)
            assert (status, "given back" in error["error"]["message"]) == (400, True)

            named["transfer_id"] = "u"
            asking = asyncio.create_task(post(prefill, "/v1/completions", ask))
            while not len(p.exchange.half.lender.transfers):  # noqa: ASYNC110
                await asyncio.sleep(0)
            p.exchange.give_back(ByTransfer("p0", "u"))
            status, answer = await asking
            assert (status, answer["kv_transfer_params"]) == (200, None)
            await p.rest()
            assert await d.ask(PROMPT, 4) == [perfect(PROMPT, 4)]
            other = {"kv_transfer_params": write_params(ByTransfer("d0", "u"))}
            assert (await post(prefill, "/v1/kv/release", other))[0] == 400

    asyncio.run(main())


def test_a_ticket_that_nobody_has_heard_of_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client leaves when its ticket is there, and before it has read it."""

    async def main() -> None:
        async with a_pair() as (p, _), http(p) as prefill:
            for where in ("asked for", "written"):
                is_there = asyncio.Event()
                with monkeypatch.context() as patched:

                    async def wait(*_: Any, there: asyncio.Event = is_there) -> None:
                        there.set()
                        await asyncio.Event().wait()

                    owner: Any = Job if where == "asked for" else web.Response
                    patched.setattr(owner, "ticket" if owner is Job else "prepare", wait)
                    ask = {"prompt": PROMPT, "kv_transfer_params": {"do_remote_decode": True}}
                    asking = asyncio.create_task(post(prefill, "/v1/completions", ask))
                    await is_there.wait()
                    while not p.exchange.held["leases"]:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                    asking.cancel()
                    await p.rest()

    asyncio.run(main())


@pytest.mark.parametrize(
    "odd",
    [
        {"stream": True, "kv_transfer_params": {"do_remote_decode": True}},
        {"n": 2, "kv_transfer_params": {"do_remote_decode": True}},
        {"prompt": ["a", "b"], "kv_transfer_params": {"do_remote_decode": True}},
        {"kv_transfer_params": {"do_remote_decode": "yes"}},
        {"kv_transfer_params": {"do_remote_prefill": True}},
        {"kv_transfer_params": {"do_remote_prefill": True, "remote_engine_id": 7}},
        {"kv_transfer_params": []},
    ],
)
def test_what_makes_no_sense_is_refused(odd: dict[str, Any]) -> None:
    async def main() -> None:
        async with a_pair() as (p, _), http(p) as client:
            status, error = await post(client, "/v1/completions", {"prompt": PROMPT} | odd)
            assert status == 400
            told = f"{error['error']['param']} {error['error']['message']}"
            assert "kv_transfer_params" in told
            await p.rest()

    asyncio.run(main())


#: What makes of a ticket none, or another's: its outer fields, and those in `kvdist`.
FORGED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"remote_engine_id": "nobody"}, {}),
    ({"remote_engine_id": "d0"}, {}),
    ({"remote_engine_id": "../p0"}, {}),
    ({"remote_num_tokens": 0}, {}),
    ({"remote_num_tokens": 17}, {}),
    ({"remote_num_tokens": 1 << 28}, {}),
    ({"tp_size": 2}, {}),
    ({"do_remote_prefill": False}, {}),
    ({f"x{i}": [i] * 10 for i in range(2000)}, {}),
    ({}, {"lease": "ab" * 16}),
    ({}, {"incarnation": 5}),
    ({}, {"incarnation": 1 << 62}),
    ({}, {"remaining_ms": 0}),
]


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_a_forged_ticket_costs_an_answer_at_most(policy: str) -> None:
    """By policy the answer is right, or an error; it is never wrong, and nothing is left."""

    async def main() -> None:
        settings: dict[str, Any] = {"on_failure": policy, "lease_s": 1.0, "renewal_s": 0.2}
        async with a_pair(**settings) as (p, d), http(d) as decode:
            used = await p.prefill(PROMPT)
            assert used is not None
            for i, (outer, inner) in enumerate([*FORGED, (used, used["kvdist"])]):
                prompt = f"{i} {PROMPT}"
                mine = await p.prefill(prompt)
                assert mine is not None
                told = {**mine, **outer, "kvdist": {**mine["kvdist"], **inner}}
                ask = {"prompt": prompt, "max_tokens": 6, "kv_transfer_params": told}
                status, answer = await post(decode, "/v1/completions", ask)
                if status == 200:
                    assert answer["choices"][0]["text"] == perfect(prompt, 6)
                else:
                    assert status == 500 and policy == "fail"
            await p.rest()
            await d.rest()

    asyncio.run(main())


def test_no_more_is_recomputed_at_a_time_than_may_be() -> None:
    """Its K/V are gone, and to compute them here would be too much: an error and never a text."""

    async def main() -> None:
        async with a_pair(max_recompute_tokens=40) as (p, d), http(p) as prefill, http(d) as decode:
            for prompt, expected in ((PROMPT, 503), (PROMPT[:30], 200)):
                told = {"kv_transfer_params": await p.prefill(prompt)}
                assert await post(prefill, "/v1/kv/release", told) == (200, {})
                ask = {"prompt": prompt, "max_tokens": 6} | told
                status, answer = await post(decode, "/v1/completions", ask)
                assert status == expected, answer
            await p.rest()
            await d.rest()

    asyncio.run(main())


def test_a_prompt_of_one_token_leaves_nothing() -> None:
    async def main() -> None:
        async with a_pair() as (p, _), http(p) as client:
            ask = {"prompt": "x", "kv_transfer_params": {"do_remote_decode": True}}
            status, answer = await post(client, "/v1/completions", ask)
            assert (status, answer["kv_transfer_params"]) == (200, None)
            await p.rest()

    asyncio.run(main())


def test_what_can_be_lent_is_lent_and_no_more() -> None:
    """T10: beyond that a prefill is refused before it is computed, and taken again later."""

    async def main() -> None:
        async with a_node("p0", Book(), num_blocks=80) as p, http(p) as client:
            asks = [
                {"prompt": f"{i} {PROMPT * 2}", "kv_transfer_params": {"do_remote_decode": True}}
                for i in range(2)
            ]
            status, first = await post(client, "/v1/completions", asks[0])
            assert (status, first["kv_transfer_params"] is None) == (200, False)
            status, error = await post(client, "/v1/completions", asks[1])
            assert (status, "T10" in error["error"]["message"]) == (503, True)
            told = {"kv_transfer_params": first["kv_transfer_params"]}
            await post(client, "/v1/kv/release", told)
            await p.rest()
            status, second = await post(client, "/v1/completions", asks[1])
            assert (status, second["kv_transfer_params"] is None) == (200, False)

    asyncio.run(main())


def test_a_pool_that_could_lend_nothing() -> None:
    async def main() -> None:
        async with a_node("p0", Book(), num_blocks=64):
            pass

    with pytest.raises(ConfigError, match="nothing could be lent"):
        asyncio.run(main())
