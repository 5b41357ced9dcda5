import zlib

import pytest
from hypothesis import given, strategies as st

from transports.errors import RemoteProtocol
from transports.frame import HEAD_BYTES, MAX_META_BYTES, Flag, Frame, Type, decode, meta_bytes

U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)
FRAMES = st.builds(
    Frame,
    type=st.sampled_from(Type),
    number=U64,
    kind=st.integers(0, 255),
    argument=U64,
    body_bytes=U64,
    meta=st.binary(max_size=200),
    flags=st.sampled_from(Flag),
    body_crc=U32,
)
A_FRAME = Frame(Type.MESSAGE, 7, 3, 5, 11, b"meta", Flag.BODY_CRC, 13)


@given(FRAMES)
def test_what_is_encoded_is_decoded(frame: Frame) -> None:
    data = frame.encode()
    assert decode(data) == frame
    assert meta_bytes(memoryview(data)[:HEAD_BYTES]) == len(frame.meta)


@given(FRAMES, st.data())
def test_a_changed_byte_is_seen(frame: Frame, data: st.DataObject) -> None:
    damaged = bytearray(frame.encode())
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RemoteProtocol):
        decode(bytes(damaged))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_frame_or_an_error(data: bytes) -> None:
    with pytest.raises(RemoteProtocol):
        decode(data)


def test_largest_meta() -> None:
    frame = Frame(Type.MESSAGE, 0, meta=bytes(MAX_META_BYTES))
    assert decode(frame.encode()) == frame


@pytest.mark.parametrize("cut", [0, 1, HEAD_BYTES - 1, HEAD_BYTES + 3])
def test_a_part_of_a_frame(cut: int) -> None:
    with pytest.raises(RemoteProtocol):
        decode(A_FRAME.encode()[:cut])


def _patched(offset: int, value: int) -> bytes:
    """A frame with one byte set and sound checksums."""
    head = bytearray(A_FRAME.encode()[:HEAD_BYTES])
    head[offset] = value
    head[-4:] = zlib.crc32(head[:-4]).to_bytes(4, "little")
    return bytes(head) + A_FRAME.meta


@pytest.mark.parametrize(
    ("offset", "value", "said"),
    [
        (0, 0, "no frame of this protocol"),
        (2, 2, "frame format 2, we speak 1"),
        (3, 0, "unknown frame"),
        (3, 99, "unknown frame"),
        (5, 2, "unknown frame"),
        (5, 255, "unknown frame"),
        (6, 5, "4 bytes of meta, 5 announced"),
    ],
)
def test_sound_but_unknown(offset: int, value: int, said: str) -> None:
    with pytest.raises(RemoteProtocol, match=said):
        decode(_patched(offset, value))
