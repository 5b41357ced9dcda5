"""Which rows of the protocol's tables a run has taken.

Owns:   the counts.
Knows nothing of: what rows do.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final

from kvdist.connector.machine import Table
from kvdist.connector.tables import claim, contact, duty, grant, lease, part, pull, serve

TABLES: Final[tuple[Table[Any, Any, Any], ...]] = (
    contact.CONTACT, duty.DUTY, lease.LEASE, grant.GRANT, serve.SERVE, claim.CLAIM, pull.PULL,
    part.PART,
)  # fmt: skip

Row = tuple[str, str, str]


class _Counted(dict[tuple[Enum, Enum], Any]):
    def __init__(self, table: Table[Any, Any, Any], taken: Counter[Row]) -> None:
        super().__init__(table.rows)
        self._name, self._taken = table.name, taken

    def get(self, key: tuple[Enum, Enum], default: Any = None) -> Any:
        row = super().get(key, default)
        if row is not None:
            self._taken[self._name, key[0].name, key[1].name] += 1
        return row


@contextmanager
def counted_rows() -> Iterator[Counter[Row]]:
    """While inside, how often each row (table, state, event) was taken, and 0 where it wasn't."""
    taken: Counter[Row] = Counter()
    before: list[Mapping[Any, Any]] = [table.rows for table in TABLES]
    for table in TABLES:
        taken.update({(table.name, s.name, e.name): 0 for s, e in table.rows})
        object.__setattr__(table, "rows", _Counted(table, taken))
    try:
        yield taken
    finally:
        for table, rows in zip(TABLES, before, strict=True):
            object.__setattr__(table, "rows", rows)
