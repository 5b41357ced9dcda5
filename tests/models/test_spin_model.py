"""Tables and model are held together, and Spin rejects tables and rules that were made wrong."""

import re
from dataclasses import replace

import pytest

from tools.spin import (
    LONG,
    MODEL,
    QUICK,
    TABLES,
    AnyTable,
    Search,
    check,
    effect_name,
    event_name,
    kinds,
    missing_tools,
    promela,
)

TEXT = MODEL.read_text()
MISSING = missing_tools()
needs_spin = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed here: {', '.join(MISSING)}; CI installs them"
)
#: Searches take seconds of a core, and tests may have to share it.
pytestmark = pytest.mark.timeout(300)

#: (table, state, event, the row that is planted): states and effects by name.
ROWS = [
    ("lease", "ACTIVE", "RELEASED", "REVOKING"),  # SEND_REVOKE is forgotten
    ("lease", "ACTIVE", "EXPIRED", "GONE RETURN_BLOCKS"),  # before the workers have stopped
    ("lease", "GRANTING", "GRANTED", "ACTIVE ISSUE_TICKET"),  # its clock never runs
    ("grant", "ACTIVE", "REVOKE_BUSY", "GONE ACKNOWLEDGE"),  # though something is read
    ("serve", "SENDING", "CLOSE", "OVER FREE"),  # though our own send goes on
    ("claim", "PULLING", "LOST", "GONE FORGET"),  # while the pull goes on
    ("pull", "PULLING", "PART_FAILED", "OVER SAY_FAILED SAY_QUIET END_CLAIM"),  # not quiet yet
    ("part", "LANDING", "LANDED", "GOOD REPORT_GOOD REPORT_QUIET"),  # unconfirmed
    ("part", "LANDING", "LINK_LOST", "OVER REPORT_FAILED REPORT_QUIET"),  # the read goes on
]
MORE_ROWS = [
    ("part", "OPENING", "DENIED", "OVER REPORT_FAILED REPORT_QUIET"),  # a repeat is granted
    ("lease", "REVOKING", "REVOKED", "GONE"),  # the blocks stay
    ("grant", "REVOKING", "LAST_CLOSED", "GONE"),  # the node waits for ever
    ("serve", "SENDING", "LINK_LOST", "OVER FREE"),
    ("serve", "OPEN", "CLOSE", "OVER"),  # the hold never ends
    ("claim", "HELD", "UNWANTED", "RELEASING"),  # nobody tells the owner, or asks again
    ("pull", "PULLING", "ALL_GOOD", "LOADED SAY_LOADED"),  # the claim never ends
    ("part", "CONFIRMING", "GAVE_UP", "GOOD REPORT_GOOD REPORT_QUIET"),
    ("part", "LANDING", "CANCELLED", "OVER REPORT_FAILED STOP_READ REPORT_QUIET"),
    ("part", "STOPPING", "QUIET", "OVER SEND_CLOSE"),  # quarantine never ends
]
#: What the halves look at, left out: lines of the model, and what stands there instead.
GUARDS = {
    "confirmed after the hold": {
        "#define may_confirm(is_open) (is_open)": "#define may_confirm(is_open) true",
        "if :: !has(good, p) -> put(bad, p) :: else fi;": "",
    },
    "confirmed by another run": {
        "#define may_confirm(is_open) (is_open)": "#define may_confirm(is_open) true",
        "#define is_same_run(named, ours) ((named) == (ours))": "#define is_same_run(a, b) true",
    },
    "quiet before the read has ended": {
        "drop(stopped, p); reading[p] = 0;": "drop(stopped, p);",
    },
}


def _mutated(name: str, state: str, event: str, row: str) -> tuple[AnyTable, ...]:
    """The tables, one row of one of them made another."""
    return tuple(
        _with_row(table, state, event, *row.split()) if table.name == name else table
        for table in TABLES
    )


def _with_row(table: AnyTable, state: str, event: str, target: str, *effects: str) -> AnyTable:
    (old,) = [(s, e) for s, e in table.rows if (s.name, e.name) == (state, event)]
    does = {effect.name: effect for _, found in table.rows.values() for effect in found}
    row = (type(table.start)[target], tuple(does[effect] for effect in effects))
    assert row != table.rows[old]
    mutant: AnyTable = replace(table, rows={**table.rows, old: row})
    return mutant


def _effects(table: AnyTable) -> set[str]:
    (effects,) = {type(effect) for _, found in table.rows.values() for effect in found}
    return {effect_name(table, effect) for effect in effects}


def test_the_model_does_every_effect_and_nothing_else() -> None:
    defined = re.findall(r"^inline (do_\w+)\(", TEXT, re.MULTILINE)
    assert sorted(defined) == sorted(set().union(*map(_effects, TABLES)))


def test_the_model_brings_every_event_about() -> None:
    events = {event_name(table, event) for table in TABLES for _, event in table.rows}
    called = {event for event in events if re.search(rf"\b{event}\(", TEXT)}
    assert events == called


def test_every_pair_of_state_and_event_is_printed() -> None:
    """So the checks below are of the tables as they are."""
    text = promela()
    for table in TABLES:
        states, events = kinds(table)
        for event in events:
            (body,) = re.findall(
                rf"^inline {event_name(table, event)}\(i\) {{\n  if\n(.*?)  fi\n}}$",
                text,
                re.MULTILINE | re.DOTALL,
            )
            ways = re.findall(rf"^  :: {table.name}\[i\] == (\w+) -> (.+)$", body, re.MULTILINE)
            assert len(ways) == len(states)
            for state, (printed, way) in zip(states, ways, strict=True):
                assert printed == f"{table.name}_{state.name}".upper()
                _compare(table, state, event, way)


def _compare(table: AnyTable, state: object, event: object, way: str) -> None:
    row = table.rows.get((state, event))
    if row is None:
        is_impossible = (state, event) in table.impossible
        assert way.startswith("assert(false)" if is_impossible else "skip")
        return
    target, *effects = way.split("; ")
    assert target == f"{table.name}[i] = {f'{table.name}_{row[0].name}'.upper()}"
    assert effects == [f"{effect_name(table, effect)}(i)" for effect in row[1]]


@needs_spin
@pytest.mark.parametrize("search", QUICK, ids=lambda search: search.name)
def test_the_protocol_holds(search: Search) -> None:
    verdict = check(search, TEXT)
    assert verdict.holds, f"{verdict}\n{verdict.trail}"


def _complaint(model: str, tables: tuple[AnyTable, ...]) -> str:
    """What the first search says that says anything."""
    for search in QUICK + LONG:
        verdict = check(search, model, tables)
        if verdict.errors:
            assert verdict.trail
            return verdict.complaint
    return ""


@needs_spin
@pytest.mark.parametrize(
    "row",
    [*ROWS, *(pytest.param(row, marks=pytest.mark.slow) for row in MORE_ROWS)],
    ids=lambda row: " ".join(row),
)
def test_a_wrong_row_is_rejected(row: tuple[str, str, str, str]) -> None:
    assert _complaint(TEXT, _mutated(*row))


@needs_spin
def test_what_goes_on_for_ever_is_rejected() -> None:
    (search,) = [search for search in QUICK if search.ends]
    tables = _mutated("claim", "RELEASING", "GAVE_UP", "RELEASING SEND_RELEASE")
    assert check(search, TEXT, tables).complaint.startswith("non-progress cycle")


@needs_spin
@pytest.mark.parametrize("changes", GUARDS.values(), ids=GUARDS)
def test_a_guard_left_out_is_noticed(changes: dict[str, str]) -> None:
    model = TEXT
    for line, instead in changes.items():
        assert model.count(line) == 1
        model = model.replace(line, instead)
    assert _complaint(model, TABLES)
