"""Greedy output is what transformers generates, token for token, whatever the scheduler does."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from kvdist.ids import RequestId
from kvdist.worker.model import Model
from tests.worker.serving import Engine
from tests.worker.tiny import FAMILIES, WITH_STATES, Comparison, continuation, network, stream

#: Of each stream, prompts of these lengths: they share what they begin with.
LENGTHS = (1, 7, 8, 33, 70)
NUM_TOKENS = 14
#: Families that differ in what the scheduler does with them.
KINDS = ("llama", "gemma3", "falcon-h1")

Wanted = dict[RequestId, tuple[int, ...]]


def prompts(num_streams: int = 2, lengths: Sequence[int] = LENGTHS) -> list[tuple[int, ...]]:
    return [stream(number)[:length] for number in range(num_streams) for length in lengths]


def compare(family: str, engine: Engine, wanted: Wanted, comparison: Comparison) -> None:
    for request_id, prompt in wanted.items():
        tokens = engine.tokens[request_id]
        comparison.add(continuation(family, prompt, NUM_TOKENS), tokens)


def serve(family: str, engine: Engine, chosen: Sequence[tuple[int, ...]]) -> None:
    """All at once, each to its end."""
    wanted = {engine.add(prompt, NUM_TOKENS): prompt for prompt in chosen}
    engine.run()
    assert all(len(engine.tokens[request_id]) == NUM_TOKENS for request_id in wanted)
    comparison = Comparison()
    compare(family, engine, wanted, comparison)
    comparison.check_share()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("depth", [1, 2])
def test_chunks_and_decodes_in_one_step(family: str, depth: int) -> None:
    engine = Engine(Model.of(network(family)), max_num_batched_tokens=32, max_steps_in_flight=depth)
    serve(family, engine, prompts())


@pytest.mark.parametrize("family", FAMILIES)
def test_whole_prompts_without_cache(family: str) -> None:
    engine = Engine(
        Model.of(network(family)), cache={"enable_caching": False}, enable_chunked_prefill=False
    )
    serve(family, engine, prompts(1))


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("size", [*range(1, 18), 23])
def test_every_chunk_size(family: str, size: int) -> None:
    engine = Engine(Model.of(network(family)), max_num_batched_tokens=size)
    serve(family, engine, [stream(0)[:33], stream(1)[:8]])


@pytest.mark.parametrize("family", FAMILIES)
def test_prefix_hits(family: str) -> None:
    engine = Engine(Model.of(network(family)), block_size=4)
    serve(family, engine, [stream(0)[:70]])
    serve(family, engine, prompts(1))
    assert engine.manager.stats.hits > (40 if family in WITH_STATES else 100)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pool_barely_large_enough(family: str) -> None:
    model = Model.of(network(family))
    settings: dict[str, Any] = {"block_size": 4, "max_model_len": 90, "max_num_batched_tokens": 64}
    longest = Engine(model, **settings).scheduler.longest_blocks
    engine = Engine(model, num_blocks=longest + longest // 4 + 2, **settings)
    serve(family, engine, prompts(2))
    assert engine.scheduler.stats.num_preemptions > 0 or family in WITH_STATES


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_aborts_at_random_points(family: str, seed: int) -> None:
    chance = random.Random(seed)
    model = Model.of(network(family))
    engine = Engine(
        model,
        block_size=4,
        num_blocks=40 * len(model.layout(4).kv_cache_groups),
        max_model_len=90,
        max_num_batched_tokens=chance.choice((5, 16, 64)),
        max_steps_in_flight=chance.choice((1, 2)),
    )
    wanted: Wanted = {}
    for _ in range(3):
        for prompt in chance.sample(prompts(), 5):
            wanted[engine.add(prompt, NUM_TOKENS)] = prompt
        for _ in range(chance.randrange(12)):
            engine.turn()
        for request_id in chance.sample(sorted(wanted), 2):
            engine.abort(request_id)
    engine.run()
    comparison = Comparison()
    compare(family, engine, wanted, comparison)
    comparison.check_share()
    assert engine.scheduler.manager.ledger().free == engine.config.num_blocks - 1
