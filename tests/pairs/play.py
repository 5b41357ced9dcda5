"""One model over one transport: each prompt by a pair, cold, warm and in the next turn.

Owns:   what was counted.
Knows nothing of: what is right; that is `models`' to say.

    cold    the prefill node computes, the decode node pulls and answers
    warm    the same again: both have what they had
    turn    the answer and what follows, asked of the prefill node, which pulls from the decode node
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from kvdist.connector.params import ByHash, write_params
from tests.links.pairs import Book, Node, a_job, a_node, a_pair
from tests.pairs.models import Subject
from tests.pairs.work import BLOCK_SIZE, Ask
from tests.worker.tiny import Comparison, Continuation

#: Longer than any prompt with its answers.
_MAX_MODEL_LEN = 256
_NUM_BLOCKS = 480
#: Prompts at a time.
_AT_A_TIME = 16

#: Words are looked at, not how soon they come: on a busy machine as well.
_PATIENCE: Final = {"ack_s": 300.0, "answer_s": 20.0, "stall_s": 120.0, "verdict_s": 600.0}

#: One for each prompt.
Said: TypeAlias = list[list[int]]


@dataclass
class Found:
    """What came of it: answers compared, and tokens of prompts by where they came from."""

    comparison: Comparison = field(default_factory=Comparison)
    num_pulled: int = 0
    num_pulled_back: int = 0
    num_cached: int = 0

    @property
    def num_compared(self) -> int:
        """Answers."""
        return self.comparison.num_whole + self.comparison.num_close


async def alone(subject: Subject, asks: Sequence[Ask]) -> Said:
    """What one node says; it is right, too."""
    comparison, said = Comparison(), Said()
    async with a_node("s0", Book(), **_settings(subject)) as node:
        for ask in asks:
            (tokens,) = await node.tokens(a_job(ask.prompt, ask.num_tokens))
            comparison.add(subject.continuation(ask.prompt, ask.num_tokens), tokens)
            said.append(tokens)
        await node.rest()
    comparison.check_share()
    return said


async def play(
    subject: Subject,
    transport: str,
    asks: Sequence[Ask],
    by_one: Said,
) -> Found:
    """Raises: AssertionError where an answer isn't transformers' or `by_one`, a single node's."""
    found, places = Found(), asyncio.Semaphore(_AT_A_TIME)

    async def one(ask: Ask, told: list[int], pair: tuple[Node, Node]) -> None:
        async with places:
            await _One(subject, ask, found, told).run(*pair)

    async with a_pair(transport, **_settings(subject), **_PATIENCE) as pair:
        async with asyncio.TaskGroup() as group:
            for ask, told in zip(asks, by_one, strict=True):
                group.create_task(one(ask, told, pair))
        for node in pair:
            await node.rest()
    found.comparison.check_share()
    assert found.num_pulled, "nothing was pulled"
    return found


def _settings(subject: Subject) -> dict[str, Any]:
    return {
        "model": str(subject.folder),
        "max_model_len": _MAX_MODEL_LEN,
        "block_size": BLOCK_SIZE,
        "num_blocks": _NUM_BLOCKS,
    }


class _One:
    """One prompt."""

    def __init__(self, subject: Subject, ask: Ask, found: Found, by_one: list[int]) -> None:
        self._subject, self._ask, self._found, self._by_one = subject, ask, found, by_one
        self._right = subject.continuation(ask.prompt, ask.num_tokens)

    async def run(self, prefill: Node, decode: Node) -> None:
        for _ in ("cold", "warm"):
            await self._answer(prefill, decode)
        if self._ask.next_turn:
            await self._go_on(prefill)

    async def _answer(self, prefill: Node, decode: Node) -> None:
        ask, found = self._ask, self._found
        job = a_job(ask.prompt, ask.num_tokens, await prefill.prefill(ask.prompt), n=ask.n)
        for tokens in await decode.tokens(job):
            found.comparison.add(self._right, tokens)
            same = _same(self._right.tokens, self._by_one)
            _compare(self._by_one[:same], self._right, tokens)
        found.num_pulled += job.num_remote_tokens[0]
        found.num_cached += job.num_cached_tokens[0]

    async def _go_on(self, prefill: Node) -> None:
        turn = (*self._ask.prompt, *self._right.tokens, *self._ask.next_turn)
        job = a_job(turn, self._ask.num_tokens, write_params(ByHash("d0")))
        (tokens,) = await prefill.tokens(job)
        expected = self._subject.continuation(turn, self._ask.num_tokens)
        self._found.comparison.add(expected, tokens)
        self._found.num_pulled_back += job.num_remote_tokens[0]


def _same(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = zip(one, other, strict=True)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), len(one))


def _compare(by_one: Sequence[int], right: Continuation, tokens: Sequence[int]) -> None:
    """A pair says what one node does, as far as that says what is right."""
    expected = Continuation(tuple(by_one), right.margins[: len(by_one)])
    Comparison().add(expected, tokens[: len(by_one)])
