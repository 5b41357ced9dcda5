"""What a pair's benchmark counts is what it says; no time is tested."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.pair_cluster import token_bytes
from benchmarks.pair_figures import (
    FirstToken,
    Isolation,
    Served,
    Slo,
    gaps,
    percentile,
    tail,
)
from benchmarks.pair_load import Heard, arrivals


def test_percentiles_lie_between_values_in_proportion() -> None:
    values = [float(number) for number in range(101)]
    assert [percentile(values[::-1], share) for share in (1, 50, 99)] == [1.0, 50.0, 99.0]
    assert percentile([1.0, 2.0], 50) == 1.5
    assert percentile([3.0], 99) == 3.0
    assert percentile([], 99) != percentile([], 99)  # not a number


def test_goodput_counts_what_meets_both_objectives_by_the_time_of_all() -> None:
    good = Heard(1.0, [2.0, 2.1, 2.2], 3, num_prompt=60, num_remote=45)
    late = Heard(1.0, [3.5, 3.6], 2, num_prompt=40, num_remote=30)
    slow = Heard(2.0, [2.5, 2.6, 4.0], 3)
    failed = Heard(2.0, [2.1], error="cut")
    slo = Slo(ttft_s=2.0, tpot_s=0.5)
    assert [slo.is_met(one) for one in (good, late, slow, failed)] == [True, False, False, False]
    served = Served("pair", 0.5, [good, late, slow, failed], slo)
    assert served.goodput == 1 / 4.0
    assert served.firsts == [1.0, 2.5, 0.5]
    assert served.gaps == pytest.approx([0.1, 0.1, 0.1, 0.1, 1.4])
    assert served.as_cells()[:4] == ("pair", "0.5", "4", "1")
    assert served.as_cells()[-1] == "75%"
    assert Served("none", 0.5, [Heard(0.0, error="x")], slo).goodput == 0


def test_one_token_has_no_time_between_tokens() -> None:
    assert gaps([1.0]) == []
    assert Slo(1.0, 0.1).is_met(Heard(0.0, [0.5], 1))


def test_added_is_of_rounds_and_its_bound_is_of_medians() -> None:
    found = FirstToken("shm", 1000, 256, single=[1.0, 3.0, 2.0], pair=[1.2, 3.1, 2.3])
    found.last_chunk, found.trips, found.steps = [0.05], [0.01, 0.02, 0.03], [0.1]
    assert found.added_s == pytest.approx(0.2)
    assert found.bound_s == pytest.approx(0.19)
    assert found.as_cells()[-1] == "NO"
    found.steps = [0.2]
    assert found.as_cells()[-1] == "yes"


def test_isolation_is_of_99th_percentiles() -> None:
    found = Isolation("pair", without=[0.1] * 10, beside=[0.1] * 5 + [0.3] * 5, firsts=[2.0])
    assert found.ratio == pytest.approx(3.0)
    assert found.as_json()["ratio"] == found.ratio
    assert list(tail([3.0, 1.0])) == [(1.0, 1.0), (3.0, 0.5)]


def test_requests_come_by_seed_at_their_rate_and_no_two_prompts_are_alike() -> None:
    asks = arrivals(1, 4.0, 200.0, 64, 8)
    assert asks == arrivals(1, 4.0, 200.0, 64, 8)
    assert 700 < len(asks) < 900
    assert all(one.at_s < other.at_s for one, other in pairwise(asks))
    assert all(32 <= len(one.prompt) <= 96 for one in asks)
    others = [*asks, *arrivals(2, 4.0, 1.0, 64, 8)]
    assert len({tuple(one.prompt[:16]) for one in others}) == len(others)
    assert len(arrivals(1, 0.001, 1.0, 64, 8)) == 1


def test_bytes_of_a_token_are_those_of_the_models_layers(tmp_path: Path) -> None:
    config = {
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 576,
        "dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert token_bytes(tmp_path) == 23_040
