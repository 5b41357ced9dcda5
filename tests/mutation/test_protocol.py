"""Some bugs planted in the protocol, each found by the simulator; `make protocol` tries all."""

from pathlib import Path

import pytest

from kvdist import check
from tests.mutation.protocol import Mutant, find, harmless, mutants
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
    "rule rules.may_return: off",
]
BY_NAME = {str(mutant): mutant for mutant in mutants()}


def test_what_is_harmless_exists() -> None:
    assert harmless().keys() <= BY_NAME.keys()


@pytest.mark.parametrize("name", SAMPLE)
def test_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "level", check.level)
    mutant: Mutant = BY_NAME[name]
    assert find(mutant, 20).seed is not None, "no walk notices"


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
