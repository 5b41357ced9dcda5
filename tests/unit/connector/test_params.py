"""What a request carries: it is read as it was written, and every wrong field is named."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from kvdist.connector.messages import Ticket
from kvdist.connector.params import ByHash, ByTransfer, Lend, Source, read_params, write_params
from kvdist.errors import InvalidRequest
from kvdist.ids import Incarnation, LeaseId, Rank

NAMES = st.text(min_size=1, max_size=256)
TICKETS = st.builds(
    Ticket,
    st.binary(min_size=16, max_size=16).map(LeaseId),
    NAMES,
    st.integers(0, 1 << 63).map(Incarnation),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 16).map(Rank),
)
WISHES = st.one_of(
    st.builds(Lend, st.none() | NAMES, st.booleans(), st.none() | NAMES),
    st.builds(ByHash, NAMES),
    st.builds(ByTransfer, NAMES, NAMES),
    TICKETS,
)
TICKET = Ticket(LeaseId(b"l" * 16), "p", Incarnation(3), 40, 900, Rank(2))


@given(WISHES)
def test_read_as_written(wish: Source | Lend) -> None:
    assert read_params(write_params(wish)) == wish


@pytest.mark.parametrize("params", [None, {}, {"do_remote_prefill": False}, {"kvdist": None}])
def test_nothing_is_asked_for(params: Any) -> None:
    assert read_params(params) is None


def test_who_names_a_transfer_reads_along_unless_told() -> None:
    assert write_params(Lend("t"))["kvdist"] == {"transfer_id": "t"}
    assert write_params(Lend("t", reads_along=False))["kvdist"]["read_along"] is False
    with pytest.raises(InvalidRequest, match="read_along"):
        read_params({"do_remote_decode": True, "kvdist": {"read_along": "no"}})


WRONG_OUTER: list[tuple[str, Any]] = [
    ("do_remote_prefill", "yes"),
    ("do_remote_decode", 1),
    ("remote_engine_id", None),
    ("remote_engine_id", ""),
    ("remote_engine_id", "p" * 257),
    ("remote_engine_id", 7),
    ("remote_engine_id", ["p"]),
    ("remote_num_tokens", -1),
    ("remote_num_tokens", True),
    ("remote_num_tokens", 1.0),
    ("remote_num_tokens", (1 << 40) + 1),
    ("remote_num_tokens", "40"),
    ("tp_size", None),
    ("tp_size", -1),
    ("tp_size", (1 << 16) + 1),
    ("kvdist", []),
    ("kvdist", 0),
    ("kvdist", "lease"),
]
WRONG_INNER: list[tuple[str, Any]] = [
    ("lease", None),
    ("lease", 16),
    ("lease", b"l" * 16),
    ("lease", "6c" * 15),
    ("lease", "6c" * 17),
    ("lease", "xy" * 16),
    ("incarnation", None),
    ("incarnation", -1),
    ("incarnation", False),
    ("remaining_ms", None),
    ("remaining_ms", 0.5),
    ("transfer_id", None),
    ("transfer_id", ""),
    ("transfer_id", "t" * 257),
    ("transfer_id", {}),
]


@pytest.mark.parametrize(("field", "value"), WRONG_OUTER)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=field):
        read_params(write_params(TICKET) | {field: value})


@pytest.mark.parametrize(("field", "value"), WRONG_INNER)
def test_a_wrong_field_of_ours_is_named(field: str, value: Any) -> None:
    params = write_params(TICKET)
    with pytest.raises(InvalidRequest, match=field):
        read_params(params | {"kvdist": params["kvdist"] | {field: value}})


@pytest.mark.parametrize("params", [[], [1], "kvdist", 1, True])
def test_no_object(params: Any) -> None:
    with pytest.raises(InvalidRequest, match="not an object"):
        read_params(params)


def test_no_field_names_an_address() -> None:
    """M5: where a node is reached is the membership's to say, never a client's."""
    params = write_params(TICKET) | {"remote_host": "10.6.6.6", "remote_port": 666}
    assert read_params(params) == TICKET


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
FIELDS = [
    "do_remote_decode", "do_remote_prefill", "remote_engine_id", "remote_num_tokens", "tp_size",
]  # fmt: skip
OURS = ["lease", "incarnation", "remaining_ms", "transfer_id"]


@given(
    st.dictionaries(st.sampled_from(FIELDS), JSON | st.just(True) | st.just("p")),
    JSON | st.dictionaries(st.sampled_from(OURS), JSON | st.just("6c" * 16)),
)
def test_whatever_a_client_sends(outer: dict[str, Any], ours: Any) -> None:
    try:
        wish = read_params({**outer, "kvdist": ours})
    except InvalidRequest:
        return
    assert wish is None or read_params(write_params(wish)) == wish


def test_half_a_letter() -> None:
    """JSON can name one; no message can carry it."""
    with pytest.raises(InvalidRequest, match="transfer_id"):
        read_params({"do_remote_decode": True, "kvdist": {"transfer_id": "t\ud83d"}})
