"""The life of a sequence: every pair of state and event is a row or has a reason."""

from itertools import product

import pytest

from kvdist.errors import InvalidRequest, InvariantViolation
from kvdist.sched.sequence import (
    FINISHED,
    IMPOSSIBLE,
    TABLE,
    SamplingParams,
    Sequence,
    SequenceEvent,
    SequenceStatus,
)
from tests.make import Node

ALL_PAIRS = list(product(SequenceStatus, SequenceEvent))


def a_sequence(**more: object) -> Sequence:
    request = Node().request("r", [1, 2, 3])
    return Sequence(request, max_len=9, arrival=1, **more)  # type: ignore[arg-type]


def test_rows_and_impossibilities_cover_all_pairs_once() -> None:
    assert TABLE.keys() | IMPOSSIBLE.keys() == set(ALL_PAIRS)
    assert not TABLE.keys() & IMPOSSIBLE.keys()
    assert all(IMPOSSIBLE.values())


@pytest.mark.parametrize(("status", "event"), ALL_PAIRS)
def test_walk(status: SequenceStatus, event: SequenceEvent) -> None:
    sequence = a_sequence()
    sequence.status = status
    if (status, event) in TABLE:
        sequence.on(event)
        assert sequence.status is TABLE[status, event]
    else:
        with pytest.raises(InvariantViolation, match=IMPOSSIBLE[status, event]):
            sequence.on(event)
        assert sequence.status is status


def test_all_are_reached_from_waiting_and_all_can_end() -> None:
    reached = {SequenceStatus.WAITING}
    while more := {TABLE[pair] for pair in TABLE if pair[0] in reached} - reached:
        reached |= more
    assert reached == set(SequenceStatus)
    for status in set(SequenceStatus) - FINISHED:
        ends = {TABLE[pair] for pair in TABLE if pair[0] is status}
        assert {SequenceStatus.FINISHED_ABORTED, SequenceStatus.FINISHED_ERROR} <= ends


def test_finished_is_said_by_the_name() -> None:
    for status in SequenceStatus:
        assert status.finished == status.name.startswith("FINISHED_")


def test_what_has_to_be_computed() -> None:
    sequence = a_sequence()
    assert sequence.num_target_tokens == 3
    sequence.num_pending_tokens = 1
    assert sequence.num_target_tokens == 4
    assert a_sequence(prefill_only=True).num_target_tokens == 2


def test_a_new_attempt_makes_what_is_in_flight_stale() -> None:
    sequence = a_sequence()
    sequence.request.num_computed_tokens = sequence.num_settled_tokens = 3
    sequence.num_pending_tokens = sequence.num_turns_in_flight = 1
    sequence.draft_token_ids = (1,)
    sequence.worthless = True
    sequence.forget_progress()
    assert (sequence.attempt, sequence.request.num_computed_tokens) == (1, 0)
    assert (sequence.num_pending_tokens, sequence.num_turns_in_flight) == (0, 0)
    assert not sequence.num_settled_tokens
    assert not (sequence.worthless or len(sequence.draft_token_ids))


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, None])
@pytest.mark.parametrize("name", ["max_new_tokens", "n"])
def test_limits_are_whole_and_positive(name: str, wrong: object) -> None:
    with pytest.raises(InvalidRequest):
        SamplingParams(**{name: wrong})  # type: ignore[arg-type]
