"""Whatever comes in whatever order, with whatever settings: the tokens are transformers' own."""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from kvdist.worker.model import Model
from tests.worker.serving import Engine
from tests.worker.test_greedy import NUM_TOKENS, Wanted, compare, prompts
from tests.worker.tiny import FAMILIES, Comparison, network

#: Of all examples together.
COMPARISON = Comparison()

ARRIVAL = st.tuples(st.just("add"), st.sampled_from(prompts()), st.integers(1, NUM_TOKENS))
OTHER = st.tuples(st.sampled_from(["turn", "abort"]), st.integers(0, 9), st.none())
ACTS = st.lists(st.one_of(ARRIVAL, ARRIVAL, OTHER), min_size=1, max_size=16)


@st.composite
def engines(draw: st.DrawFn) -> tuple[str, Engine]:
    family, block_size = (
        draw(st.sampled_from(sorted(FAMILIES))),
        draw(st.sampled_from([1, 2, 4, 8])),
    )
    cache: dict[str, Any] = {"enable_caching": draw(st.booleans())}
    if cache["enable_caching"]:
        cache["hash_block_size"] = draw(
            st.sampled_from([1, 2, 4, 8]).filter(lambda n: n <= block_size)
        )
        cache["enable_partial_hits"] = draw(st.booleans())
    shape: dict[str, Any] = {"block_size": block_size, "max_model_len": 90, "cache": cache}
    model = Model.of(network(family))
    longest = Engine(model, **shape).scheduler.longest_blocks
    engine = Engine(
        model,
        num_blocks=longest + 2 + draw(st.integers(0, 2 * longest)),
        max_num_batched_tokens=draw(st.integers(1, 64)),
        max_num_seqs=draw(st.integers(1, 8)),
        max_steps_in_flight=draw(st.integers(1, 2)),
        **shape,
    )
    return family, engine


@pytest.mark.timeout(600)
@settings(max_examples=80)
@given(made=engines(), acts=ACTS)
def test_random_work(made: tuple[str, Engine], acts: list[tuple[str, Any, Any]]) -> None:
    family, engine = made
    wanted: Wanted = {}
    lengths: dict[str, int] = {}
    for act, what, num_tokens in acts:
        if act == "add":
            request_id = engine.add(what, num_tokens)
            wanted[request_id], lengths[request_id] = what, num_tokens
        elif act == "turn":
            for _ in range(what):
                engine.turn()
        elif wanted:
            aborted = sorted(wanted)[what % len(wanted)]
            engine.abort(aborted)
            lengths.pop(aborted, None)
    engine.run()
    assert all(len(engine.tokens[request_id]) == length for request_id, length in lengths.items())
    compare(family, engine, wanted, COMPARISON)
    assert engine.manager.ledger().free == engine.config.num_blocks - 1
    assert len(engine.runner.rows) <= len(wanted)


def test_few_parted() -> None:
    COMPARISON.check_share()
