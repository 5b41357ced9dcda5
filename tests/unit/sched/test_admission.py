"""Room for one more."""

import pytest

from kvdist.cache import KVCacheSpec
from kvdist.sched.admission import Admission
from kvdist.sched.budget import SchedulerConfig
from kvdist.sched.sequence import Sequence
from tests.make import Node, chunked, cross, full, mamba, window


def a_sequence(
    node: Node, name: str, num_tokens: int, max_len: int = 99, **more: object
) -> Sequence:
    request = node.request(name, range(num_tokens))
    return Sequence(request, max_len=max_len, arrival=1, **more)  # type: ignore[arg-type]


def admission(node: Node, *, lookahead: int = 0) -> Admission:
    settings = SchedulerConfig(
        max_num_batched_tokens=8, max_steps_in_flight=1, num_lookahead_tokens=lookahead
    )
    return Admission(node.manager, settings)


@pytest.mark.parametrize(
    ("spec", "needed"),
    [
        (full(), 11),  # 40 known tokens and a block of growth
        (window(9), 5),  # a window of 8 behind 8 in flight, anywhere
        (chunked(8), 5),
        (mamba(), 2),
        (mamba(scratch=2), 4),
    ],
)
def test_blocks_by_kind(spec: KVCacheSpec, needed: int) -> None:
    node = Node(spec, num_blocks=99)
    sequence = a_sequence(node, "r", 40)
    assert admission(node).missing(sequence) == needed


def test_cross_attention_needs_the_encoders_tokens() -> None:
    node = Node(full(), cross(), enable_caching=False)
    sequence = a_sequence(node, "r", 4, encoder_token_ids=(1,) * 9)
    assert admission(node).missing(sequence) == 2 + 3


def test_growth_ends_at_the_longest_it_can_get() -> None:
    node = Node(num_blocks=99)
    assert admission(node).missing(a_sequence(node, "r", 8, max_len=8)) == 2
    assert admission(node).missing(a_sequence(node, "r", 8, max_len=9)) == 3
    assert admission(node, lookahead=4).missing(a_sequence(node, "r", 8, max_len=8)) == 3


def test_what_it_owns_is_not_missing() -> None:
    node = Node(full(), window(5), num_blocks=99)
    sequence = a_sequence(node, "r", 16)
    before = admission(node).missing(sequence)
    node.admit(sequence.request, 8)
    assert admission(node).missing(sequence) == before - 4


def test_reserved_blocks_are_nobody_elses() -> None:
    node = Node()
    counting, first, second = admission(node), a_sequence(node, "a", 16), a_sequence(node, "b", 16)
    hit = node.manager.get_computed_blocks(second.request)
    assert counting.fits(second, hit, [], 0)
    assert counting.fits(second, hit, [first], 0), "five each, and ten are there"
    assert not counting.fits(second, hit, [first], 1)
    assert not counting.fits(second, hit, [first, a_sequence(node, "c", 1)], 0)


def test_a_hit_that_others_hold_costs_nothing_an_idle_one_does() -> None:
    node = Node(num_blocks=6)
    first = node.start("a", range(9))
    sequence = a_sequence(node, "b", 9)
    hit = node.manager.get_computed_blocks(sequence.request)
    assert hit.num_tokens == 8
    assert admission(node).fits(sequence, hit, [], 0)
    assert not admission(node).fits(sequence, hit, [], 1)
    node.finish(first)
    assert admission(node).fits(sequence, hit, [], 1)
    assert not admission(node).fits(sequence, hit, [], 2)


def test_the_longest_has_to_fit_alone() -> None:
    node = Node()
    assert admission(node).fits_alone(a_sequence(node, "r", 4, max_len=40))
    assert not admission(node).fits_alone(a_sequence(node, "r", 4, max_len=41))
    assert not admission(node, lookahead=1).fits_alone(a_sequence(node, "r", 4, max_len=40))
