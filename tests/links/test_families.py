"""K/V of each family of models, pulled over real links: greedy output is transformers' own."""

import asyncio
from pathlib import Path

import pytest

from tests.links.pairs import TRANSPORTS, Node, a_job, a_pair
from tests.pairs.models import folder_of
from tests.worker.tiny import FAMILIES, Comparison, continuation, stream

NUM_TOKENS = 10
#: Shorter than a block, at its end, behind it, longer than a window.
LENGTHS = (5, 16, 17, 40, 70)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


async def one(
    prefill: Node, decode: Node, family: str, prompt: tuple[int, ...], comparison: Comparison
) -> int:
    """Prefilled there, answered here; how many tokens came."""
    params = await prefill.prefill(prompt)
    job = a_job(prompt, NUM_TOKENS, params)
    (tokens,) = await decode.tokens(job)
    comparison.add(continuation(family, prompt, NUM_TOKENS), tokens)
    return job.num_remote_tokens[0]


def check(family: str, transport: str, folders: Path) -> None:
    async def main() -> None:
        comparison = Comparison()
        settings = {"model": str(folder_of(family, folders)), "max_model_len": 128}
        async with a_pair(transport, num_blocks=120, **settings) as (prefill, decode):
            for number in range(2):
                prompts = [stream(number)[:length] for length in LENGTHS]
                asking = (one(prefill, decode, family, prompt, comparison) for prompt in prompts)
                if number:
                    num_pulled = sum(await asyncio.gather(*asking))
                else:
                    num_pulled = sum([await ask for ask in asking])
                assert num_pulled
            await prefill.rest()
            await decode.rest()
        comparison.check_share()

    asyncio.run(main())


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_pulled_is_what_would_be_computed(family: str, folders: Path) -> None:
    check(family, "shm", folders)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("family", ["llama", "gemma3", "falcon-h1"])
def test_over_every_transport(family: str, transport: str, folders: Path) -> None:
    check(family, transport, folders)
