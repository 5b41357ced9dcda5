"""Numbers from callers are whole and within bounds."""

import math
from typing import Any

import pytest

from kvdist.cache.numbers import MAX_TOKENS, check_number
from kvdist.errors import ConfigError, LocalMisuse


@pytest.mark.parametrize("value", [0, 1, MAX_TOKENS])
def test_within_bounds(value: int) -> None:
    check_number(ConfigError, "it", value)


@pytest.mark.parametrize(
    "value",
    [-1, MAX_TOKENS + 1, 10**30, 1.0, math.nan, math.inf, True, False, None, "1", b"1", [1]],
)
def test_anything_else_is_refused_by_name(value: Any) -> None:
    with pytest.raises(LocalMisuse, match="the thing is"):
        check_number(LocalMisuse, "the thing", value)


@pytest.mark.parametrize(("value", "allowed"), [(2, False), (3, True), (5, True), (6, False)])
def test_bounds_of_one_s_own(value: int, allowed: bool) -> None:
    if allowed:
        check_number(ConfigError, "it", value, 3, 5)
    else:
        with pytest.raises(ConfigError, match=r"3 \.\. 5"):
            check_number(ConfigError, "it", value, 3, 5)
