"""Each table keeps its promise on every way through it, and each of its rows is needed for that."""

from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest

from kvdist.connector.machine import Table
from kvdist.connector.tables.claim import CLAIM
from kvdist.connector.tables.contact import CONTACT
from kvdist.connector.tables.duty import DUTY
from kvdist.connector.tables.grant import GRANT
from kvdist.connector.tables.lease import LEASE
from kvdist.connector.tables.part import PART
from kvdist.connector.tables.pull import PULL
from kvdist.connector.tables.serve import SERVE
from kvdist.errors import InvalidTransition
from tests.unit.connector.promises import (
    ClaimWorld,
    ContactWorld,
    DutyWorld,
    GrantWorld,
    LeaseWorld,
    PartWorld,
    PullWorld,
    ServeWorld,
    World,
    walk,
)

AnyTable = Table[Any, Any, Any]
Row = tuple[Enum, tuple[Enum, ...]]

TABLES: list[tuple[AnyTable, World]] = [
    (CLAIM, ClaimWorld()),
    (CONTACT, ContactWorld()),
    (DUTY, DutyWorld()),
    (GRANT, GrantWorld()),
    (LEASE, LeaseWorld()),
    (PART, PartWorld()),
    (PULL, PullWorld()),
    (SERVE, ServeWorld()),
]
NAMES = [table.name for table, _ in TABLES]


@pytest.mark.parametrize(("table", "world"), TABLES, ids=NAMES)
def test_every_way_keeps_the_promise(table: AnyTable, world: World) -> None:
    states = {state for state, _ in walk(table, world)}
    kind: type[Enum] = type(table.start)
    assert states == set(kind), "a state that is never reached"


@pytest.mark.parametrize(("table", "world"), TABLES, ids=NAMES)
def test_every_row_is_needed(table: AnyTable, world: World) -> None:
    unnoticed = [name for name, changed in changes(table) if not _breaks(changed, world)]
    assert not unnoticed


def changes(table: AnyTable) -> Iterator[tuple[str, AnyTable]]:
    """The table with one row that lacks an effect, has one twice, or leads elsewhere."""
    for (state, event), (target, effects) in table.rows.items():
        where = f"{state.name} {event.name}"
        for i, effect in enumerate(effects):
            without = effects[:i] + effects[i + 1 :]
            yield f"{where} without {effect.name}", _with(table, (state, event), (target, without))
            twice = (*effects, effect)
            yield f"{where} twice {effect.name}", _with(table, (state, event), (target, twice))
        for other in type(state):
            if other is not target:
                yield (
                    f"{where} to {other.name}",
                    _with(table, (state, event), (other, effects)),
                )


def _with(table: AnyTable, key: tuple[Enum, Enum], row: Row) -> AnyTable:
    rows = {**table.rows, key: row}
    return Table(table.name, table.start, rows, table.impossible, table.late)


def _breaks(table: AnyTable, world: World) -> bool:
    try:
        list(walk(table, world))
    except (AssertionError, InvalidTransition):
        return True
    return False
