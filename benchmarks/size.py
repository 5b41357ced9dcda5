"""How much work the benchmark does, and the numbers that each library must reach doing it.

Owns:   the sizes and the arithmetic of hits and blocks.
Knows nothing of: libraries, time.
Units:  tokens, blocks, requests, by name.
"""

from dataclasses import dataclass
from typing import Final

BLOCK: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """All counts of the work. `FULL` is the benchmark, `SMALL` only shows that it runs."""

    #: W1 and W3: blocks of the pool, the null block included.
    pool_blocks: int
    #: W1: all requests; the first `batch` of them run and end, then the others.
    requests: int
    batch: int
    #: W1 and W3: tokens of a prompt, and how many of them it shares with how many prompts.
    prompt: int
    shared: int
    sharers: int
    #: W1 and W3: decode steps.
    steps: int
    #: W2: prompts that fill the pool, prompts that then churn it, and their tokens.
    fill: int
    churn: int
    churn_prompt: int
    #: W3: requests, how many of them decode, and the sliding window.
    hybrid_requests: int
    hybrid_decoding: int
    window: int
    #: The pool that is only made.
    made_blocks: int

    @property
    def churn_pool_blocks(self) -> int:
        """W2's pool: the null block and exactly what the fill takes."""
        return self.fill * self.churn_prompt // BLOCK + 1

    @property
    def evictions(self) -> int:
        """W2: every block that the churn takes was cached."""
        return self.churn * self.churn_prompt // BLOCK

    def hit_tokens(self, requests: int, misses: int = 1) -> int:
        """When the first `misses` requests of every `sharers` hit nothing."""
        return (requests - requests // self.sharers * misses) * self.shared

    def prefilled_blocks(self, requests: int, misses: int = 1) -> int:
        """In use in one group after their prefill."""
        copies = requests // self.sharers * misses * self.shared
        return (copies + requests * (self.prompt - self.shared)) // BLOCK

    @property
    def decoded_blocks(self) -> int:
        """What decoding adds to a request in a full-attention group."""
        return self.steps // BLOCK

    def hybrid_decoded_blocks(self, misses: int) -> int:
        """W3: in use in all three groups after prefill and decode."""
        decoding, waiting = self.hybrid_decoding, self.hybrid_requests - self.hybrid_decoding
        full = self.prefilled_blocks(self.hybrid_requests, misses) + decoding * self.decoded_blocks
        last = self.prompt + self.steps - 1
        in_window = (self.prompt + self.steps) // BLOCK - (last - self.window + 1) // BLOCK
        return full + 2 * (self.prefilled_blocks(waiting, misses) + decoding * in_window)


FULL: Final = Size(
    pool_blocks=65_536,
    requests=512,
    batch=256,
    prompt=4_096,
    shared=2_048,
    sharers=16,
    steps=64,
    fill=64,
    churn=256,
    churn_prompt=2_048,
    hybrid_requests=128,
    hybrid_decoding=64,
    window=1_024,
    made_blocks=1_000_000,
)

SMALL: Final = Size(
    pool_blocks=1_024,
    requests=16,
    batch=8,
    prompt=256,
    shared=128,
    sharers=4,
    steps=32,
    fill=4,
    churn=8,
    churn_prompt=128,
    hybrid_requests=8,
    hybrid_decoding=4,
    window=64,
    made_blocks=1_000,
)
