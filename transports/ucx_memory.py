"""Buffers as UCX wants them: addresses, lists of them, and cuts that both sides make alike.

Knows nothing of: workers, tags.
Units:  bytes.
Cut:    a body of n bytes travels as pieces of `PIECE_BYTES`, the last with the rest, however the
        buffers of either side are cut: a piece is a list of what it touches.
"""

from array import array
from collections.abc import Iterator, Sequence
from ctypes import (
    POINTER,
    Structure,
    addressof,
    byref,
    c_char,
    c_int,
    c_ssize_t,
    c_void_p,
    py_object,
    pythonapi,
)
from typing import Any, ClassVar, Final

from transports import ucp
from transports.buffers import cut
from transports.device import on_device
from transports.pieces import MAX_PIECE_BYTES, Pieces

#: One call moves this much: 1 to 8 MiB are equally fast.
PIECE_BYTES: Final = MAX_PIECE_BYTES


class _PyBuffer(Structure):
    _fields_: ClassVar = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("pointers", c_void_p * 5),
    ]


_get_buffer: Any = pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [py_object, POINTER(_PyBuffer), c_int]
_release_buffer: Any = pythonapi.PyBuffer_Release
_release_buffer.argtypes = [POINTER(_PyBuffer)]
_char_at = c_char.from_buffer


def address_of(view: memoryview) -> int:
    """Where the memory of a view, not empty, lies; it stays there while the view lives."""
    if not view.readonly:
        return addressof(_char_at(view))
    buffer = _PyBuffer()
    _get_buffer(view, byref(buffer), 0)
    address: int = buffer.buf
    _release_buffer(byref(buffer))
    return address


def runs(views: Sequence[memoryview]) -> list[int]:
    """Address, length, address, length, ...; views that touch are one run."""
    found: list[int] = []
    end = -1
    if on_device(views):
        for device_view in views:
            if device_view.address == end:
                found[-1] += len(device_view)
            else:
                found += (device_view.address, len(device_view))
            end = device_view.address + len(device_view)
        return found
    for view in views:
        length = len(view)
        address = addressof(_char_at(view)) if not view.readonly else address_of(view)
        if address == end:
            found[-1] += length
        else:
            found += (address, length)
        end = address + length
    return found


def _params(datatype: int, on_gpu: bool) -> tuple[Any, Any]:
    # On the GPU there are several types of memory, and UCX finds out which it is. For ours it
    # needn't look.
    mask = ucp.FIELD_DATATYPE | (0 if on_gpu else ucp.FIELD_MEMORY_TYPE)
    send = ucp.RequestParam(op_attr_mask=mask, datatype=datatype, memory_type=ucp.HOST)
    # Always a request: where else would the length be?
    receive = ucp.RequestParam(
        op_attr_mask=mask | ucp.NO_IMMEDIATE_COMPLETION, datatype=datatype, memory_type=ucp.HOST
    )
    return byref(send), byref(receive)


#: For memory of ours, for the GPU's.
_CONTIGUOUS = (_params(ucp.CONTIGUOUS, False), _params(ucp.CONTIGUOUS, True))
_IOV = (_params(ucp.IOV, False), _params(ucp.IOV, True))


class Piece:
    """What one call moves; it must live until its request has ended."""

    __slots__ = ("_list", "_views", "address", "count", "num_bytes", "recv_param", "send_param")

    def __init__(self, views: Sequence[memoryview]) -> None:
        found = runs(views)
        self._views = views
        self._list = array("Q", found)
        on_gpu = on_device(views)
        if len(found) == 2:
            self.address, self.count = found
            self.num_bytes = self.count
            self.send_param, self.recv_param = _CONTIGUOUS[on_gpu]
        else:
            self.address, self.count = self._list.buffer_info()[0], len(found) // 2
            self.num_bytes = sum(found[1::2])
            self.send_param, self.recv_param = _IOV[on_gpu]


def pieces(tag: int, views: Sequence[memoryview]) -> Iterator[tuple[int, Piece]]:
    """A body, cut; made when they are asked for."""
    for part in cut(views, PIECE_BYTES):
        yield tag, Piece(part)


def gets(base: int, pieces: Pieces) -> list[tuple[int, int, int]]:
    """Local address, remote address, length; pieces that touch on both sides are one get."""
    found: list[tuple[int, int, int]] = []
    here = there = length = 0  # what has been merged and isn't in the list yet
    places = zip(_addresses(pieces.targets), pieces.starts, pieces.lengths, strict=True)
    for local, start, size in places:
        remote = base + start
        if local == here + length and remote == there + length and length + size <= PIECE_BYTES:
            length += size
            continue
        if length:
            found.append((here, there, length))
        here, there, length = local, remote, size
    if length:
        found.append((here, there, length))
    return found


def _addresses(targets: Sequence[memoryview]) -> list[int]:
    if on_device(targets):
        return [view.address for view in targets]
    return [addressof(_char_at(view)) for view in targets]
