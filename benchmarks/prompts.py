"""The tokens of all prompts, by arithmetic, so that every library and every run sees the same.

Owns:   the token function.
Knows nothing of: libraries, time.
"""

from functools import cache

from benchmarks.size import Size

Prompt = list[int]


def token(stream: int, position: int) -> int:
    """0 .. 32767, without a pattern that a hash or a cache could use."""
    mixed = stream * 1_000_003 + position * 7_919 + position * position % 8_191
    return mixed * 2_654_435_761 % (1 << 32) >> 17


def stretch(stream: int, start: int, end: int) -> Prompt:
    """The tokens of one stream in [start, end)."""
    return [token(stream, position) for position in range(start, end)]


@cache
def sharing(size: Size) -> list[Prompt]:
    """W1 and W3: every `sharers` prompts begin alike and go on by themselves."""
    heads = [stretch(i, 0, size.shared) for i in range(size.requests // size.sharers)]
    return [
        heads[i // size.sharers] + stretch(10_000 + i, size.shared, size.prompt)
        for i in range(size.requests)
    ]


@cache
def filling(size: Size) -> list[Prompt]:
    """W2: as many as the pool holds, nothing in common."""
    return [stretch(i, 0, size.churn_prompt) for i in range(size.fill)]


@cache
def churning(size: Size) -> list[Prompt]:
    """W2: as long as those of `filling`, and unknown to them."""
    return [stretch(1_000 + i, 0, size.churn_prompt) for i in range(size.churn)]


@cache
def outputs(steps: int, requests: int) -> list[Prompt]:
    """For each step the output token of each request."""
    return [[token(20_000 + i, step) for i in range(requests)] for step in range(steps)]
