"""`kvdist up` with real nodes and a stub for a model: the words are those of one perfect node."""

import asyncio
import random
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from kvdist.launch.cluster import Cluster, launched
from kvdist.launch.plan import Plan
from tests.node.running import perfect

PROMPTS = ["x" * 100, "x" * 100 + "y" * 77, "a prompt that shares nothing with the others" * 5]


async def ask(cluster: Cluster, **body: Any) -> Any:
    url = f"{cluster.url}/v1/completions"
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return answer


@pytest.mark.parametrize("transport", ["tcp", "shm", "ucx"])
def test_tokens_equal_those_of_one_node(transport: str) -> None:
    async def main() -> None:
        plan = Plan(model="stub", transport=transport, port=0)
        async with asyncio.timeout(55), launched(plan) as cluster:
            num_remote = 0
            for prompt in [*PROMPTS, *PROMPTS]:
                answer = await ask(cluster, prompt=prompt, max_tokens=20)
                assert answer["choices"][0]["text"] == perfect(prompt, 20)
                details = answer["usage"]["prompt_tokens_details"]
                num_remote += details["remote_computed_tokens"]
            assert num_remote > 200
            answers = await asyncio.gather(
                *(ask(cluster, prompt=f"{i} " * 50, max_tokens=9) for i in range(20))
            )
            for i, answer in enumerate(answers):
                assert answer["choices"][0]["text"] == perfect(f"{i} " * 50, 9)
            await assert_at_rest(cluster, 8)

    asyncio.run(main())


async def assert_at_rest(cluster: Cluster, within_s: float) -> None:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + within_s
    while True:
        ledgers = await cluster.ledgers(max(0.0, end_s - loop.time()))
        if all(ledger["balanced"] is True for ledger in ledgers.values()):
            return
        assert loop.time() < end_s, ledgers
        await asyncio.sleep(0.2)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "flag", ["--overlap", pytest.param("--no-overlap", marks=pytest.mark.slow)]
)
def test_a_storm_of_clients_that_leave_leaves_nothing(flag: str) -> None:
    """P5, A17. A lease whose answer the router missed by a hair ends by its own life, 30 s."""

    async def main() -> None:
        plan = Plan(model="stub", port=0, router_flags=(flag,))
        chance = random.Random(1)

        async def come_and_go(i: int) -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(chance.random() / 3):
                    await ask(cluster, prompt=f"{i % 40} " * 60, max_tokens=chance.randrange(1, 60))

        async with asyncio.timeout(110), launched(plan) as cluster:
            for _ in range(4):
                await asyncio.gather(*(come_and_go(i) for i in range(60)))
            answer = await ask(cluster, prompt=PROMPTS[2], max_tokens=20)
            assert answer["choices"][0]["text"] == perfect(PROMPTS[2], 20)
            await assert_at_rest(cluster, 40)

    asyncio.run(main())
