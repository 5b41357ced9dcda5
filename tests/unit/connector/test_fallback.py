"""Promises that aren't kept: each request obeys the policy, whichever way the K/V don't come."""

from collections.abc import Callable
from typing import Any

import pytest

from kvdist.connector.geometry import Group
from kvdist.connector.host import LoadFailed
from kvdist.connector.local import Cancel
from kvdist.connector.messages import Lent, Progress, StreamState
from kvdist.connector.params import ByHash, ByTransfer
from kvdist.ids import Incarnation, PullId
from tests.halves import FULL, RUN, Reader, a_ticket

BY_STREAM = ByTransfer("p", "t")


def failed(reader: Reader) -> list[LoadFailed]:
    return [effect for effect in reader.news() if isinstance(effect, LoadFailed)]


# -- those who share a claim -----------------------------------------------------------------------


def siblings(count: int = 4, **settings: Any) -> Reader:
    """Several sequences of one prompt, whose only pull has failed and is quiet."""
    reader = Reader(max_rounds=1, **settings)
    for i in range(count):
        reader.come(f"r{i}", a_ticket())
    fetches = reader.admit("r0")
    reader.end(fetches, "no luck")
    reader.quiet(fetches)
    return reader


def test_all_that_share_a_claim_fail() -> None:
    reader = siblings(on_failure="fail")
    assert failed(reader) == [LoadFailed("r0", "no luck", again=False)]
    assert [reader.refusal(f"r{i}") for i in (1, 2, 3)] == ["no luck"] * 3
    assert reader.borrower.num_recomputing == 0


def test_what_is_here_by_now_is_no_recomputation() -> None:
    reader = siblings(on_failure="fail")
    assert reader.refusal("r1", 16) == ""
    assert reader.refusal("r1", 12), "four tokens are lacking"


def test_of_those_that_lack_the_same_one_computes() -> None:
    reader = siblings(max_recompute_tokens=16)
    assert [reader.match(f"r{i}") for i in range(4)] == [0, None, None, None]
    reader.admit("r0")
    reader.borrower.settled("r0", 15)
    assert reader.match("r1") is None
    assert reader.borrower.take_answered() == []
    reader.borrower.settled("r0", 16)
    assert reader.borrower.take_answered() == ["r2", "r3", "r1"]
    assert reader.borrower.num_recomputing == 0
    assert (reader.match("r1", 16), reader.refusal("r1", 16)) == (0, "")


def test_where_nothing_is_cached_they_compute_one_after_the_other() -> None:
    reader = siblings(3, max_recompute_tokens=16)
    reader.admit("r0")
    for i in range(2):
        assert reader.match(f"r{i + 1}") is None
        reader.borrower.settled(f"r{i}", 16)
        assert (reader.match(f"r{i + 1}"), reader.refusal(f"r{i + 1}")) == (0, "")
        reader.admit(f"r{i + 1}")
        assert reader.borrower.num_recomputing == 16


def test_who_computes_goes_away() -> None:
    reader = siblings(2, max_recompute_tokens=16)
    assert reader.match("r1") is None
    reader.borrower.finished("r0")
    assert reader.borrower.take_answered() == ["r1"]
    assert (reader.match("r1"), reader.refusal("r1")) == (0, "")


def test_others_count_too() -> None:
    reader = siblings(1, max_recompute_tokens=31)
    reader.come("s", a_ticket(b"another lease..."), 17, first_token=100)
    reader.borrower.on_withdrawn("p", a_ticket(b"another lease...").lease)
    assert "too many tokens" in reader.refusal("s")
    assert reader.refusal("s", 4) == "", "twelve are lacking, fifteen are left"
    assert reader.borrower.counts["recomputations over the limit"] == 1


def test_what_is_computed_ends_where_the_lease_would_have() -> None:
    """Local tokens are settled at once, and are no part of it."""
    reader = Reader(max_rounds=1)
    reader.come("r", a_ticket())
    fetches = reader.admit("r", 8)
    reader.end(fetches, "no luck")
    assert reader.borrower.num_recomputing == 8
    reader.borrower.settled("r", 8)
    assert reader.borrower.num_recomputing == 8
    reader.borrower.settled("r", 16)
    assert reader.borrower.num_recomputing == 0


# -- all the ways in which nothing comes -----------------------------------------------------------


def _withdrawn(reader: Reader) -> None:
    reader.come("r", a_ticket())
    reader.borrower.on_withdrawn("p", a_ticket().lease)


def _another_run(reader: Reader) -> None:
    reader.come("r", a_ticket())
    reader.borrower.node_seen("p", Incarnation(2))


def _of_an_earlier_run(reader: Reader) -> None:
    reader.borrower.node_seen("p", Incarnation(2))
    reader.come("r", a_ticket())


def _being_released(reader: Reader) -> None:
    reader.come("first", a_ticket())
    reader.borrower.finished("first")
    reader.come("r", a_ticket())


def _lost_while_it_failed(reader: Reader) -> None:
    """Another round was to follow."""
    reader.come("r", a_ticket())
    reader.end(reader.admit("r"), "no luck")
    assert failed(reader) == [LoadFailed("r", "no luck", again=True)]
    reader.borrower.on_withdrawn("p", a_ticket().lease)


def _came_when_all_had_failed(reader: Reader) -> None:
    reader.come("first", a_ticket())
    reader.end(reader.admit("first"), "no luck", is_lease_gone=True)
    reader.come("r", a_ticket())


def _a_part_says_so_later(reader: Reader) -> None:
    reader.come("r", a_ticket(ranks=2))
    one, two = reader.admit("r")
    reader.end([one], "no luck")
    reader.end([two], "gone", is_lease_gone=True)


def _stream_gone(reader: Reader) -> None:
    reader.come("r", BY_STREAM)
    reader.borrower.on_stream_state("p", StreamState("t", Progress.GONE, None))


def _stream_of_another(reader: Reader) -> None:
    reader.come("r", BY_STREAM)
    reader.borrower.on_stream_state("p", StreamState("t", Progress.TAKEN, None))
    assert reader.refusal("r") in ("", "another node reads along")


def _stream_silent(reader: Reader) -> None:
    reader.come("r", BY_STREAM)
    for _ in range(5):
        reader.later(1.0)


def _lent_and_taken_back(reader: Reader) -> None:
    reader.come("r", ByHash("p"))
    reader.borrower.on_lent("p", Lent(PullId(1), RUN, a_ticket()))
    reader.borrower.on_withdrawn("p", a_ticket().lease)


WAYS = [
    _withdrawn,
    _another_run,
    _of_an_earlier_run,
    _being_released,
    _lost_while_it_failed,
    _came_when_all_had_failed,
    _a_part_says_so_later,
    _stream_gone,
    _stream_of_another,
    _stream_silent,
    _lent_and_taken_back,
]


@pytest.mark.parametrize("way", WAYS)
def test_whatever_happens_to_a_promise(way: Callable[[Reader], None]) -> None:
    reader = Reader(on_failure="fail", heads=4)
    way(reader)
    assert reader.refusal("r")
    assert reader.match("r", 16) == 0 and not reader.refusal("r", 16)


@pytest.mark.parametrize("way", WAYS)
def test_whatever_happens_it_counts(way: Callable[[Reader], None]) -> None:
    reader = Reader(max_recompute_tokens=16, heads=4)
    way(reader)
    reader.borrower.finished("first")
    assert reader.match("r") == 0 and not reader.refusal("r")
    reader.admit("r")
    assert reader.borrower.num_recomputing == 16
    reader.borrower.finished("r")
    assert reader.borrower.num_recomputing == 0


def test_a_wrong_hint_is_no_broken_promise() -> None:
    """Whoever goes by a hint is ready to compute."""
    reader = Reader(on_failure="fail")
    reader.come("r", ByHash("p"))
    reader.borrower.on_lent("p", Lent(PullId(1), RUN, None))
    assert reader.match("r") == 0 and not reader.refusal("r")
    reader.come("silent", ByHash("p"))
    for _ in range(5):
        reader.later(1.0)
    assert reader.match("silent") == 0 and not reader.refusal("silent")


def test_too_little_to_be_worth_a_pull_is_computed() -> None:
    reader = Reader(on_failure="fail", min_pull_tokens=8)
    reader.come("r", a_ticket())
    reader.borrower.on_withdrawn("p", a_ticket().lease)
    assert not reader.refusal("r", 12)
    assert reader.refusal("r", 8)


def test_what_an_encoder_made_is_worth_a_pull_by_itself() -> None:
    for groups, count in (((FULL,), 0), ((FULL, Group("encoder", 4, num_tokens=20)), 3)):
        reader = Reader(*groups, min_pull_tokens=16)
        reader.come("r", a_ticket(num_tokens=3), 4)
        assert reader.match("r") == count


def test_who_lacks_what_another_pulls_waits_for_it() -> None:
    """T20: by another lease."""
    reader = Reader(on_failure="fail")
    reader.come("a", a_ticket())
    reader.come("b", a_ticket(b"another lease..."))
    reader.borrower.on_withdrawn("p", a_ticket().lease)
    fetches = reader.admit("b")
    assert reader.match("a") is None
    reader.borrower.finished("b")
    assert not [m for _, m in reader.told_workers() if isinstance(m, Cancel)], "it goes on for a"
    reader.end(fetches)
    assert reader.borrower.take_answered() == ["a"]
    assert not reader.refusal("a", 16)


# -- no second round for a lease that has gone -----------------------------------------------------


def test_a_lease_that_has_gone_is_not_tried_again() -> None:
    """And nobody waits until the first round is quiet: what is computed lands elsewhere."""
    reader = Reader(max_rounds=2)
    reader.come("r", a_ticket())
    fetches = reader.admit("r")
    reader.end(fetches, "the owner says gone", is_lease_gone=True)
    assert failed(reader) == [LoadFailed("r", "the owner says gone", again=True)]
    assert reader.match("r") == 0 and not reader.refusal("r")
    assert reader.admit("r") == []
    assert reader.borrower.num_recomputing == 16
    assert reader.borrower.num_quarantined == 4
    reader.quiet(fetches)
    assert reader.borrower.num_quarantined == 0


def test_a_lease_that_has_gone_fails_at_once() -> None:
    reader = Reader(max_rounds=2, on_failure="fail")
    reader.come("r", a_ticket())
    reader.end(reader.admit("r"), "the owner says gone", is_lease_gone=True)
    assert failed(reader) == [LoadFailed("r", "the owner says gone", again=False)]


def test_a_pull_that_was_cancelled_is_no_failed_one() -> None:
    """Two prompts by one ticket, as a client may send them: who goes away takes nothing along."""
    reader = Reader(max_rounds=1, on_failure="fail")
    reader.come("a", a_ticket())
    reader.come("b", a_ticket(), 17, first_token=100)
    fetches = reader.admit("a")
    assert reader.match("b") is None
    reader.borrower.finished("a")
    reader.end(fetches, "cancelled")
    reader.quiet(fetches)
    assert reader.borrower.take_answered() == ["b"]
    assert reader.match("b") == 16


# -- who is asked again ----------------------------------------------------------------------------


def test_whoever_waits_is_named_when_there_is_news() -> None:
    reader = Reader()
    reader.come("r", BY_STREAM)
    assert reader.match("r") is None
    assert reader.borrower.take_answered() == []
    reader.borrower.on_stream_state("p", StreamState("t", Progress.QUEUED, None))
    assert reader.borrower.take_answered() == []
    reader.borrower.on_stream_state("p", StreamState("t", Progress.ADMITTED, a_ticket()))
    assert reader.borrower.take_answered() == ["r"]
    assert reader.borrower.take_answered() == []
    fetches = reader.admit("r")
    reader.end(fetches, "no luck")
    assert reader.match("r") is None
    reader.quiet(fetches)
    assert reader.borrower.take_answered() == ["r"]
    assert reader.match("r") == 16


def test_who_has_ended_is_not_named() -> None:
    reader = Reader()
    for name in ("a", "b"):
        reader.come(name, BY_STREAM)
        assert reader.match(name) is None
    reader.borrower.finished("a")
    reader.borrower.on_stream_state("p", StreamState("t", Progress.GONE, None))
    reader.borrower.finished("b")
    assert reader.borrower.take_answered() == []


def test_a_match_costs_the_same_beside_many_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pulls are under way, none is looked at but the one of the same content."""
    reader = Reader()
    for i in range(50):
        reader.come(f"r{i}", a_ticket(b"lease number %03d" % i), 17, first_token=100 * i)
        reader.admit(f"r{i}")
    reader.come("same", a_ticket(b"another lease..."), 17, first_token=4200)
    monkeypatch.setattr(reader.borrower, "_pulls", None)
    monkeypatch.setattr(reader.borrower, "_claims", None)
    assert reader.match("same") is None
    reader.borrower.finished("r42")
