"""Sound goes to the worker with its sequence, and its encoder's tokens need blocks."""

import pytest

from kvdist.cache import KVCacheManager
from kvdist.sched.audio import Audio, AudioWindow
from kvdist.sched.budget import SchedulerConfig
from kvdist.sched.scheduler import Scheduler
from tests.make import cross, full, make_config


def test_a_window_has_a_length() -> None:
    assert AudioWindow(sample_rate=16000, num_samples=480000, num_tokens=1500).seconds == 30


def test_it_takes_blocks_and_travels_with_the_sequence() -> None:
    config = make_config(full(), cross(), num_blocks=20, enable_caching=False)
    scheduler = Scheduler(KVCacheManager(config))
    audio = Audio(b"\0" * 8, 9)
    (sequence,) = scheduler.add("a", [1, 2, 3], audio=audio)
    assert sequence.num_encoder_tokens == 9
    plan = scheduler.schedule()
    assert plan is not None
    (new,) = plan.new_sequences
    assert new.audio == audio
    assert [len(table) for table in new.block_ids] == [1, 3]


@pytest.mark.parametrize(("most", "first"), [(8, 1), (17, 1), (18, 2), (27, 3)])
def test_a_step_runs_so_many_encoders_as_it_has_tokens_but_one_always(
    most: int, first: int
) -> None:
    config = make_config(full(), cross(), num_blocks=40, enable_caching=False)
    scheduler = Scheduler(KVCacheManager(config), SchedulerConfig(max_num_batched_tokens=most))
    for _ in range(3):
        scheduler.add("a", [1, 2], audio=Audio(b"\0" * 8, 9))
    plan = scheduler.schedule()
    assert plan is not None and len(plan.new_sequences) == first
