"""Bytes between a node and its worker: what goes in comes out, and rubbish is called so."""

import pytest
from hypothesis import given, strategies as st

from kvdist.cache import (
    BlockCopy,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from kvdist.errors import ConfigError, FormatError
from kvdist.ids import BlockId, GroupId
from kvdist.node.worker_wire import (
    HEAD,
    MAX_MESSAGE_BYTES,
    Broken,
    Capacity,
    Done,
    Failed,
    FromWorker,
    Group,
    Loading,
    Ready,
    frame,
    read_answer,
    read_head,
    read_plan,
)
from kvdist.sched.audio import Audio, AudioWindow
from kvdist.sched.plan import (
    NewSequence,
    SampledTokens,
    ScheduledSequence,
    StepPlan,
    StepResult,
)
from kvdist.sched.sampling import Sampling, TokenLogprobs

BLOCKS = ((BlockId(1), BlockId(0)), (BlockId(7),))
PLAN = StepPlan(
    3,
    (NewSequence("r-1", (5, 6), BLOCKS, (9,), 2, Sampling(temperature=0.5, seed=-4)),),
    (ScheduledSequence("r-1", 0, 2, True, BLOCKS, (4, 5)),),
    ("r-2",),
    ("r-3",),
    (BlockCopy(BlockId(4), BlockId(5), GroupId(1)),),
    2,
)
ANSWERS: list[FromWorker] = [
    Loading("weights", 0.25),
    Broken("no such model"),
    Failed(3, "out of luck"),
    Done(StepResult(3, {"r": SampledTokens((1,), (2,), (TokenLogprobs(-0.5, ((1, -0.5),)),))})),
]


def body_of(message: FromWorker | StepPlan) -> bytes:
    data = frame(message)
    assert read_head(data[: HEAD.size]) == len(data) - HEAD.size
    return data[HEAD.size :]


def test_a_plan() -> None:
    assert read_plan(body_of(PLAN)) == PLAN


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_an_answer(answer: FromWorker) -> None:
    assert read_answer(body_of(answer)) == answer


def test_sound_arrives_as_it_was() -> None:
    new = NewSequence("a", (1,), ((),), audio=Audio(bytes(range(256)) * 8, 1500))
    plan = StepPlan(1, (new,), (), (), (), ())
    assert read_plan(body_of(plan)) == plan


def test_what_a_worker_has_room_for() -> None:
    specs = (
        FullAttentionSpec(block_size=16, page_size_bytes=512),
        SlidingWindowSpec(block_size=16, sliding_window=64),
        ChunkedLocalAttentionSpec(block_size=16, attention_chunk_size=128),
        MambaSpec(block_size=16, num_speculative_blocks=2),
        CrossAttentionSpec(block_size=16),
    )
    groups = tuple(KVCacheGroupSpec(spec, (f"layer {i}",)) for i, spec in enumerate(specs))
    window = AudioWindow(16000, 480000, 1500)
    capacity = Capacity(100, groups, 4096, "somewhere", window, 32000)
    ready = read_answer(body_of(capacity.ready()))
    assert isinstance(ready, Ready) and Capacity.read(ready) == capacity


@pytest.mark.parametrize(
    "group",
    [
        Group("Nonsense", {}, ()),
        Group("FullAttentionSpec", {"block_size": 0}, ()),
        Group("FullAttentionSpec", {"block_size": "x"}, ()),
        Group("FullAttentionSpec", {"sliding_window": 4}, ()),
    ],
)
def test_a_group_that_is_none(group: Group) -> None:
    with pytest.raises((FormatError, ConfigError)):
        Capacity.read(Ready(9, (group,), 64, ""))


def test_a_message_that_is_too_long() -> None:
    with pytest.raises(FormatError, match="at most"):
        read_head(HEAD.pack(MAX_MESSAGE_BYTES + 1))


@given(data=st.binary(max_size=60))
def test_rubbish(data: bytes) -> None:
    for read in (read_plan, read_answer):
        with pytest.raises(FormatError):
            read(data)


@given(place=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.booleans())
def test_one_byte_that_is_wrong(place: int, byte: int, cut: bool) -> None:
    for message in (PLAN, *ANSWERS):
        data = bytearray(body_of(message))
        place %= len(data)
        data[place] = byte
        sent = bytes(data[:place]) if cut else bytes(data)
        try:
            found = read_plan(sent) if message is PLAN else read_answer(sent)
        except FormatError:
            continue
        assert isinstance(found, StepPlan | Loading | Broken | Failed | Done | Ready)
