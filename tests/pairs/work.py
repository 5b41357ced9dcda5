"""What a pair is asked: prompts that end before, at and behind the ends of blocks and windows.

Owns:   nothing; all of it comes of a seed.
Knows nothing of: models, nodes.
Units:  tokens.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

#: Of nodes; the windows of the tiny models are 24.
BLOCK_SIZE: Final = 16
#: Whoever begins alike is of one stream of tokens.
NUM_STREAMS: Final = 25
_LONGEST: Final = 120
_MOST_CHOICES: Final = 3


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt."""

    prompt: tuple[int, ...]
    #: How many answers are wanted, and of how many tokens.
    n: int
    num_tokens: int
    #: What is said after the answer, and asked of the prefill node; empty: nothing.
    next_turn: tuple[int, ...]


def asks(seed: int, num_prompts: int, stream: Callable[[int], tuple[int, ...]]) -> Iterator[Ask]:
    """The same for the same seed. `stream`: tokens to take prompts from, by number."""
    chance = random.Random(seed)
    for _ in range(num_prompts):
        tokens = stream(chance.randrange(NUM_STREAMS))
        length = _length(chance)
        goes_on = chance.random() < 0.25
        yield Ask(
            tokens[:length],
            chance.randint(2, _MOST_CHOICES) if chance.random() < 0.25 else 1,
            24 if goes_on else 10,  # so long that there is a block of the answer to be had
            tokens[length : length + chance.randint(1, 2 * BLOCK_SIZE)] if goes_on else (),
        )


def _length(chance: random.Random) -> int:
    kind = chance.random()
    if kind < 0.1:
        return chance.randint(1, 4)
    if kind < 0.7:
        return chance.randint(1, _LONGEST // BLOCK_SIZE) * BLOCK_SIZE + chance.randint(-1, 1)
    return chance.randint(5, _LONGEST)
