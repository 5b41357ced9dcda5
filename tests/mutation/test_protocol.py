"""Some bugs planted in the protocol, each found by the simulator; `make protocol` tries all."""

from itertools import pairwise
from pathlib import Path

import pytest

from kvdist import check
from kvdist.connector import rules
from tests.mutation import protocol
from tests.mutation.guards import watched
from tests.mutation.protocol import (
    NUM_SEEDS,
    STAGES,
    Mutant,
    Seed,
    all_seeds,
    find,
    harmless,
    mutants,
    places,
)
from tests.mutation.results import Finding, Results, digest

#: At least one a table, and what a first walk or two notice.
SAMPLE = [
    "claim (ASKING, TICKET): leads to RELEASING",
    "claim (RELEASING, LOST): without FORGET [0]",
    "lease (GRANTING, GRANTED): leads to GONE",
    "lease (REVOKING, REVOKED): leads to ACTIVE",
    "grant (ACTIVE, OPEN): leads to REVOKING",
    "serve (OPEN, CONFIRM): without FREE [1]",
    "pull (PULLING, ALL_GOOD): without SAY_LOADED [0]",
    "part (LANDING, LANDED): without SEND_CONFIRM [0]",
    "contact (STRANGE, CALL): leads to STRANGE",
    "contact (GREETING, AGREE): without SAY [1]",
    "contact (GREETING, UNANSWERED): without SEND_HELLO [0]",
    "duty (ON, LEAVE): without ANNOUNCE [1]",
    "duty (ENDING, IDLE): without SAY_OVER [0]",
    "rule rules.may_return: off",
    "rule rules.may_park: off",
    "rule rules.may_lend: off",
    "rule rules.is_same_run: off",
    "rule Contacts.hear: off",
    "rule SchedulerHalf.is_ready: off",
    "lease (ACTIVE, TAKEN_BACK): without SEND_WITHDRAWN [1]",
]
BY_NAME = {str(mutant): mutant for mutant in mutants()}


@pytest.fixture
def _level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "level", check.level)


def test_what_is_harmless_exists() -> None:
    assert harmless().keys() <= BY_NAME.keys()


@pytest.mark.parametrize("name", SAMPLE)
@pytest.mark.usefixtures("_level")
def test_found(name: str) -> None:
    mutant: Mutant = BY_NAME[name]
    assert find(mutant, 20).seed is not None, "no walk notices"


@pytest.mark.usefixtures("_level")
def test_only_walks_that_come_to_the_bug_are_walked() -> None:
    there = places(Seed(0, is_calm=True))
    assert "contact (STRANGE, CALL)" in there
    assert "contact (STRANGE, DIFFER)" not in there, "calm clusters can all work together"
    bug = BY_NAME["contact (STRANGE, CALL): leads to STRANGE"]
    assert find(bug, 1, []).seed is None
    assert find(bug, 1, [Seed(0, is_calm=True)]).seed == 0


def test_a_guard_that_would_have_said_the_same_makes_no_difference() -> None:
    with watched() as seen:
        assert rules.may_cancel(0)
        assert "rule rules.may_cancel" not in seen
        assert not rules.may_cancel(1)
        assert "rule rules.may_cancel" in seen


@pytest.mark.usefixtures("_level")
def test_an_event_without_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MOST_S", 1.0)
    seeds = [seed for seed in all_seeds(0, 20) if not seed.is_calm]
    found = find(BY_NAME["duty (ENDING, IDLE): leads to ENDING"], 20, seeds)
    assert found.says == "an event has no end"


def test_few_seeds_come_first_and_none_twice() -> None:
    seeds = [seed for known, end in pairwise((0, *STAGES)) for seed in all_seeds(known, end)]
    assert len(seeds) == len(set(seeds)) == len(all_seeds(0, NUM_SEEDS))
    assert set(seeds) == set(all_seeds(0, NUM_SEEDS))


def test_what_is_known_of_this_source_is_kept(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = Results(kept, "this source")
    first.keep("a", Finding(7, "a wrong token", 20))
    first.keep("b", Finding(None, "", 20))
    with kept.open("a") as file:
        file.write('{"source": "this sou')
    again = Results(kept, "this source")
    assert again.of("a", 200) == Finding(7, "a wrong token", 20)
    assert again.of("b", 20) == Finding(None, "", 20)
    assert again.of("b", 21) is None, "more seeds may notice it"
    assert again.of("c", 20) is None
    assert Results(kept, "another source").of("a", 20) is None


def test_a_changed_file_is_another_source(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    before = digest(tmp_path, ["*.py"])
    assert digest(tmp_path, ["*.py"]) == before
    (tmp_path / "a.py").write_text("2")
    assert digest(tmp_path, ["*.py"]) != before
