"""Several ranks a node, of unequal degree, with blocks of other sizes: each gets its heads."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest

from kvdist.connector.params import ByHash, ByTransfer, write_params
from kvdist.errors import ConfigError, Unavailable
from kvdist.links import faults
from tests.links.pairs import TRANSPORTS, Book, a_job
from tests.links.ranks import RankedNode, Shape, a_ranked_node, perfect
from tests.node.running import until

#: Ranks and block sizes of the prefill and of the decode node.
PAIRS = [
    (Shape(num_ranks=2), Shape(num_ranks=1)),
    (Shape(num_ranks=1, block_size=64), Shape(num_ranks=2, block_size=16)),
    (Shape(num_ranks=2, block_size=16, padding=40), Shape(num_ranks=4, block_size=64)),
    (Shape(num_ranks=4, block_size=32), Shape(num_ranks=1, block_size=48, padding=8)),
    (Shape(num_ranks=1, num_heads=2), Shape(num_ranks=4, num_heads=2)),  # copies
]


@asynccontextmanager
async def a_ranked_pair(
    transport: str, shapes: tuple[Shape, Shape], told: str = ""
) -> AsyncIterator[tuple[RankedNode, RankedNode]]:
    book = Book()
    async with (
        a_ranked_node("p0", book, transport, shapes[0], faults=told) as prefill,
        a_ranked_node("d0", book, transport, shapes[1], faults=told) as decode,
    ):
        yield prefill, decode


def a_prompt(number: int, length: int) -> list[int]:
    return random.Random(number).choices(range(1000), k=length)


async def ask(prefill: RankedNode, decode: RankedNode, prompt: list[int], num_heads: int) -> int:
    """How many tokens were pulled."""
    job = a_job(prompt, 6, await prefill.prefill(prompt), n=2)
    right = perfect(prompt, 6, num_heads)
    assert await decode.tokens(job) == [right, right]
    return job.num_remote_tokens[0]


@pytest.mark.parametrize(
    ("shapes", "transport"),
    [*zip(PAIRS, cycle(TRANSPORTS)), *((PAIRS[2], transport) for transport in ("tcp", "shm"))],
    ids=lambda told: told if isinstance(told, str) else "-".join(map(str, told)),
)
def test_every_byte_comes_from_the_rank_that_has_it(
    shapes: tuple[Shape, Shape], transport: str
) -> None:
    num_heads = shapes[0].num_heads

    async def main() -> None:
        async with a_ranked_pair(transport, shapes) as (prefill, decode):
            lengths = (33, 64, 65, 150)
            prompts = [a_prompt(number, length) for number, length in enumerate(lengths)]
            pulled = [await ask(prefill, decode, one, num_heads) for one in prompts[:2]]
            pulled += await asyncio.gather(
                *(ask(prefill, decode, one, num_heads) for one in prompts[2:])
            )
            assert pulled == [length - 1 for length in lengths]
            turn = prompts[3] + perfect(prompts[3], 6, num_heads) + a_prompt(9, 70)
            async with asyncio.timeout(20):
                await decode.tokens(a_job(turn, 1))
                later = [*turn, *a_prompt(10, 80)]
                job = a_job(later, 4, write_params(ByHash("d0")))
                assert await prefill.tokens(job) == [perfect(later, 4, num_heads)]
                assert job.num_remote_tokens[0] > 0
            for node in (prefill, decode):
                await node.rest()

    asyncio.run(main())


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_ranks_read_along(transport: str) -> None:
    async def main() -> None:
        async with a_ranked_pair(transport, PAIRS[2]) as (prefill, decode):
            prompt = a_prompt(1, 200)
            job = a_job(prompt, 6, write_params(ByTransfer("p0", "t1")))
            _, answer = await asyncio.gather(prefill.prefill(prompt, "t1"), decode.tokens(job))
            assert answer == [perfect(prompt, 6)]
            assert job.num_remote_tokens == [len(prompt) - 1]
            for node in (prefill, decode):
                await node.rest()

    asyncio.run(main())


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_links_that_break_fail_whole_pulls(
    transport: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parts of one pull break by chance, and what has come of the others counts for nothing."""
    monkeypatch.setattr(faults, "_FRAMES", 60)  # more take their time to plan

    async def main() -> None:
        told = "5:cut-inside=0.1,cut-before=0.05"
        async with a_ranked_pair(transport, PAIRS[0], told) as (prefill, decode):
            prompts = [a_prompt(number, 100 + number) for number in range(6)]
            await asyncio.gather(*(ask(prefill, decode, prompt, 4) for prompt in prompts))
            for node in (prefill, decode):
                await node.rest()

    asyncio.run(main())
    assert "pull failed" in capsys.readouterr().out


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_one_rank_of_the_owner_dies(transport: str) -> None:
    """Its node ends; the whole pull fails, and is computed."""

    async def main() -> None:
        book, prompt = Book(), a_prompt(3, 300)
        shape = Shape(num_ranks=4, block_size=64)
        async with a_ranked_node("d0", book, transport, shape, answer_s=0.1) as d:
            async with a_ranked_node("p0", book, transport, Shape(num_ranks=2)) as p:
                await ask(p, d, a_prompt(4, 40), 4)  # all ranks have met
                job = a_job(prompt, 6, await p.prefill(prompt))
                asking = asyncio.create_task(d.tokens(job))
                await until(lambda: d.exchange.held["pulls"])
                p.kill(1)
                await until(lambda: p.engine.lost)
            assert await asking == [perfect(prompt, 6)]
            assert job.num_remote_tokens[0] in (0, len(prompt) - 1)
            await d.rest()

    asyncio.run(main())


def test_one_rank_of_the_reader_dies() -> None:
    """Its node ends; the owner has everything back as soon as the lease is over."""

    async def main() -> None:
        book, prompt = Book(), a_prompt(3, 300)
        short: dict[str, Any] = {"lease_s": 1.0, "renewal_s": 0.3}
        async with a_ranked_node("p0", book, "shm", Shape(num_ranks=2), **short) as p:
            shape = Shape(num_ranks=4, block_size=64)
            async with a_ranked_node("d0", book, "shm", shape, **short) as d:
                await ask(p, d, a_prompt(4, 40), 4)
                job = a_job(prompt, 6, await p.prefill(prompt))
                asking = asyncio.create_task(d.tokens(job))
                await until(lambda: d.exchange.held["pulls"])
                d.kill(3)
                with pytest.raises(Unavailable):
                    await asking
            await p.rest()

    asyncio.run(main())


def test_unlike_nodes_are_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        shapes = (Shape(num_ranks=2), Shape(num_ranks=4, num_heads=8))
        async with a_ranked_pair("tcp", shapes) as (prefill, decode):
            prompt = a_prompt(4, 50)
            job = a_job(prompt, 4, await prefill.prefill(prompt))
            assert await decode.tokens(job) == [perfect(prompt, 4, 8)]
            assert job.num_remote_tokens == [0]

    asyncio.run(main())
    assert "'num_heads', ours='4', theirs='8'" in capsys.readouterr().out


def test_ranks_that_are_not_of_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Shape.fingerprint
    weights = iter(["one", "one", "another", "one"])

    def odd(shape: Shape, hash_algorithm: str) -> object:
        return told(replace(shape, weights=next(weights)), hash_algorithm)

    monkeypatch.setattr(Shape, "fingerprint", odd)

    async def main() -> None:
        async with a_ranked_node("p0", Book(), "tcp", Shape(num_ranks=4)):
            raise AssertionError

    with pytest.raises(ConfigError, match="weights: rank 0"):
        asyncio.run(main())
