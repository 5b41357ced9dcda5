"""Sampling beside a slow and plain version of it."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from kvdist.sched.plan import NewSequence, SampledTokens
from kvdist.sched.sampling import Sampling
from kvdist.worker.rows import Row
from kvdist.worker.sampling import sample

VOCAB = 40


def a_row(prompt: Sequence[int] = (1, 2), output: Sequence[int] = (), **asked: Any) -> Row:
    tokens = (*prompt, *output)
    return Row(
        NewSequence("r", tokens, ((),), num_prompt_tokens=len(prompt), sampling=Sampling(**asked)),
        0,
    )


def some_logits(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def plain_distribution(logits: Sequence[float], row: Row) -> list[float]:
    """Probability of each token, by the book."""
    asked, tokens = row.sampling, row.tokens.tolist()
    scores = list(logits)
    for token in range(VOCAB):
        if token in tokens:
            factor = asked.repetition_penalty
            scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
        count = tokens[row.num_prompt_tokens :].count(token)
        scores[token] -= count * asked.frequency_penalty + bool(count) * asked.presence_penalty
    weights = [math.exp((score - max(scores)) / asked.temperature) for score in scores]
    weights = [weight if weight >= asked.min_p else 0.0 for weight in weights]
    order = sorted(range(VOCAB), key=lambda token: -weights[token])
    for token in order[asked.top_k or VOCAB :]:
        weights[token] = 0.0
    total, before = sum(weights), 0.0
    for token in order:
        weight, weights[token] = weights[token], weights[token] * (before < asked.top_p)
        before += weight / total
    return [weight / sum(weights) for weight in weights]


ASKED = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.3, 1.0, 1.7]),
        "top_p": st.sampled_from([0.1, 0.5, 0.9, 1.0]),
        "top_k": st.sampled_from([0, 1, 3, 20, 1000]),
        "min_p": st.sampled_from([0.0, 0.01, 0.2]),
        "repetition_penalty": st.sampled_from([0.8, 1.0, 1.5]),
        "presence_penalty": st.sampled_from([-1.0, 0.0, 1.5]),
        "frequency_penalty": st.sampled_from([-0.5, 0.0, 0.5]),
    }
)
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=6)


@given(asked=ASKED, prompt=TOKENS, output=TOKENS, seed=st.integers(0, 1 << 20))
def test_only_what_can_come_comes(
    asked: dict[str, Any], prompt: list[int], output: list[int], seed: int
) -> None:
    logits = some_logits(seed)
    rows = [a_row([0, *prompt], output, seed=i, **asked) for i in range(20)]
    expected = plain_distribution(logits[0].tolist(), rows[0])
    for answer in sample(logits.repeat(20, 1), rows):
        assert expected[answer.token_ids[0]] > 0


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 1.5, "top_p": 0.8, "min_p": 0.02},
        {"temperature": 1.0, "top_k": 12, "top_p": 0.7, "frequency_penalty": 0.5},
    ],
)
def test_as_often_as_it_is_likely(asked: dict[str, Any]) -> None:
    count, logits = 20_000, some_logits(7)
    rows = [a_row([5, 6], [7, 7], seed=i, **asked) for i in range(count)]
    expected = plain_distribution(logits[0].tolist(), rows[0])
    answers = sample(logits.repeat(count, 1), rows)
    found = torch.bincount(torch.tensor([a.token_ids[0] for a in answers]), minlength=VOCAB)
    for share, times in zip(expected, found.tolist(), strict=True):
        assert abs(times - count * share) <= 5 * math.sqrt(count * share * (1 - share)) + 5 * (
            share > 0
        )


def test_a_seed_repeats_in_any_company_and_after_a_preemption() -> None:
    logits = some_logits(3, 6)
    alone = sample(logits[2:3].clone(), [a_row(temperature=1.0, seed=11)])[0]
    others = [a_row(temperature=2.0), a_row(), a_row(temperature=1.0, seed=11)]
    others += [a_row(temperature=0.5, top_k=3), a_row(num_logprobs=2), a_row(min_p=0.5)]
    assert sample(logits.clone(), others)[2] == alone
    row = a_row([1, 2], [3], temperature=1.0, seed=11)
    again = a_row([1, 2, 3], [], temperature=1.0, seed=11)
    assert sample(logits[:1].clone(), [row]) == sample(logits[:1].clone(), [again])


def test_rows_without_a_seed_differ() -> None:
    rows = [a_row(temperature=1.0) for _ in range(50)]
    assert len({a.token_ids for a in sample(torch.zeros(50, VOCAB), rows)}) > 5


def test_the_smallest_temperature_is_greedy() -> None:
    logits = some_logits(1)
    (answer,) = sample(logits.clone(), [a_row(temperature=1e-300, seed=1)])
    assert answer.token_ids[0] == int(logits.argmax())


def test_logprobs_are_the_models_own() -> None:
    logits = some_logits(9, 3)
    expected = logits.log_softmax(-1)
    rows = [
        a_row([4], [5], num_logprobs=3, temperature=1.0, seed=2, repetition_penalty=1.9),
        a_row(num_logprobs=0),
        a_row(),
    ]
    first, second, third = sample(logits.clone(), rows)
    (told,) = first.logprobs
    assert told.logprob == pytest.approx(float(expected[0, first.token_ids[0]]))
    best = expected[0].topk(3)
    assert [token for token, _ in told.top] == best.indices.tolist()
    assert [value for _, value in told.top] == pytest.approx(best.values.tolist())
    assert second.logprobs[0].top == () and third == SampledTokens((int(logits[2].argmax()),))


def test_more_logprobs_than_tokens() -> None:
    (answer,) = sample(torch.zeros(1, 4), [a_row([1], num_logprobs=32)])
    assert len(answer.logprobs[0].top) == 4


def test_nobody_samples() -> None:
    assert sample(torch.zeros(0, VOCAB), []) == []


def test_a_model_that_says_nan_gives_a_token_all_the_same() -> None:
    (answer,) = sample(torch.full((1, VOCAB), torch.nan), [a_row(temperature=1.0)])
    assert 0 <= answer.token_ids[0] < VOCAB
