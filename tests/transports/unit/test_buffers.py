import array
import ctypes
import struct

import pytest
from hypothesis import given, strategies as st

from transports.buffers import Cursor, as_views, copy, crc, cut, total
from transports.errors import LocalMisuse

PIECES = st.lists(st.binary(max_size=40), max_size=12)


def _views(pieces: list[bytes]) -> list[memoryview]:
    return [memoryview(piece) for piece in pieces]


def test_views_of_many_kinds() -> None:
    numbers = array.array("I", [1, 2, 3])
    raw = bytes(numbers)
    same: list[object] = [
        numbers,
        memoryview(numbers),
        memoryview(raw).cast("B", (3, 4)),
        (ctypes.c_uint32 * 3)(1, 2, 3),
        struct.pack("III", 1, 2, 3),
    ]
    for buffer in same:
        (view,) = as_views([buffer])
        assert (view.format, view.ndim, view.tobytes()) == ("B", 1, raw)
    assert as_views([b"", bytearray(), memoryview(numbers)[:0]]) == []


def test_views_are_of_the_same_memory() -> None:
    numbers = (ctypes.c_int32 * 2)()
    (view,) = as_views([numbers], writable=True)
    view[:4] = (7).to_bytes(4, "little")
    assert list(numbers) == [7, 0]


@pytest.mark.parametrize(
    ("buffer", "writable"),
    [
        ("text", False),
        (7, False),
        (None, False),
        (memoryview(b"abcd")[::2], False),
        (b"fixed", True),
    ],
)
def test_what_is_no_buffer(buffer: object, writable: bool) -> None:
    with pytest.raises(LocalMisuse):
        as_views([buffer], writable=writable)


@given(PIECES, st.integers(1, 50))
def test_cut_keeps_the_bytes(pieces: list[bytes], size: int) -> None:
    data = b"".join(pieces)
    parts = [b"".join(part) for part in cut(_views(pieces), size)]
    assert b"".join(parts) == data
    assert all(len(part) == size for part in parts[:-1])
    assert all(parts)


@given(PIECES, st.data())
def test_a_cursor_is_a_slice_that_goes_on(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    cursor, at = Cursor(_views(pieces)), 0
    while cursor.left:
        assert cursor.left == len(whole) - at
        size = data.draw(st.integers(1, 30))
        most = data.draw(st.none() | st.integers(1, 4))
        piece = cursor.peek(size, most)
        taken = b"".join(piece)
        assert taken == whole[at : at + len(taken)]
        assert taken and len(taken) <= size
        assert most is None or len(piece) <= most
        if most is None:
            assert len(taken) == min(size, len(whole) - at)
        cursor.advance(len(taken))
        at += len(taken)
    assert at == len(whole)
    assert cursor.peek(5) == []


@given(PIECES, st.lists(st.integers(0, 40), max_size=12))
def test_copy_between_any_cuts(pieces: list[bytes], sizes: list[int]) -> None:
    data = b"".join(pieces)
    into, left = [], len(data)
    for size in [*sizes, len(data)]:
        into.append(bytearray(min(size, left)))
        left -= len(into[-1])
    copy(_views(pieces), [memoryview(target) for target in into])
    assert b"".join(into) == data
    assert total(_views(pieces)) == len(data)
    assert crc(_views(pieces)) == crc([memoryview(data)])
