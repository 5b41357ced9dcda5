"""Sampling where a request says nothing: as the model's makers suggest."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kvdist.errors import ConfigError
from kvdist.node.defaults import SamplingDefaults
from kvdist.sched.plan import StepPlan, StepResult
from kvdist.sched.sampling import Sampling
from kvdist.sim.stub_runner import StubRunner
from tests.node.running import running
from tests.node.small import stub

SUGGESTED = SamplingDefaults(
    temperature=0.6, top_p=0.95, top_k=20, min_p=0.05, repetition_penalty=1.1
)


def folder(tmp_path: Path, content: object) -> Path:
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            {
                "temperature": 0.6,
                "top_p": 0.95,
                "top_k": 20,
                "min_p": 0.05,
                "repetition_penalty": 1.1,
                "do_sample": False,
                "eos_token_id": [1, 2],
            },
            SUGGESTED,
        ),
        ({"temperature": 1, "top_k": None}, SamplingDefaults()),
        ({"top_k": -1}, SamplingDefaults()),
        ([], SamplingDefaults()),
    ],
)
def test_what_counts_of_the_file(
    tmp_path: Path, content: object, expected: SamplingDefaults
) -> None:
    assert SamplingDefaults.from_folder(folder(tmp_path, content)) == expected


def test_without_a_file(tmp_path: Path) -> None:
    assert SamplingDefaults.from_folder(tmp_path) == SamplingDefaults()


@pytest.mark.parametrize(
    ("content", "word"),
    [({"top_p": 7}, "top_p is 7"), ({"top_k": 1.5}, "top_k"), ({"temperature": "hot"}, "hot")],
)
def test_what_can_not_be(tmp_path: Path, content: object, word: str) -> None:
    with pytest.raises(ConfigError, match=rf"generation_config\.json: .*{word}.*vllm"):
        SamplingDefaults.from_folder(folder(tmp_path, content))


class _Listening:
    """A runner that notes what is asked of the sampler."""

    def __init__(self, runner: StubRunner) -> None:
        self._runner = runner
        self.asked: list[Sampling] = []

    def execute(self, plan: StepPlan) -> StepResult:
        self.asked += [new.sampling for new in plan.new_sequences]
        return self._runner.execute(plan)


@pytest.mark.parametrize(
    ("defaults", "body", "expected"),
    [
        (SamplingDefaults(), {}, Sampling(temperature=1.0)),
        (
            SUGGESTED,
            {},
            Sampling(temperature=0.6, top_p=0.95, top_k=20, min_p=0.05, repetition_penalty=1.1),
        ),
        (
            SUGGESTED,
            {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1},
            Sampling(),
        ),
        (
            SUGGESTED,
            {"temperature": None, "top_k": -1},
            Sampling(temperature=0.6, top_p=0.95, min_p=0.05, repetition_penalty=1.1),
        ),
    ],
)
def test_a_request_has_the_last_word(
    defaults: SamplingDefaults, body: dict[str, Any], expected: Sampling
) -> None:
    async def main() -> None:
        runner = _Listening(stub())
        async with running(runner=runner, defaults=defaults) as node:
            status, _ = await node.post("/v1/completions", {"prompt": "x", **body})
            assert status == 200
            said = [{"role": "user", "content": "x"}]
            status, _ = await node.post("/v1/chat/completions", {"messages": said, **body})
            assert status == 200
        assert runner.asked == [expected, expected]

    asyncio.run(main())
