"""Numbers from callers are whole and within bounds, or it is said which aren't.

Owns:   the one check for them.
Knows nothing of: what the numbers are for.
"""

from typing import Final

from kvdist.errors import KvdistError

#: Far above any real count of tokens; what is larger is taken for a mistake.
MAX_TOKENS: Final = 1 << 31


def check_number(
    error: type[KvdistError], what: str, value: object, low: int = 0, high: int = MAX_TOKENS
) -> None:
    """Raises: `error` unless `value` is an int (no bool) within low .. high."""
    if type(value) is not int or not low <= value <= high:
        raise error(f"{what} is {value!r}, not a whole number within {low} .. {high}")
