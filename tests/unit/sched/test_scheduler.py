"""One scheduler, one stub worker: what is planned, and that the tokens are the perfect ones."""

import pytest

from kvdist.cache import KVCacheManager, KVCacheSpec
from kvdist.errors import InvalidRequest, RequestTooLarge
from kvdist.sched.budget import SchedulerConfig
from kvdist.sched.scheduler import Scheduler
from kvdist.sched.sequence import SamplingParams, SequenceStatus
from tests.make import chunked, cross, full, make_config, mamba, window
from tests.rig import Rig


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("specs", "num_blocks", "num_drafts"),
    [
        ([full()], 30, 0),
        ([full()], 9, 0),
        ([full()], 14, 2),
        ([full(), window(5)], 16, 0),
        ([full(), mamba()], 16, 0),
        ([full(), mamba(scratch=2)], 20, 2),
        ([full(), mamba(), window(6), chunked(8)], 27, 0),
    ],
)
def test_tokens_are_perfect(
    specs: list[KVCacheSpec], num_blocks: int, num_drafts: int, depth: int
) -> None:
    rig = Rig(
        *specs,
        num_blocks=num_blocks,
        settings=SchedulerConfig(
            max_num_batched_tokens=16, max_steps_in_flight=depth, num_lookahead_tokens=num_drafts
        ),
    )
    for i in range(3):
        rig.add([*range(1, 14), *[i] * (i + 1)], max_new_tokens=12)
    rig.run_to_the_end()


@pytest.mark.parametrize("depth", [1, 2])
def test_cross_attention(depth: int) -> None:
    settings = SchedulerConfig(max_num_batched_tokens=16, max_steps_in_flight=depth)
    rig = Rig(full(), cross(), num_blocks=13, enable_caching=False, settings=settings)
    for i in range(3):
        rig.add([*range(1, 14), i], max_new_tokens=9, encoder_token_ids=(i, 2, 3, 4, 5))
    rig.run_to_the_end()


def test_names_of_clients_are_no_keys() -> None:
    rig = Rig()
    first, second = rig.add([1, 2, 3], n=2)
    assert first.request_id != second.request_id
    rig.run_to_the_end()


def test_what_could_never_end_is_refused() -> None:
    scheduler = Scheduler(KVCacheManager(make_config(num_blocks=5, max_model_len=20)))
    with pytest.raises(RequestTooLarge):
        scheduler.add("a", [1] * 10, SamplingParams(max_new_tokens=7))
    with pytest.raises(RequestTooLarge):
        scheduler.add("a", [1] * 20)
    with pytest.raises(InvalidRequest):
        scheduler.add("a", [])
    with pytest.raises(InvalidRequest):
        scheduler.add("a", [1], priority="high")  # type: ignore[arg-type]
    assert scheduler.idle


def test_a_prefill_of_one_token_ends_at_once() -> None:
    rig = Rig()
    (sequence,) = rig.add([1], prefill_only=True)
    assert sequence.status is SequenceStatus.FINISHED_PREFILLED
    rig.run_to_the_end()


def test_who_ends_while_a_step_is_planned_leaves_its_place_to_the_next() -> None:
    """Found by random work: nothing was planned, nothing ran, and nobody asked again."""
    rig = Rig(settings=SchedulerConfig(max_num_seqs=1))
    rig.add([1] * 9)
    rig.run_to_the_end()
    (prefill,), (waiting,) = rig.add([1] * 9, prefill_only=True), rig.add([1] * 9)
    assert rig.plan() is not None
    assert prefill.status is SequenceStatus.FINISHED_PREFILLED
    assert waiting.status is SequenceStatus.RUNNING
    rig.run_to_the_end()


def test_a_prefill_computes_all_but_the_last_token() -> None:
    rig = Rig()
    (sequence,) = rig.add([1] * 9, prefill_only=True)
    plan = rig.scheduler.schedule()
    assert plan is not None
    (scheduled,) = plan.scheduled
    assert (scheduled.num_tokens, scheduled.samples) == (8, False)
    rig.execute(plan)
    assert sequence.status is SequenceStatus.FINISHED_PREFILLED
    rig.run_to_the_end()
