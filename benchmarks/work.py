"""The work: what every library has to do, what is timed of it, and that it was done right.

Owns:   the order of all calls.
Knows nothing of: libraries, processes, tables.
Units:  microseconds a prompt; decode: a step and request; the rest by name.

W1 is one full-attention group: requests of which many begin alike are admitted, decode, and go.
W2 is eviction: a pool in which every free block is cached, and prompts that it doesn't know.
W3 is hybrid: full attention and two sliding windows; sparse: windows publish only what a resend
can use, so a second request misses too.
"""

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks import prompts
from benchmarks.library import Engine, H, Pool, R
from benchmarks.size import Size
from benchmarks.stopwatch import Stopwatch

SHA: Final = "sha256"
MICRO: Final = 1e6


class WrongNumberError(Exception):
    """A library did something else than the work."""


@dataclass(slots=True)
class Outcome:
    """Of one run of one work."""

    #: What was measured, by name; the units are those of `rows.ROWS`.
    figures: dict[str, float] = field(default_factory=dict)
    #: Hits and blocks, each equal to what `Size` says.
    numbers: dict[str, int] = field(default_factory=dict)

    def check(self, what: str, number: int, expected: int) -> None:
        """Note a number. Raises: WrongNumberError unless it is the expected one."""
        if number != expected:
            raise WrongNumberError(f"{what} is {number}, not {expected}")
        self.numbers[what] = number


@dataclass(slots=True)
class Sums:
    """Seconds and hits of many requests."""

    lookup: float = 0.0
    allocate: float = 0.0
    append: float = 0.0
    step: float = 0.0
    free: float = 0.0
    hit_tokens: int = 0

    def per_request(self, watch: Stopwatch, requests: int) -> dict[str, float]:
        """Figures of what is timed call by call."""
        seconds = {"lookup": self.lookup, "allocate": self.allocate, "free": self.free}
        return {
            name: watch.net(total, requests) / requests * MICRO for name, total in seconds.items()
        }

    def per_step(self, steps: int) -> dict[str, float]:
        """Figures of decoding; `steps` counts every step of every request."""
        return {
            "append": self.append / steps * MICRO,
            "step": self.step / steps * MICRO,
            "decode": (self.append + self.step) / steps * MICRO,
        }


def admit(engine: Engine[R, H], requests: Sequence[R], watch: Stopwatch, sums: Sums) -> None:
    """Look up, allocate the whole prompt, compute it: one request after the other."""
    now = watch.now
    for request in requests:
        start = now()
        hit = engine.lookup(request)
        found = now()
        sums.hit_tokens += engine.accept(request, hit)
        accepted = now()
        engine.allocate(request, hit)
        allocated = now()
        engine.computed(request)
        sums.lookup += found - start
        sums.allocate += allocated - accepted


def decode(
    engine: Engine[R, H], requests: Sequence[R], steps: int, watch: Stopwatch, sums: Sums
) -> None:
    """In each step one token more for every request, then a slot for it."""
    now = watch.now
    for tokens in prompts.outputs(steps, len(requests)):
        start = now()
        engine.append(requests, tokens)
        appended = now()
        engine.step(requests)
        sums.append += appended - start
        sums.step += now() - appended


def free(engine: Engine[R, H], requests: Sequence[R], watch: Stopwatch, sums: Sums) -> None:
    """All of them, in order."""
    now = watch.now
    for request in requests:
        start = now()
        engine.free(request)
        sums.free += now() - start


def hashing(engine: Engine[R, H], size: Size, watch: Stopwatch) -> Outcome:
    """Requests made without hashes, then with each hash; nothing is remembered between them."""
    outcome = Outcome()
    texts = prompts.sharing(size)
    for algorithm in (None, *engine.algorithms):
        with watch.quiet():
            start = watch.now()
            requests = engine.create(texts, algorithm)
            seconds = watch.now() - start
        outcome.figures[algorithm or "create"] = seconds / len(requests) * MICRO
    return outcome


def w1(engine: Engine[R, H], size: Size, watch: Stopwatch) -> Outcome:
    """One full-attention group."""
    outcome, sums, batch = Outcome(), Sums(), size.batch
    requests = engine.create(prompts.sharing(size), SHA)
    engine.make(Pool(num_blocks=size.pool_blocks))
    prefilled = size.prefilled_blocks(batch)
    with watch.quiet():
        admit(engine, requests[:batch], watch, sums)
        outcome.check("hit tokens", sums.hit_tokens, size.hit_tokens(batch))
        outcome.check("blocks after prefill", engine.used(), prefilled)
        decode(engine, requests[:batch], size.steps, watch, sums)
        outcome.check("blocks after decode", engine.used(), prefilled + batch * size.decoded_blocks)
        free(engine, requests[:batch], watch, sums)
        outcome.check("blocks after free", engine.used(), 0)
        admit(engine, requests[batch:], watch, sums)
        outcome.check("all hit tokens", sums.hit_tokens, size.hit_tokens(size.requests))
        outcome.check("blocks after second prefill", engine.used(), prefilled)
        free(engine, requests[batch:], watch, sums)
    outcome.figures |= sums.per_request(watch, size.requests) | sums.per_step(batch * size.steps)
    return outcome


def w2(engine: Engine[R, H], size: Size, watch: Stopwatch) -> Outcome:
    """Eviction churn."""
    outcome, sums = Outcome(), Sums()
    filling = engine.create(prompts.filling(size), SHA)
    churning = engine.create(prompts.churning(size), SHA)
    blocks = size.churn_pool_blocks - 1
    engine.make(Pool(num_blocks=size.churn_pool_blocks))
    admit(engine, filling, watch, Sums())
    outcome.check("blocks after fill", engine.used(), blocks)
    free(engine, filling, watch, Sums())
    outcome.check("cached before churn", engine.cached(), blocks)
    with watch.quiet():
        for request in churning:
            admit(engine, (request,), watch, sums)
            free(engine, (request,), watch, sums)
    outcome.check("hit tokens", sums.hit_tokens, 0)
    outcome.check("cached after churn", engine.cached(), blocks)
    outcome.figures |= sums.per_request(watch, size.churn)
    whole = sum(outcome.figures.values())
    evictions = size.evictions / size.churn * MICRO
    outcome.figures["evictions"] = evictions / outcome.figures["allocate"]
    outcome.figures["evictions_whole"] = evictions / whole
    return outcome


def w3(engine: Engine[R, H], size: Size, watch: Stopwatch, *, sparse: bool = False) -> Outcome:
    """Full attention and two sliding windows."""
    outcome, sums = Outcome(), Sums()
    count, decoding, misses = size.hybrid_requests, size.hybrid_decoding, 2 if sparse else 1
    requests = engine.create(prompts.sharing(size)[:count], SHA)
    engine.make(
        Pool(
            num_blocks=size.pool_blocks,
            windows=(size.window, size.window),
            retention_interval=0 if sparse else None,
        )
    )
    prefilled = 3 * size.prefilled_blocks(count, misses)
    with watch.quiet():
        admit(engine, requests, watch, sums)
        outcome.check("hit tokens", sums.hit_tokens, size.hit_tokens(count, misses))
        outcome.check("blocks after prefill", engine.used(), prefilled)
        decode(engine, requests[:decoding], size.steps, watch, sums)
        decoded = size.hybrid_decoded_blocks(misses)
        outcome.check("blocks after decode", engine.used(), decoded)
        free(engine, requests, watch, sums)
    outcome.check("blocks after free", engine.used(), 0)
    outcome.figures |= sums.per_request(watch, count) | sums.per_step(decoding * size.steps)
    return outcome


def w3_sparse(engine: Engine[R, H], size: Size, watch: Stopwatch) -> Outcome:
    """W3 with windows that publish little."""
    return w3(engine, size, watch, sparse=True)


def pool(engine: Engine[R, H], size: Size, watch: Stopwatch) -> Outcome:
    """A manager is made, nothing more: seconds, and MiB that Python has allocated for it."""
    outcome, empty, large = Outcome(), Pool(num_blocks=2), Pool(num_blocks=size.made_blocks)
    engine.make(empty)
    with watch.quiet():
        start = watch.now()
        engine.make(large)
        outcome.figures["make"] = watch.now() - start
    engine.make(empty)
    tracemalloc.start()
    engine.make(large)
    outcome.figures["memory"] = tracemalloc.get_traced_memory()[0] / (1 << 20)
    tracemalloc.stop()
    outcome.check("blocks after make", engine.used(), 0)
    engine.make(empty)
    return outcome


Work = Callable[[Engine[Any, Any], Size, Stopwatch], Outcome]

WORKS: Final[dict[str, Work]] = {
    "hash": hashing,
    "W1": w1,
    "W2": w2,
    "W3": w3,
    "W3_sparse": w3_sparse,
    "pool": pool,
}
