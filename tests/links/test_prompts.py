"""The command, with few prompts; and that it finds what is wrong."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.links.pairs import TRANSPORTS
from tests.pairs.models import subject
from tests.pairs.play import alone, play
from tests.pairs.work import BLOCK_SIZE, asks


def test_few_prompts(tmp_path: Path) -> None:
    of = subject("llama", tmp_path)
    work = list(asks(0, 8, of.stream))
    by_one = asyncio.run(alone(of, work))
    found = asyncio.run(play(of, "shm", work, by_one))
    assert found.num_compared >= 16
    assert min(found.num_pulled, found.num_cached) > 0


@pytest.mark.parametrize("who", ["transformers", "a single node"])
def test_a_wrong_token_is_found(who: str, tmp_path: Path) -> None:
    of = subject("llama", tmp_path)
    work = list(asks(0, 1, of.stream))
    by_one = asyncio.run(alone(of, work))
    right = of.continuation(work[0].prompt, work[0].num_tokens)
    if who == "transformers":
        wrong = replace(right, tokens=(*right.tokens[:-1], 1 + right.tokens[-1]))
        of = replace(of, continuation=lambda *_: wrong)
    else:
        by_one[0][-1] += 1
        of = replace(of, continuation=lambda *_: replace(right, tokens=tuple(by_one[0])))
    with pytest.raises(ExceptionGroup, match="unhandled"):
        asyncio.run(play(of, TRANSPORTS[0], work, by_one))


def test_prompts_are_the_same_for_a_seed_and_spread_over_the_ends_of_blocks() -> None:
    def stream(number: int) -> tuple[int, ...]:
        return tuple(range(number * 1000, number * 1000 + 300))

    work = list(asks(3, 200, stream))
    assert work == list(asks(3, 200, stream)) != list(asks(4, 200, stream))
    at_ends = {(len(ask.prompt) + 1) % BLOCK_SIZE for ask in work}
    assert {0, 1, 2} <= at_ends
    assert any(ask.n > 1 for ask in work)
    assert any(ask.next_turn for ask in work)
    assert len({ask.prompt[:5] for ask in work if len(ask.prompt) > 5}) < 40
