"""Some bugs planted in the protocol, each found by the simulator; `make protocol` tries all."""

import json
from pathlib import Path

import pytest

from kvdist import check
from tests.mutation.protocol import Mutant, find, mutants

HARMLESS = json.loads((Path(__file__).parent / "harmless.json").read_text())
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
    assert HARMLESS.keys() <= BY_NAME.keys()


@pytest.mark.parametrize("name", SAMPLE)
def test_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "level", check.level)
    mutant: Mutant = BY_NAME[name]
    assert find(mutant, 20), "no walk notices"
