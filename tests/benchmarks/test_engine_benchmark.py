"""The engines' benchmark asks what it says, and counts as it says; no time is tested."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.blocks import WorkerError
from benchmarks.engine_rows import (
    CPU,
    FIRST,
    HIT,
    NEXT,
    OUTSIDE,
    RATE,
    Result,
    agreement,
    figures,
    outside,
    results,
)
from benchmarks.engine_work import FULL, SMALL, STREAMS, Answer, Outcome, Step

pytest.importorskip("torch", reason="torch isn't installed (the extra is `serve`)")

from transformers.utils.logging import disable_progress_bar

from benchmarks import engine
from tests.worker import tiny


def test_prompts_are_new_in_each_round_and_shared_where_that_is_meant() -> None:
    for make in FULL.values():
        waves = make(STREAMS)
        asked = [tuple(ask.prompt) for wave in waves for ask in wave]
        later = [tuple(ask.prompt) for wave in make(2 * STREAMS) for ask in wave]
        assert len(asked) < STREAMS
        assert len({prompt[:16] for prompt in (*asked, *later)}) == (
            len(asked) + len(later) if len(waves) == 1 else 2
        )
    (miss,), (hit,) = FULL["prefix"](0)
    same = [mine == other for mine, other in zip(miss.prompt, hit.prompt, strict=True)]
    assert same.index(False) == len(same) * 9 // 10
    (mixed,) = FULL["mixed"](0)
    assert len({len(ask.prompt) for ask in mixed}) == len(mixed)
    assert len({ask.num_tokens for ask in mixed}) == len(mixed)


def test_figures_are_those_of_the_definition() -> None:
    wave = [Answer([1, 2, 3], [0.5, 0.7, 1.0]), Answer([4, 5, 6], [0.7, 0.9, 2.0])]
    assert figures(Outcome([wave], 0.3)) == pytest.approx(
        {FIRST: 600.0, RATE: 3.0, CPU: 50.0, NEXT: 250.0}
    )
    prefix = Outcome([[Answer([1], [0.8])], [Answer([1], [0.2])]], 0.3)
    assert figures(prefix) == pytest.approx({FIRST: 800.0, HIT: 0.25})


def test_outside_the_model_is_all_of_a_decode_step_but_the_model() -> None:
    prefill = Step(0.0, 0.9, 1.0, 4, 64)
    decodes = [Step(1.0 + i, 0.75, 1.9 + i, 4, 4) for i in range(4)]
    assert outside([prefill, *decodes]) == pytest.approx(0.25)
    assert outside([prefill, *decodes[:3]]) is None
    assert outside([Step(1.0 + i, 0.75, 1.9 + i, 3, 3) for i in range(4)]) is None


def test_goals_are_of_ratios_within_a_round() -> None:
    ours = [{RATE: 10.0}, {RATE: 40.0}, {RATE: 20.0}]
    theirs = [{RATE: 20.0}, {RATE: 20.0}, {RATE: 16.0}]
    (result,) = results({"w": {"kvdist": ours, "continuous": theirs, "vllm": theirs}})
    assert result.medians == {"kvdist": 20.0, "continuous": 20.0, "vllm": 20.0}
    assert result.ratios == {"continuous": 1.25, "vllm": 1.25}
    assert not result.missed
    slow = Result("w", RATE, {"kvdist": 1.0}, {"generate": 0.5, "continuous": 0.9, "vllm": 0.8})
    assert slow.missed == ["0.90 of continuous < 1"]
    assert slow.as_cells(["kvdist", "vllm"])[-1] == "NO: 0.90 of continuous < 1"
    assert Result("w", OUTSIDE, {"kvdist": 0.06}, {}).missed == ["0.06 > 0.05"]
    assert Result("w", HIT, {"kvdist": 0.2}, {}).as_cells(["kvdist"])[-1] == "yes"
    assert Result("w", FIRST, {"kvdist": 9.0}, {"vllm": 9.0}).as_cells(["kvdist"])[-1] == ""


def test_answers_agree_token_for_token() -> None:
    one, other = Answer([1, 2], [0, 1]), Answer([1, 3], [0, 1])
    assert agreement([Outcome([[one, one]], 0)], [Outcome([[one, other]], 0)]) == 0.5


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_engines_answer_alike_and_the_report_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = tmp_path / "llama", tmp_path / "engine.json"
    disable_progress_bar()  # it would leave a thread behind
    network = tiny.network("llama")
    network.resize_token_embeddings(1 << 15, mean_resizing=False)  # the tokens of all prompts
    network.save_pretrained(folder)
    engine.main(model=str(folder), json_file=file, rounds=1, small=True)
    written: dict[str, Any] = json.loads(file.read_text())
    assert set(written["agreement"]) == {"generate", "continuous"}
    assert min(written["agreement"].values()) > 0.5  # noise is close, now and then
    found = {(row["work"], row["figure"]): row for row in written["rows"]}
    assert {work for work, _ in found} == set(SMALL)
    assert found["batch 4", OUTSIDE]["medians"]["kvdist"] < 1
    assert set(found["mixed", RATE]["medians"]) == {"kvdist", "generate", "continuous"}
    assert "load average" in capsys.readouterr().out


def test_an_engine_that_fails_is_an_error(tmp_path: Path) -> None:
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexit 1\n")
    silent.chmod(0o755)
    with pytest.raises(WorkerError, match="no answer"):
        engine.measure(["mixed"], str(tmp_path), pythons={"kvdist": str(silent)}, small=True)
