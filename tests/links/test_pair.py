"""Two nodes and real links: what is pulled is what would be computed, and nothing stays held."""

import asyncio

import pytest
from structlog.testing import capture_logs

from kvdist.connector.params import ByHash, ByTransfer, write_params
from tests.links.pairs import (
    TRANSPORTS,
    Book,
    Node,
    a_job,
    a_node,
    a_pair,
    perfect,
    some_prompts,
)
from tests.node.running import TOKENIZER

PROMPT = "The quick brown fox jumps over the lazy dog, again and again, until it has had enough."


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_pulled_or_computed_the_answer_is_the_same(transport: str) -> None:
    async def main() -> None:
        async with a_pair(transport) as (prefill, decode):
            params = await prefill.prefill(PROMPT)
            texts, job = await decode.ask_more(PROMPT, 8, params)
            assert texts == [perfect(PROMPT, 8)]
            assert job.num_remote_tokens == [len(PROMPT) - 1]
            await prefill.rest()
            await decode.rest()

    asyncio.run(main())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_many_at_a_time(transport: str) -> None:
    async def one(prefill: Node, decode: Node, prompt: str) -> None:
        params = await prefill.prefill(prompt)
        assert await decode.ask(prompt, 6, params, n=2) == 2 * [perfect(prompt, 6)]

    async def main() -> None:
        async with a_pair(transport) as (prefill, decode), asyncio.TaskGroup() as group:
            for prompt in some_prompts(40):
                group.create_task(one(prefill, decode, prompt))
        # The nodes ended at once, whatever was still to be released.

    asyncio.run(main())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_at_rest_nothing_is_held(transport: str) -> None:
    async def one(prefill: Node, decode: Node, prompt: str) -> None:
        params = await prefill.prefill(prompt)
        assert await decode.ask(prompt, 3, params) == [perfect(prompt, 3)]

    async def main() -> None:
        async with a_pair(transport) as (prefill, decode):
            await asyncio.gather(*(one(prefill, decode, prompt) for prompt in some_prompts(20)))
            await prefill.rest()
            await decode.rest()

    asyncio.run(main())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_reading_along(transport: str) -> None:
    async def main() -> None:
        async with a_pair(transport) as (prefill, decode):
            params = write_params(ByTransfer("p0", "t1"))
            _, (texts, job) = await asyncio.gather(
                prefill.prefill(PROMPT, "t1"), decode.ask_more(PROMPT, 8, params)
            )
            assert texts == [perfect(PROMPT, 8)]
            assert job.num_remote_tokens == [len(PROMPT) - 1]
            await prefill.rest()
            await decode.rest()

    asyncio.run(main())


def test_the_next_turn_goes_the_other_way() -> None:
    async def main() -> None:
        async with a_pair() as (prefill, decode):
            params = await prefill.prefill(PROMPT)
            (said,) = await decode.ask(PROMPT, 40, params)
            await prefill.rest()
            turn = PROMPT + said + " And then?"
            texts, job = await prefill.ask_more(turn, 8, write_params(ByHash("d0")))
            assert texts == [perfect(turn, 8)]
            assert job.num_remote_tokens[0] > 0
            await decode.rest()

    asyncio.run(main())


@pytest.mark.parametrize("transfer", ["t2", None])
def test_a_prefill_pulls_what_the_decode_node_has_said(transfer: str | None) -> None:
    async def main() -> None:
        async with a_pair() as (prefill, decode):
            params = await prefill.prefill(PROMPT)
            (said,) = await decode.ask(PROMPT, 60, params)
            turn = PROMPT + said + " And then? And what after that?"
            if transfer is None:
                told, job = await prefill.prefill_more(turn, None, "d0")
                texts, answer = await decode.ask_more(turn, 8, told)
            else:
                along = write_params(ByTransfer("p0", transfer))
                (_, job), (texts, answer) = await asyncio.gather(
                    prefill.prefill_more(turn, transfer, "d0"), decode.ask_more(turn, 8, along)
                )
            assert texts == [perfect(turn, 8)]
            had = len(PROMPT + said) // 16 * 16
            assert job.num_cached_tokens[0] + job.num_remote_tokens[0] == had
            assert job.num_remote_tokens[0] >= 48
            assert answer.num_cached_tokens == [had]
            assert answer.num_remote_tokens == [len(turn) - 1 - had]
            await prefill.rest()
            await decode.rest()

    asyncio.run(main())


def test_only_what_is_missing_is_pulled() -> None:
    async def main() -> None:
        async with a_pair() as (prefill, decode):
            first, second = PROMPT + " One.", PROMPT + " Two."
            await decode.ask(first, 2, await prefill.prefill(first))
            texts, job = await decode.ask_more(second, 2, await prefill.prefill(second))
            assert texts == [perfect(second, 2)]
            assert job.num_cached_tokens == [len(PROMPT) // 16 * 16]
            assert job.num_remote_tokens == [len(second) - 1 - len(PROMPT) // 16 * 16]

    asyncio.run(main())


def test_blocks_of_other_sizes() -> None:
    async def main() -> None:
        book = Book()
        async with (
            a_node("p0", book, "shm", block_size=16) as prefill,
            a_node("d0", book, "shm", block_size=64) as decode,
        ):
            params = await prefill.prefill(PROMPT)
            texts, job = await decode.ask_more(PROMPT, 8, params)
            assert texts == [perfect(PROMPT, 8)]
            assert job.num_remote_tokens == [len(PROMPT) - 1]

    asyncio.run(main())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_who_asked_leaves(transport: str) -> None:
    """Before it is scheduled, while bytes move, after: everything comes back."""

    async def main() -> None:
        async with a_pair(transport) as (prefill, decode):
            for number in range(12):
                prompt = f"{number} {PROMPT * 3}"
                params = await prefill.prefill(prompt)
                asking = asyncio.create_task(decode.ask(prompt, 200, params))
                await asyncio.sleep(0.004 * number)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            await decode.rest()
            await prefill.rest()
            assert await decode.ask(PROMPT, 4) == [perfect(PROMPT, 4)]

    asyncio.run(main())


def test_who_asked_for_a_ticket_leaves() -> None:
    """Its lease comes back at once, not when its time is over."""

    async def main() -> None:
        async with a_pair() as (prefill, _):
            job = a_job(TOKENIZER.encode(PROMPT), 1, {"do_remote_decode": True})
            job.is_prefill = True
            async for _news in prefill.engine.generate(job):
                pass
            prefill.engine.outbox.forget(job)
            await prefill.rest()

    asyncio.run(main())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_owner_goes(transport: str) -> None:
    """Its K/V are computed anew, and the answer is the same."""

    async def main() -> None:
        book = Book()
        async with a_node("d0", book, transport) as decode:
            async with a_node("p0", book, transport) as prefill:
                params = await prefill.prefill(PROMPT)
                asking = asyncio.create_task(decode.ask(PROMPT, 8, params))
                await asyncio.sleep(0)
            assert await asking == [perfect(PROMPT, 8)]
            assert await decode.ask(PROMPT + "!", 8, params) == [perfect(PROMPT + "!", 8)]
            async with a_node("p0", book, transport) as prefill:  # again, at another address
                prompt = PROMPT * 2
                texts, job = await decode.ask_more(prompt, 8, await prefill.prefill(prompt))
                assert texts == [perfect(prompt, 8)]
                assert job.num_remote_tokens[0] + job.num_cached_tokens[0] == len(prompt) - 1

    asyncio.run(main())


def test_nobody_knows_the_owner() -> None:
    async def main() -> None:
        async with a_pair() as (prefill, decode):
            params = dict(await prefill.prefill(PROMPT) or {}, remote_engine_id="p7")
            assert await decode.ask(PROMPT, 8, params) == [perfect(PROMPT, 8)]

    asyncio.run(main())


def test_another_cluster_s_node_is_told_of_once_and_not_waited_for() -> None:
    async def main() -> None:
        book = Book()
        async with a_node("p0", book), a_node("d0", book, token=b"another cluster's") as decode:
            with capture_logs() as logs:
                for i in range(3):
                    prompt = f"{i} {PROMPT}"
                    params = write_params(ByTransfer("p0", f"t{i}"))
                    async with asyncio.timeout(4):  # questions are asked for five seconds
                        assert await decode.ask(prompt, 8, params) == [perfect(prompt, 8)]
                    await asyncio.sleep(0.2)
            (told,) = [log for log in logs if log["log_level"] == "warning"]
            assert told["peer"] == "p0" and "token" in told["reason"]
            await decode.rest()

    asyncio.run(main())


def test_siblings_begin_together() -> None:
    """They share what one of them has pulled, and none pulls the rest of a block again."""

    async def main() -> None:
        async with a_pair(min_pull_tokens=16) as (prefill, decode):
            params = await prefill.prefill(PROMPT)
            texts, job = await decode.ask_more(PROMPT, 4, params, n=16)
            assert texts == 16 * [perfect(PROMPT, 4)]
            assert job.num_remote_tokens == [len(PROMPT) - 1]
            # One after the other it would be one more step for each.
            assert decode.engine.scheduler.steps.open().number <= 12

    asyncio.run(main())
