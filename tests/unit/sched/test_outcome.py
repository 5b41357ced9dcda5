"""What a worker says is checked."""

from typing import Any

import pytest

from kvdist.sched.outcome import Outcome, read_outcome
from kvdist.sched.plan import SampledTokens
from kvdist.sched.sampling import TokenLogprobs
from kvdist.sched.sequence import Sequence, SequenceEvent
from kvdist.sched.steps import Turn
from tests.make import Node


def a_turn(*drafts: int, samples: bool = True, **more: Any) -> Turn:
    """The third of three known tokens, and drafts; at most six tokens, 9 stops."""
    sequence = Sequence(
        Node().request("r", [1, 2, 3]),
        max_len=6,
        arrival=1,
        stop_token_ids=frozenset([9]),
        **more,
    )
    return Turn(sequence, 0, 2 if samples else 0, 1 + len(drafts), samples, drafts)


def said(*tokens: int, drafts: tuple[int, ...] = ()) -> SampledTokens:
    return SampledTokens(tokens, drafts)


def test_one_token() -> None:
    assert read_outcome(a_turn(), said(5), 0) == Outcome((5,))


def test_drafts_as_far_as_they_are_right() -> None:
    assert read_outcome(a_turn(5, 6), said(5, 6, 7), 2) == Outcome(
        (5, 6, 7), 0, SequenceEvent.LENGTH
    )
    assert read_outcome(a_turn(5, 6), said(5, 7), 2) == Outcome((5, 7), 1)
    assert read_outcome(a_turn(5, 6), said(4), 2) == Outcome((4,), 2)


def test_what_comes_after_the_end_is_cut() -> None:
    assert read_outcome(a_turn(9, 6), said(9, 6, 7), 2) == Outcome((9,), 0, SequenceEvent.STOP)
    outcome = read_outcome(a_turn(4, 5, 6), said(4, 5, 6, 7), 3)
    assert outcome == Outcome((4, 5, 6), 0, SequenceEvent.LENGTH)


def test_a_stop_token_that_is_the_last_one_stops() -> None:
    outcome = read_outcome(a_turn(4, 5), said(4, 5, 9), 2)
    assert outcome == Outcome((4, 5, 9), 0, SequenceEvent.STOP)


def test_drafts_for_the_next_step() -> None:
    assert read_outcome(a_turn(), said(5, drafts=(6, 7, 8)), 2) == Outcome((5,), 0, None, (6, 7))
    assert read_outcome(a_turn(), said(5, drafts=(6, -7)), 2) == Outcome((5,))
    assert read_outcome(a_turn(), said(5, drafts=(6,)), 0) == Outcome((5,))


@pytest.mark.parametrize(
    "answer",
    [
        None,
        said(),
        said(5, 6),
        said(-1),
        said(1 << 32),
        SampledTokens((True,)),
        SampledTokens([5]),  # type: ignore[arg-type]
        SampledTokens("a"),  # type: ignore[arg-type]
    ],
)
def test_no_answer_to_the_question(answer: SampledTokens | None) -> None:
    assert read_outcome(a_turn(), answer, 0) is None


def test_logprobs_are_cut_with_their_tokens() -> None:
    first, second = TokenLogprobs(-0.5), TokenLogprobs(-1.0, ((6, -0.1),))
    answer = SampledTokens((9, 6), logprobs=(first, second))
    outcome = read_outcome(a_turn(9), answer, 0)
    assert outcome is not None and outcome.logprobs == (first,)
    assert read_outcome(a_turn(9), SampledTokens((9, 6), logprobs=(first,)), 0) is None


def test_other_tokens_than_the_drafts_that_were_computed() -> None:
    assert read_outcome(a_turn(5, 6), said(4, 6, 7), 2) is None


def test_a_chunk_samples_nothing() -> None:
    assert read_outcome(a_turn(samples=False), None, 0) == Outcome()


def test_a_prefill_ends_at_the_last_but_one() -> None:
    turn = a_turn(samples=False, prefill_only=True)
    assert read_outcome(turn, None, 0) == Outcome()
    turn.num_tokens = 2
    assert read_outcome(turn, None, 0) == Outcome(event=SequenceEvent.PREFILLED)
