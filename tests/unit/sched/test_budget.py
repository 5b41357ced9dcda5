"""Settings, and where chunks end."""

from typing import Any

import pytest

from kvdist.cache import KVCacheSpec
from kvdist.errors import ConfigError
from kvdist.sched.budget import Chunks, SchedulerConfig
from tests.make import Node, full, make_config, mamba


def ends(
    *specs: KVCacheSpec, target: int, budget: int, whole: bool = False, **more: Any
) -> list[int]:
    """Ends of all chunks of a prompt of `target` tokens."""
    settings = SchedulerConfig(enable_chunked_prefill=not whole)
    config = make_config(*specs, **more)
    chunks, found = Chunks(config, settings), [0]
    request = Node(*specs, **more).request("r", [1] * target)
    while found[-1] < target and len(found) < 50:
        found.append(chunks.end(request, found[-1], target, budget))
    return found[1:]


def test_without_states_a_chunk_is_the_budget() -> None:
    assert ends(full(), target=20, budget=7) == [7, 14, 20]


def test_chunks_end_where_states_do() -> None:
    assert ends(full(), mamba(4), target=18, budget=7) == [4, 8, 12, 16, 18]
    assert ends(full(), mamba(4), target=18, budget=9) == [8, 16, 18]
    assert ends(full(), mamba(4), target=16, budget=99) == [16]


def test_a_budget_below_a_block_ends_inside_it_but_never_runs_over_its_end() -> None:
    assert ends(full(), mamba(8), target=20, budget=3) == [3, 6, 8, 11, 14, 16, 19, 20]


def test_states_of_several_sizes() -> None:
    assert ends(full(4), mamba(4), mamba(8), target=21, budget=13) == [8, 16, 21]
    assert ends(full(4), mamba(4), mamba(8), target=9, budget=3) == [3, 4, 7, 8, 9]


def test_a_resend_can_resume_at_the_prompts_tail() -> None:
    found = ends(full(4), mamba(8), target=15, budget=99, enable_partial_hits=True)
    assert found == [8, 12, 15]
    assert ends(full(4), mamba(8), target=15, budget=99) == [8, 15]


def test_without_chunks_a_prompt_waits_for_the_whole_budget() -> None:
    chunks = Chunks(make_config(), SchedulerConfig(enable_chunked_prefill=False))
    request = Node().request("r", [1] * 8)
    assert chunks.end(request, 0, 8, 7) == 0
    assert chunks.end(request, 0, 8, 8) == 8


def test_drafts_are_as_many_as_states_can_follow() -> None:
    settings = SchedulerConfig()
    assert Chunks(make_config(full(), mamba(4, scratch=9)), settings).max_drafts == 3
    assert Chunks(make_config(full(), mamba(8, scratch=2)), settings).max_drafts == 2
    assert Chunks(make_config(full(), mamba()), settings).max_drafts == 0
    assert Chunks(make_config(full()), settings).max_drafts > 99


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_num_batched_tokens": 0},
        {"max_num_seqs": 0},
        {"max_num_seqs": 1.5},
        {"max_steps_in_flight": 0},
        {"max_steps_in_flight": 3},
        {"num_lookahead_tokens": -1},
        {"max_failed_steps": -1},
        {"policy": "lifo"},
    ],
)
def test_wrong_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SchedulerConfig(**wrong)
