"""Every message comes back as it was sent; whatever else comes is the peer's fault, and cheap."""

import tracemalloc
from dataclasses import fields, replace
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import example, given, strategies as st

from kvdist.connector.codec import KINDS, MAX_MESSAGE_BYTES, decode, encode
from kvdist.connector.messages import (
    MAX_BLOCKS,
    MAX_LIST,
    MAX_TOKENS,
    OLDEST_VERSION,
    VERSION,
    Confirmed,
    Message,
    Opened,
    PartId,
    Release,
    Renew,
    Stream,
    Ticket,
    since,
)
from kvdist.errors import RemoteProtocol
from kvdist.ids import BlockId, Incarnation, LeaseId, PullId, Rank
from tests.unit.connector.wire import any_message, of_kind

PART = PartId(PullId(7), Rank(1), Rank(0))
OPENED = Opened(PART, ((1, 0, 3), ()), 40, (16, 4))  # type: ignore[arg-type]
LEASE = LeaseId(b"l" * 16)


@given(any_message())
def test_there_and_back(message: Message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_each_kind_and_each_way_to_shorten_it(kind: type) -> None:
    @given(of_kind(kind), st.data())
    def check(message: Message, data: st.DataObject) -> None:
        encoded = encode(message)
        assert decode(encoded) == message
        cut = data.draw(st.integers(0, len(encoded) - 1))
        with pytest.raises(RemoteProtocol):
            decode(encoded[:cut])

    check()


# -- versions --------------------------------------------------------------------------------------


def test_an_older_peer_gets_what_it_knows() -> None:
    """And what it leaves out has the value that it would have meant."""
    assert VERSION == 2
    _, _, *values = msgpack.unpackb(encode(OPENED, 1))
    assert len(values) == 2
    assert decode(encode(OPENED, 1)) == replace(OPENED, settled=MAX_TOKENS, block_sizes=())


def _is_old(message: Message) -> bool:
    return since(type(message)) == OLDEST_VERSION


@given(any_message().filter(_is_old))
def test_version_1_loses_new_fields_only(message: Message) -> None:
    again = decode(encode(message, OLDEST_VERSION))
    differing = {
        field.name
        for field in fields(message)
        if getattr(message, field.name) != getattr(again, field.name)
    }
    assert differing <= {"settled", "block_sizes", "why"}


@given(any_message(), st.integers(VERSION + 1, 1 << 31), st.lists(st.integers(), max_size=3))
def test_a_newer_peer_may_say_more(message: Message, version: int, more: list[int]) -> None:
    _, number, *values = msgpack.unpackb(encode(message))
    values += [min(max(value, -(1 << 63)), (1 << 64) - 1) for value in more]
    assert decode(msgpack.packb([version, number, *values])) == message


@pytest.mark.parametrize("version", [1, 2])
def test_a_peer_of_a_known_version_may_not(version: int) -> None:
    _, number, *values = msgpack.unpackb(encode(Confirmed(PART), version))
    with pytest.raises(RemoteProtocol, match="Confirmed with 2 fields"):
        decode(msgpack.packb([version, number, *values, 0]))


@pytest.mark.parametrize("version", [0, -1, None, "2", 2.0, True])
def test_no_version(version: object) -> None:
    with pytest.raises(RemoteProtocol, match="version"):
        decode(msgpack.packb([version, 5, "transfer"]))


@pytest.mark.parametrize("rows", [16, 1024])
def test_the_longest_tables_fit_a_message(rows: int) -> None:
    """However large the numbers of their blocks are."""
    block = BlockId(1 << 26)
    opened = Opened(PART, ((block,) * (MAX_BLOCKS // rows),) * rows, 40, (16,) * rows)
    assert decode(encode(opened)) == opened


# -- lies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [-1, len(KINDS), 1 << 40, None, "Open", True])
def test_unknown_kinds(number: object) -> None:
    with pytest.raises(RemoteProtocol, match="no kind"):
        decode(msgpack.packb([2, number, "transfer"]))


TICKET = [b"l" * 16, "p", 1, 40, 900, 2]
LIES: list[tuple[list[Any], str]] = [
    ([2, 0, b"l" * 17, 1], "lease"),
    ([2, 0, "l" * 16, 1], "lease"),
    ([2, 0, b"l" * 16, -1], "incarnation"),
    ([2, 0, b"l" * 16, (1 << 63) + 1], "incarnation"),
    ([2, 0, b"l" * 16, True], "incarnation"),
    ([2, 0, b"l" * 16], "1 fields"),
    ([2, 2, [b"l"] * (MAX_LIST + 1)], "leases"),
    ([2, 2, b"l" * 16], "leases"),
    ([2, 4, 1, 1, [*TICKET, 0], 0], "Ticket with 7"),
    ([2, 4, 1, 1, TICKET[:-1], 0], "Ticket with 5"),
    ([2, 4, 1, 1, 0, 0], "ticket"),
    ([2, 4, 1, 1, None, 3], "why"),
    ([2, 5, "t" * 257], "transfer"),
    ([2, 6, "t", 4, None, 0], "progress"),
    ([2, 6, "t", None, None, 0], "progress"),
    ([2, 8, [1, 0, 0], b"l", 1, [[0, 4, 8]], [0, 1], b"c"], "wanted"),
    ([2, 8, [1, 0, 0], b"l", 1, [[0, -4]], [0, 1], b"c"], "wanted"),
    ([2, 8, [1, 0, 0], b"l", 1, [[0, 4]] * 1025, [0, 1], b"c"], "wanted"),
    ([2, 8, [1, 0], b"l", 1, [[0, 4]], [0, 1], b"c"], "PartId"),
    ([2, 8, [1, 0, 0], b"l", 1, [[0, 4]], [0, 1], b"c" * 33], "content"),
    ([2, 9, [1, 0, 0], [[1 << 27]], 4, []], "blocks"),
    ([2, 9, [1, 0, 0], [[1]] * 1025, 4, []], "blocks"),
    ([2, 9, [1, 0, 0], [[0] * (MAX_LIST + 1)], 4, []], "blocks"),
    ([2, 9, [1, 0, 0], [], 4, [0] * 1025], "block_sizes"),
]


@pytest.mark.parametrize(
    ("plain", "field"), LIES, ids=[f"{lie[1]} {i}" for i, lie in enumerate(LIES)]
)
def test_a_field_that_cannot_be_is_named(plain: list[Any], field: str) -> None:
    with pytest.raises(RemoteProtocol, match=field):
        decode(msgpack.packb(plain))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 40) | st.binary(max_size=20) | st.text(),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@given(st.integers(1, 3), st.integers(-1, len(KINDS)), st.lists(PLAIN, max_size=6))
def test_whatever_has_the_form_of_a_message(version: int, number: int, values: list[Any]) -> None:
    try:
        message = decode(msgpack.packb([version, number, *values]))
    except RemoteProtocol:
        return
    assert decode(encode(message)) == message


@given(st.binary(max_size=200))
@example(b"\xc1")
@example(b"\x93\x02\x00")
@example(b"\x92\x02\xd6\xff\x00\x00\x00\x00")
@example(b"\xa1\xff")
@example(b"\x80")
def test_garbage(data: bytes) -> None:
    try:
        decode(data)
    except RemoteProtocol:
        return
    assert data[:1] > b"\x90", "it was a message after all"


@given(any_message(), st.data())
def test_some_bytes_changed(message: Message, data: st.DataObject) -> None:
    spoilt = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode(bytes(spoilt))
    except RemoteProtocol:
        return
    assert decode(encode(found)) == found


# -- and what it costs -----------------------------------------------------------------------------

#: A message may cost so many times its own size while it is looked at.
_MOST = 24


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff",  # an array that claims four billion values
        b"\xdf\xff\xff\xff\xff",  # a map
        b"\xc6\xff\xff\xff\xff",  # four gigabytes
        b"\x91" * 100_000,  # nested
        b"\xdd\x00\x0f\x42\x40" + b"\x80" * 1_000_000,  # a million maps
        b"\xdd\x00\x0f\x42\x40" + b"\xd4\x05\x00" * 1_000_000,  # a million extensions
        b"\xdd\x00\x0f\x42\x40" + b"\x90" * 1_000_000,  # a million arrays
        b"\xdd\x00\x0f\x42\x40" + b"\xd1\x7f\xff" * 1_000_000,  # a million numbers
    ],
    ids=["array", "map", "bytes", "nested", "maps", "extensions", "arrays", "numbers"],
)
def test_a_lie_about_sizes_costs_little(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocol):
            decode(data)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < _MOST * len(data) + 1_000_000


def test_longer_than_any_message() -> None:
    with pytest.raises(RemoteProtocol, match="bytes"):
        decode(b"\x90" * (MAX_MESSAGE_BYTES + 1))


def test_the_largest_lists_pass() -> None:
    renew = Renew((LEASE,) * MAX_LIST)
    assert decode(encode(renew)) == renew
    assert decode(encode(Stream("t" * 256))) == Stream("t" * 256)


def test_numbers_of_kinds_are_for_ever() -> None:
    release = encode(Release(LEASE, Incarnation(1)))
    assert release == b"\x94\x02\x00\xc4\x10" + b"l" * 16 + b"\x01"
    ticket = Ticket(LEASE, "p", Incarnation(1), 40, 900, Rank(2))
    assert [fields(kind)[0].name for kind in KINDS[:3]] == ["lease", "lease", "leases"]
    assert ticket.num_ranks == 2
