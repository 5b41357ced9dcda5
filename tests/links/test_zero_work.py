"""Where nothing is moved, what was lent comes back all the same: with the next messages.

Every time of the protocol's is far longer than a test waits, so nothing that runs out can help.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvdist.connector.params import ByTransfer, write_params
from kvdist.links.marks import Marks
from tests.links.pairs import Node, a_job, a_pair, perfect
from tests.node.running import TOKENIZER

SLOW = {
    **{"lease_s": 600.0, "renewal_s": 300.0, "life_s": 900.0, "answer_s": 100.0},
    **{"verdict_s": 700.0, "parked_s": 300.0, "ack_s": 100.0},
}
#: 64 tokens that can be had elsewhere: four whole blocks.
PROMPT = "w" * 65
ALONG = write_params(ByTransfer("p0", "t"))

Talk = Callable[[Node, Node], Awaitable[None]]


def play(talk: Talk, **more: Any) -> Counter[str]:
    """How often each mark was passed, until both were at rest."""
    passed: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Marks, "passed", lambda _, mark: passed.update([mark]))

        async def main() -> None:
            async with a_pair(**{**SLOW, **more}) as (prefill, decode):
                await talk(prefill, decode)
                await prefill.rest()
                await decode.rest()

        asyncio.run(main())
    return passed


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("along", [True, False])
def test_all_of_it_was_there(n: int, along: bool) -> None:
    """A4: one message to the owner, and its answer; its worker is told once."""

    async def talk(prefill: Node, decode: Node) -> None:
        await decode.ask(PROMPT, 1)
        if along:
            prefilling = prefill.prefill(PROMPT, "t")
            _, texts = await asyncio.gather(prefilling, decode.ask(PROMPT, 2, ALONG, n=n))
        else:
            texts = await decode.ask(PROMPT, 2, await prefill.prefill(PROMPT), n=n)
        assert texts == n * [perfect(PROMPT, 2)]

    passed = play(talk)
    assert not passed["open-said"]
    assert passed["release-said"] == passed["released-heard"] == passed["revoke-said"] == 1


def test_shorter_than_a_block() -> None:
    """It is computed rather than pulled."""

    async def talk(prefill: Node, decode: Node) -> None:
        assert await decode.ask("short", 2, await prefill.prefill("short")) == [perfect("short", 2)]

    passed = play(talk, min_pull_tokens=16)
    assert not passed["open-said"]
    assert passed["release-said"] == passed["released-heard"] == 1


@pytest.mark.parametrize("num_turns", [1, 2, 3, 5])
@pytest.mark.parametrize("along", [True, False])
def test_who_asked_leaves_before_it_is_scheduled(along: bool, num_turns: int) -> None:
    """A18, M: some turns of the loop later it is known, or waits for its ticket, or for blocks."""

    async def talk(prefill: Node, decode: Node) -> None:
        params = ALONG if along else await prefill.prefill(PROMPT)
        asking = asyncio.create_task(decode.ask(PROMPT, 2, params))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        if along:  # it was asked for before it is known
            await prefill.prefill(PROMPT, "t")

    play(talk)


@pytest.mark.parametrize("along", [True, False])
def test_who_asked_leaves_in_the_same_turn(along: bool) -> None:
    """Nobody but the inbox has heard of it, and its ticket."""

    async def talk(prefill: Node, decode: Node) -> None:
        params = ALONG if along else await prefill.prefill(PROMPT)
        job = a_job(TOKENIZER.encode(PROMPT), 2, params)
        decode.engine.inbox.put(job, 0)
        decode.engine._give_up(job)
        decode.engine.compute.wake()
        if along:
            await prefill.prefill(PROMPT, "t")

    play(talk)


def test_a_prefill_leaves_before_it_is_scheduled() -> None:
    async def talk(prefill: Node, decode: Node) -> None:
        for transfer in (None, "t"):
            for num_turns in range(4):
                asking = asyncio.create_task(prefill.prefill(PROMPT, transfer))
                for _ in range(num_turns):
                    await asyncio.sleep(0)
                asking.cancel()
                await asyncio.wait([asking])
                await prefill.rest()

    play(talk)
