"""What is counted: each admission once, at its allocation; a lookup alone never."""

import pytest

from kvdist.cache import PrefixCacheStats
from tests.make import Node


def test_before_the_first_lookup_the_rate_is_0() -> None:
    assert PrefixCacheStats().hit_rate == 0.0


def test_preempted_requests_count_apart() -> None:
    stats = PrefixCacheStats()
    stats.record(10, 4, preempted=False)
    stats.record(20, 16, preempted=True)
    assert stats == PrefixCacheStats(1, 10, 4, 1, 20, 16)
    assert stats.hit_rate == 0.4


def test_a_lookup_alone_counts_nothing() -> None:
    node = Node()
    node.start("a", "ABCDEFGH")
    before = repr(node.manager.stats)
    for _ in range(3):
        node.hit("b", "ABCDEFGHI")
    assert repr(node.manager.stats) == before


def test_an_admission_counts_when_its_blocks_are_allocated() -> None:
    node = Node()
    node.start("a", "ABCDEFGHIJ")
    assert node.manager.stats == PrefixCacheStats(requests=1, queries=10, hits=0)
    node.start("b", "ABCDEFGHIJKL")
    assert node.manager.stats == PrefixCacheStats(requests=2, queries=22, hits=8)
    assert node.manager.stats.hit_rate == 8 / 22


def test_what_does_not_fit_is_not_counted_however_often_it_is_tried() -> None:
    node = Node()
    node.start("a", "ABCDEFGH")
    request = node.request("b", range(100))
    for _ in range(5):
        assert node.admit(request) is None
    assert node.manager.stats.requests == 1


def test_later_steps_are_no_admissions() -> None:
    node = Node()
    request = node.request("a", range(12))
    assert node.admit(request, 4) is not None
    assert node.compute(request, 8) is not None
    node.say(request, [1, 2, 3, 4, 5])
    assert node.manager.stats == PrefixCacheStats(requests=1, queries=12, hits=0)


def test_a_request_that_comes_back_counts_as_preempted() -> None:
    node = Node()
    request = node.start("a", "ABCDEFGHI")
    node.preempt(request)
    assert node.admit(request) is not None
    assert node.manager.stats == PrefixCacheStats(
        1, 9, 0, preempted_requests=1, preempted_queries=9, preempted_hits=8
    )


def test_who_does_not_read_the_cache_is_not_counted() -> None:
    node = Node()
    node.start("a", "ABCDEFGH", skip_reading_prefix_cache=True)
    assert node.manager.stats == PrefixCacheStats()


def test_without_caching_nothing_is_counted() -> None:
    node = Node(enable_caching=False)
    node.start("a", "ABCDEFGH")
    assert node.manager.stats == PrefixCacheStats()


def test_usage_is_another_thing() -> None:
    node = Node()
    request = node.start("a", "ABCDEFGHIJ")
    assert node.manager.usage == pytest.approx(0.3)
    node.finish(request)
    assert node.manager.usage == 0.0  # free, although two blocks can be found
    assert node.cached == [1, 2]
