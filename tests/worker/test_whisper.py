"""A model that hears says what transformers generates, token for token, whatever happens to it."""

import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import WhisperFeatureExtractor

from kvdist.cache import CrossAttentionSpec, FullAttentionSpec
from kvdist.errors import ConfigError, LocalMisuse
from kvdist.ids import BlockId, RequestId
from kvdist.sched.plan import NewSequence, ScheduledSequence, StepPlan
from kvdist.worker.hearing import Hearing
from kvdist.worker.model import Model, load
from tests.worker.serving import Engine
from tests.worker.tiny import Comparison, network, stream
from tests.worker.tiny_whisper import NUM_HEARD, NUM_TOKENS, RATE, sound, transcript, whisper

#: Prompts of the decoder, and which sound they are about: some share either.
WORK = [
    (stream(number)[:length], heard)
    for number, length, heard in (
        (0, 1, 0),
        (0, 3, 1),
        (0, 3, 0),
        (1, 7, 2),
        (1, 21, 3),
        (0, 40, 4),
        (1, 40, 1),
    )
]

Wanted = dict[RequestId, tuple[tuple[int, ...], int]]


def engine(**settings: Any) -> Engine:
    told: dict[str, Any] = {"max_model_len": 64, "cache": {"enable_caching": False}}
    return Engine(Model.of(whisper()), **{**told, **settings})


def add(engine: Engine, work: tuple[tuple[int, ...], int]) -> RequestId:
    prompt, heard = work
    return engine.add(prompt, NUM_TOKENS, sound(heard))


def compare(engine: Engine, wanted: Wanted) -> None:
    comparison = Comparison()
    for request_id, (prompt, heard) in wanted.items():
        comparison.add(transcript(heard, prompt), engine.tokens[request_id])
    comparison.check_share()


def serve(engine: Engine) -> None:
    """All at once, each to its end."""
    wanted = {add(engine, work): work for work in WORK}
    engine.run()
    assert all(len(engine.tokens[request_id]) == NUM_TOKENS for request_id in wanted)
    compare(engine, wanted)
    assert engine.manager.ledger().free == engine.config.num_blocks - 1


@pytest.fixture
def encodings() -> Iterator[list[object]]:
    """Grows by one each time the encoder runs."""
    found: list[object] = []
    hook = whisper().model.encoder.register_forward_pre_hook(lambda _, given: found.append(given))
    yield found
    hook.remove()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("block_size", [1, 8, 16, 64])
def test_chunks_and_decodes_of_many_in_one_step(block_size: int, depth: int) -> None:
    serve(engine(block_size=block_size, max_num_batched_tokens=16, max_steps_in_flight=depth))


def test_whole_prompts() -> None:
    serve(engine(enable_chunked_prefill=False))


@pytest.mark.parametrize("size", [*range(1, 12), 39, 40, 41])
def test_every_chunk_size(size: int) -> None:
    serve(engine(max_num_batched_tokens=size))


def test_other_sounds_are_other_words() -> None:
    assert len({transcript(heard, stream(0)[:3]).tokens for heard in range(5)}) == 5


def test_an_encoder_runs_once_a_sequence(encodings: list[object]) -> None:
    serve(engine(max_num_batched_tokens=16))
    assert len(encodings) == len(WORK)


#: Blocks of four that the longest sequence of `WORK` can need, and of those its encoder's.
LONGEST, HEARD = 27, 13


def test_a_pool_that_holds_one_sequence() -> None:
    serve(engine(block_size=4, num_blocks=LONGEST + 1, max_model_len=54))


def test_a_preempted_sequence_is_heard_anew(encodings: list[object]) -> None:
    one = engine(block_size=4, num_blocks=LONGEST + HEARD + 4, max_model_len=54)
    serve(one)
    num_preemptions = one.scheduler.stats.num_preemptions
    assert num_preemptions > 0
    assert len(encodings) == len(WORK) + num_preemptions


def test_what_was_in_a_block_before_is_never_read() -> None:
    one = engine(block_size=16, num_blocks=26)
    one.runner.pool.region.view(torch.float32).fill_(1e30)
    serve(one)


@pytest.mark.parametrize("seed", range(6))
def test_aborts_at_random_points(seed: int) -> None:
    chance = random.Random(seed)
    one = engine(
        block_size=4,
        num_blocks=60,
        max_num_batched_tokens=chance.choice((5, 16, 64)),
        max_steps_in_flight=chance.choice((1, 2)),
    )
    wanted: Wanted = {}
    for _ in range(3):
        for work in chance.sample(WORK, 4):
            wanted[add(one, work)] = work
        for _ in range(chance.randrange(12)):
            one.turn()
        for request_id in chance.sample(sorted(wanted), 2):
            one.abort(request_id)
    one.run()
    compare(one, wanted)
    assert one.manager.ledger().free == one.config.num_blocks - 1


def test_a_failed_step_is_computed_anew() -> None:
    one = engine(max_num_batched_tokens=16, max_steps_in_flight=1)
    wanted = {add(one, work): work for work in WORK}
    plan = one.scheduler.schedule()
    assert plan is not None and plan.new_sequences
    one.scheduler.fail_step(plan.step)
    one.run()
    compare(one, wanted)


def test_blocks_of_the_encoder_are_taken_once() -> None:
    one = engine(block_size=8)
    request_id = add(one, WORK[3])
    one.turn()
    first = one.manager.get_block_ids(request_id)[1]
    for _ in range(6):
        one.turn()
    assert one.manager.get_block_ids(request_id)[1] == first
    assert len(first) == -(-NUM_HEARD // 8)
    one.run()


def test_groups_of_a_model_with_an_encoder() -> None:
    layout = Model.of(whisper()).layout(8)
    own, cross = (group.kv_cache_spec for group in layout.kv_cache_groups)
    assert isinstance(own, FullAttentionSpec) and isinstance(cross, CrossAttentionSpec)
    assert own.page_size_bytes == cross.page_size_bytes == 8 * 4 * 2 * 16 * 4
    assert layout.buffers[2] == ("layers.2.attention", "layers.2.cross")


def plan(runner_tokens: tuple[int, ...], audio: Any) -> StepPlan:
    tables = (tuple(map(BlockId, range(1, 3))), tuple(map(BlockId, range(3, 10))))
    new = NewSequence("a", runner_tokens, tables, audio=audio)
    part = ScheduledSequence("a", 0, len(runner_tokens), True, ((), ()))
    return StepPlan(1, (new,), (part,), (), (), ())


@pytest.mark.parametrize(
    "audio",
    [
        None,
        replace(sound(0), samples=b""),
        replace(sound(0), samples=bytes(4 * RATE + 4)),
        replace(sound(0), samples=bytes(6)),
        replace(sound(0), num_tokens=NUM_HEARD - 1),
    ],
)
def test_sound_that_is_none(audio: Any) -> None:
    with pytest.raises(LocalMisuse, match="sound"):
        engine().runner.execute(plan((3, 9), audio))


def test_so_many_tokens_no_encoder_here_has_made() -> None:
    told = plan((3, 9), None)
    new = replace(told.new_sequences[0], num_loaded_encoder_tokens=NUM_HEARD - 1)
    with pytest.raises(LocalMisuse, match="sound"):
        engine().runner.execute(replace(told, new_sequences=(new,)))


def test_sound_for_a_model_that_does_not_hear() -> None:
    deaf = Engine(Model.of(network("llama")))
    with pytest.raises(LocalMisuse, match="sound"):
        deaf.runner.execute(plan((3, 9), sound(0)))


# -- from a directory --------------------------------------------------------------------------


def extractor(**settings: Any) -> WhisperFeatureExtractor:
    return WhisperFeatureExtractor(**{"feature_size": 16, "chunk_length": 1, **settings})


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    whisper().save_pretrained(tmp_path)
    extractor().save_pretrained(tmp_path)
    model = load(tmp_path)
    assert (model.max_model_len, model.vocab_size) == (128, 512)
    saved, loaded = whisper().state_dict(), model.network.state_dict()
    assert all(torch.equal(saved[name], loaded[name]) for name in saved)
    assert model.hearing is not None
    assert model.hearing.window == Hearing.of(whisper().config).window
    one = Engine(model, max_model_len=64, cache={"enable_caching": False})
    serve(one)


@pytest.mark.parametrize("settings", [{"feature_size": 80}, {"chunk_length": 30}])
def test_a_preprocessor_of_another_model(tmp_path: Path, settings: dict[str, int]) -> None:
    whisper().save_pretrained(tmp_path)
    extractor(**settings).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json says"):
        load(tmp_path)


def test_another_dtype() -> None:
    model = Model.of(deepcopy(whisper()).to(torch.bfloat16))
    one = Engine(model, max_model_len=64, cache={"enable_caching": False})
    request_ids = [add(one, work) for work in WORK]
    one.run()
    assert all(len(one.tokens[request_id]) == NUM_TOKENS for request_id in request_ids)
