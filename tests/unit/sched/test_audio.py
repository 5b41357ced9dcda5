"""Sound goes to the worker with its sequence, and its encoder's tokens need blocks."""

import pytest

from kvdist.cache import CrossAttentionSpec, ExtraKeys, KVCacheManager, Request
from kvdist.connector.host import NOTHING, Loaded, Match
from kvdist.errors import InvalidRequest
from kvdist.sched.audio import Audio, AudioWindow
from kvdist.sched.budget import SchedulerConfig
from kvdist.sched.roles import NoRemoteCache
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


def test_a_sound_decides_the_kv_of_every_token() -> None:
    scheduler = Scheduler(KVCacheManager(make_config(full(), cross(), enable_caching=False)))
    salted = ExtraKeys(cache_salt="s")
    told = [
        scheduler.add("a", [1, 2], audio=audio, extra_keys=keys)[0].request.key_bytes(0, 1)
        for audio in (None, Audio(b"\0" * 8, 9), Audio(b"\0" * 12, 9))
        for keys in (ExtraKeys(), salted)
    ]
    assert len(set(told)) == len(told)


def test_an_encoder_of_another_length_is_not_the_models() -> None:
    spec = CrossAttentionSpec(block_size=4, num_encoder_tokens=9)
    scheduler = Scheduler(KVCacheManager(make_config(full(), spec, enable_caching=False)))
    for audio in (None, Audio(b"\0" * 8, 8), Audio(b"\0" * 8, 10)):
        with pytest.raises(InvalidRequest, match="makes 9"):
            scheduler.add("a", [1, 2], audio=audio)
    assert scheduler.idle
    assert scheduler.add("a", [1, 2], audio=Audio(b"\0" * 8, 9))


class Remote(NoRemoteCache):
    """Has two tokens of every prompt."""

    def match(self, request: Request, num_local_tokens: int) -> Match:
        return Match(2)


def test_what_was_loaded_is_not_heard_again_unless_it_is_lost() -> None:
    config = make_config(full(), cross(), num_blocks=20, enable_caching=False)
    scheduler = Scheduler(KVCacheManager(config), remote_cache=(remote := Remote()))
    audio = Audio(b"\0" * 8, 9)
    (sequence,) = scheduler.add("a", [1, 2, 3], audio=audio)
    assert scheduler.schedule() is None
    assert scheduler.manager.ledger().pull == 4
    scheduler.moved(Loaded(sequence.request_id))
    plan = scheduler.schedule()
    assert plan is not None
    (new,), (turn,) = plan.new_sequences, plan.scheduled
    assert (new.audio, new.num_loaded_encoder_tokens) == (None, 9)
    assert (turn.num_computed_tokens, [len(table) for table in new.block_ids]) == (2, [1, 3])
    remote.match = lambda *_: NOTHING  # type: ignore[method-assign]
    scheduler.fail_step(plan.step)
    plan = scheduler.schedule()
    assert plan is not None
    (new,) = plan.new_sequences
    assert (new.audio, new.num_loaded_encoder_tokens) == (audio, 0)


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
