"""Links whose bytes go wrong on purpose: the answer is the same, and nothing stays held."""

import asyncio

import pytest

from kvdist.errors import ConfigError
from kvdist.links.faults import KINDS, read_faults
from tests.links.pairs import TRANSPORTS, Node, a_pair, perfect, some_prompts

#: Shorter than by default, so that what never comes is given up soon.
QUICK = {"stall_s": 0.5, "progress_s": 0.1, "answer_s": 0.2, "escalation_s": (0.5, 1.0, 30.0, 60.0)}


async def one(prefill: Node, decode: Node, prompt: str) -> int:
    params = await prefill.prefill(prompt)
    texts, job = await decode.ask_more(prompt, 5, params)
    assert texts == [perfect(prompt, 5)]
    return job.num_remote_tokens[0]


async def some(transport: str, faults: str, num_prompts: int = 6) -> int:
    """Tokens that came all the same."""
    settings = {"faults": faults, "is_checked": True, **QUICK}
    async with asyncio.timeout(50), a_pair(transport, **settings) as (prefill, decode):
        found = 0
        for prompt in some_prompts(num_prompts):
            found += await one(prefill, decode, prompt)
        more = [prompt + "!" for prompt in some_prompts(num_prompts)]
        found += sum(await asyncio.gather(*(one(prefill, decode, prompt) for prompt in more)))
        await decode.rest()
        await prefill.rest()
    return found


def go_wrong(kind: str, transport: str, num_prompts: int) -> None:
    rate = 0.3 if kind in ("early", "never", "after-cancel") else 0.05
    asyncio.run(some(transport, f"5:{kind}={rate}", num_prompts))


@pytest.mark.parametrize(
    ("kind", "transport"),
    [(kind, TRANSPORTS[i % len(TRANSPORTS)]) for i, kind in enumerate(sorted(KINDS))],
)
def test_each_kind_on_some_transport(kind: str, transport: str) -> None:
    go_wrong(kind, transport, num_prompts=3)


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_on_each_transport(kind: str, transport: str) -> None:
    go_wrong(kind, transport, num_prompts=6)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_without_faults_all_comes(transport: str) -> None:
    num_tokens = sum(len(prompt) - 1 for prompt in some_prompts(6))
    assert asyncio.run(some(transport, "5:drop=0")) > num_tokens // 2


def test_a_read_that_says_too_early_that_it_is_over_is_found_by_the_checksum() -> None:
    """It would be a wrong token otherwise."""
    assert asyncio.run(some("shm", "1:early=1", num_prompts=2)) == 0


@pytest.mark.parametrize("text", ["", "x", "1:", "1:nothing=1", "1:drop=2", "x:drop=1", "1:drop"])
def test_what_is_no_fault(text: str) -> None:
    with pytest.raises(ConfigError, match="kinds: delay"):
        read_faults(text)
