"""What may be asked of a sampler, and how it reaches the worker."""

from typing import Any

import pytest

from kvdist.cache import FullAttentionSpec, KVCacheConfig, KVCacheManager
from kvdist.errors import InvalidRequest
from kvdist.sched.plan import SampledTokens, StepResult
from kvdist.sched.sampling import Sampling, TokenLogprobs
from kvdist.sched.scheduler import Scheduler
from kvdist.sched.sequence import SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", "1"),
        ("temperature", True),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("top_k", 1.0),
        ("min_p", 1.5),
        ("seed", 1 << 63),
        ("repetition_penalty", 0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", float("inf")),
        ("num_logprobs", -1),
        ("num_logprobs", 33),
    ],
)
def test_out_of_bounds(name: str, value: object) -> None:
    wrong: Any = {name: value}
    with pytest.raises(InvalidRequest, match=name):
        Sampling(**wrong)


def test_each_of_several_has_a_seed_of_its_own() -> None:
    assert [Sampling(seed=5).of_sample(i).seed for i in range(3)] == [5, 6, 7]
    assert Sampling(seed=(1 << 63) - 1).of_sample(1).seed == -(1 << 63)
    assert Sampling().of_sample(1) == Sampling()


def test_it_reaches_the_worker_and_logprobs_come_back() -> None:
    config = KVCacheConfig.single(FullAttentionSpec(block_size=4), num_blocks=11)
    scheduler = Scheduler(KVCacheManager(config))
    asked = Sampling(temperature=1.0, seed=3, num_logprobs=0)
    params = SamplingParams(n=2, max_new_tokens=1, sampling=asked)
    first, second = scheduler.add("r", [1, 2, 3], params)
    plan = scheduler.schedule()
    assert plan is not None
    assert [new.sampling.seed for new in plan.new_sequences] == [3, 4]
    assert [new.num_prompt_tokens for new in plan.new_sequences] == [3, 3]
    logprobs = (TokenLogprobs(-0.25),)
    sampled = SampledTokens((7,), logprobs=logprobs)
    outputs = scheduler.settle(
        StepResult(plan.step, dict.fromkeys((first.request_id, second.request_id), sampled))
    )
    assert [output.logprobs for output in outputs] == [logprobs, logprobs]
