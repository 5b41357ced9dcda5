"""Numbers that contradict each other are refused, by what they contradict."""

from math import inf, nan
from typing import Any

import pytest

from kvdist.connector.settings import Settings
from kvdist.errors import ConfigError

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"lease_s": 0.0}, "positive"),
    ({"parked_s": -1.0}, "positive"),
    ({"ack_s": nan}, "positive"),
    ({"life_s": inf}, "end"),
    ({"escalation_s": (0.0, 1.0, 2.0, 3.0)}, "positive"),
    ({"tries": 0}, "positive"),
    ({"max_rounds": 0}, "positive"),
    ({"max_parked": 0}, "positive"),
    ({"max_parked_per_peer": 0}, "positive"),
    ({"max_verdicts_per_peer": 0}, "positive"),
    ({"min_pull_tokens": -1}, "negative"),
    ({"max_recompute_tokens": -1}, "negative"),
    ({"renewal_s": 30.0}, "outlives a renewal"),
    ({"lease_s": 301.0}, "whole life"),
    ({"progress_s": 10.0}, "stalled"),
    ({"tries": 60}, "T4"),
    ({"escalation_s": (5.0, 4.0, 30.0, 60.0)}, "goes up"),
    ({"quarantine_share": 0.0}, "shares"),
    ({"soft_share": 1.1}, "shares"),
    ({"on_failure": "hope"}, "hope"),
]


@pytest.mark.parametrize(("changed", "why"), WRONG, ids=[str(changed) for changed, _ in WRONG])
def test_wrong(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Settings(**changed)


def test_at_the_edges() -> None:
    Settings(soft_share=0.0, quarantine_share=1.0, lease_s=300.0, min_pull_tokens=0)
