"""Belady's optimum against all orders of eviction there are."""

from functools import cache

import pytest
from hypothesis import given, strategies as st

from kvdist.errors import ConfigError
from kvdist.replay.belady import most_hits


def _tried_out(references: list[int], num_blocks: int) -> int:
    """The most hits, found by trying every victim at every miss."""

    @cache
    def most_from(index: int, cached: frozenset[int]) -> int:
        if index == len(references):
            return 0
        block = references[index]
        if block in cached:
            return 1 + most_from(index + 1, cached)
        if len(cached) < num_blocks:
            return most_from(index + 1, cached | {block})
        return max(most_from(index + 1, cached - {victim} | {block}) for victim in cached)

    return most_from(0, frozenset())


@given(st.lists(st.integers(0, 5), max_size=14), st.integers(1, 4))
def test_nothing_hits_more(references: list[int], num_blocks: int) -> None:
    assert most_hits(references, num_blocks) == _tried_out(references, num_blocks)


@given(st.lists(st.integers(0, 5), max_size=30))
def test_room_for_all_is_a_cache_without_end(references: list[int]) -> None:
    assert most_hits(references, 6) == most_hits(references, None)


def test_nothing_passes_by() -> None:
    # 9 has to come in although it never comes back; with a bypass both 1 and 2 would hit again.
    assert most_hits([1, 2, 9, 1, 2], 2) == 1


def test_a_cache_has_a_block() -> None:
    with pytest.raises(ConfigError):
        most_hits([1], 0)
