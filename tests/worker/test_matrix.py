"""The whole matrix, and real weights; minutes, so `make models` runs it and CI doesn't."""

import sys
from functools import cache
from typing import Any, Final

import pytest
from transformers import AutoTokenizer

from kvdist import check
from kvdist.worker.default_model import default_model
from kvdist.worker.model import Model, load
from tests.worker.serving import Engine
from tests.worker.test_greedy import prompts, serve
from tests.worker.tiny import FAMILIES, Comparison, Continuation, generated, network, stream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TEXTS: Final = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain in three sentences why the sky is blue, and what changes at sunset.",
    "List the first ten prime numbers.",
    "Translate to French: the cat sleeps on the chair near the window.",
    "Who wrote Hamlet?",
)
NUM_TOKENS: Final = 48


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words are what is looked at here; the audit of every change is for other tests."""
    monkeypatch.setattr(check, "level", 0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [*range(1, 41), 63, 64, 65, 300])
def test_every_family_and_chunk_size(family: str, size: int) -> None:
    engine = Engine(Model.of(network(family)), max_num_batched_tokens=size)
    serve(family, engine, [stream(0)[:70], stream(0)[:33], stream(1)[:8]])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("block_size", [1, 2, 3, 16, 64])
@pytest.mark.parametrize("depth", [1, 2])
def test_every_family_and_block_size(family: str, block_size: int, depth: int) -> None:
    settings: dict[str, Any] = {"block_size": block_size, "max_model_len": 90}
    model = Model.of(network(family))
    longest = Engine(model, **settings).scheduler.longest_blocks
    engine = Engine(
        model,
        num_blocks=longest + longest // 3 + 2,
        max_num_batched_tokens=48,
        max_steps_in_flight=depth,
        **settings,
    )
    serve(family, engine, prompts(3))


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt-oss"])
def test_prompts_longer_than_a_tile(family: str) -> None:
    engine = Engine(Model.of(network(family)), max_num_batched_tokens=2048)
    serve(family, engine, [stream(0)[:300], stream(1)[:290], stream(0)[:257]])


# -- real weights ------------------------------------------------------------------------------


@cache
def smollm2() -> tuple[Model, Any]:
    folder = default_model(lambda what, share: print(f"{share:4.0%} {what}", file=sys.stderr))  # noqa: T201
    return load(folder, "float32"), AutoTokenizer.from_pretrained(folder)


@cache
def chat(text: str) -> tuple[int, ...]:
    _, tokenizer = smollm2()
    message = [{"role": "user", "content": text}]
    return tuple(tokenizer.apply_chat_template(message, add_generation_prompt=True)["input_ids"])


@cache
def expected(text: str) -> Continuation:
    network = smollm2()[0].network
    network.set_attn_implementation("sdpa")
    try:
        return generated(network, chat(text), NUM_TOKENS)
    finally:
        network.set_attn_implementation("kvdist")


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 2048},
        {"max_num_batched_tokens": 7, "max_steps_in_flight": 1},
        {"max_num_batched_tokens": 64, "cache": {"enable_caching": False}},
        {"max_num_batched_tokens": 64, "num_blocks": 24, "max_model_len": 112},
    ],
    ids=["whole", "small-chunks", "no-cache", "preemptions"],
)
def test_real_weights(settings: dict[str, Any]) -> None:
    texts = {text: expected(text) for text in TEXTS}
    engine = Engine(smollm2()[0], **{"block_size": 8, "max_model_len": 256, **settings})
    comparison = Comparison()
    for _ in range(2):  # the second time from the cache
        ids = {text: engine.add(chat(text), NUM_TOKENS) for text in TEXTS}
        engine.run()
        for text, request_id in ids.items():
            assert len(engine.tokens[request_id]) == NUM_TOKENS
            comparison.add(texts[text], engine.tokens[request_id])
    comparison.check_share()
    if "num_blocks" in settings:
        assert engine.scheduler.stats.num_preemptions > 0


def test_it_answers() -> None:
    model, tokenizer = smollm2()
    engine = Engine(model, block_size=16, max_model_len=256)
    end = frozenset([tokenizer.eos_token_id])
    request_id = engine.add(chat(TEXTS[0]), 20, stop_token_ids=end)
    engine.run()
    answer = tokenizer.decode(engine.tokens[request_id], skip_special_tokens=True)
    assert answer == "The capital of France is Paris."
