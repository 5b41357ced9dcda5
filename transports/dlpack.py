"""Memory that a tensor lends by DLPack, read from its capsule; no tensor library is needed.

Knows nothing of: CUDA, links.
Units:   bytes.
Source:  the layout and rules of DLPack 1.x, `dlpack.h`, and of the forms before it.
Promise: the memory stays while whatever was made of it does. The capsule is kept and never marked
         as used, so that the lender's own destructor gives the memory back.
"""

import math
from collections.abc import Sequence
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_ubyte,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    py_object,
    pythonapi,
)
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from transports.errors import LocalMisuse

#: Types of devices whose memory is this machine's own, and those whose memory is on a GPU.
_HERE: Final = frozenset({1, 3})  # plain, pinned for CUDA
ON_GPU: Final = frozenset({2, 13})  # CUDA, CUDA managed
#: We read this version's layout, and every later one up to the next major version.
_VERSION: Final = (1, 0)
_READ_ONLY, _IS_COPY = 1, 2
_MAX_BYTES: Final = 1 << 62


class DLTensor(Structure):
    """What all forms of capsules hold."""

    _fields_: ClassVar = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class Managed(Structure):
    """A `dltensor`."""

    _fields_: ClassVar = [("tensor", DLTensor), ("context", c_void_p), ("deleter", c_void_p)]


class Versioned(Structure):
    """A `dltensor_versioned`."""

    _fields_: ClassVar = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", DLTensor),
    ]


_is_capsule: Any = pythonapi.PyCapsule_IsValid
_is_capsule.argtypes, _is_capsule.restype = [py_object, c_char_p], c_int
_pointer: Any = pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = [py_object, c_char_p], c_void_p


@dataclass(frozen=True, slots=True)
class Lent:
    """Contiguous bytes, on device `device_id` if they are on a GPU."""

    owner: object
    address: int
    length: int
    readonly: bool
    on_gpu: bool
    device_id: int

    def view(self) -> memoryview:
        """The bytes, which must be in this machine's memory."""
        assert not self.on_gpu, "only wires go there"
        if not self.length:
            return memoryview(bytearray())
        memory: Any = (c_ubyte * self.length).from_address(self.address)
        memory.owner = self.owner
        return memoryview(memory).toreadonly() if self.readonly else memoryview(memory)


def device_type(buffer: object) -> int | None:
    """Where a buffer says that it is; None if it doesn't speak DLPack. Raises: LocalMisuse."""
    tell: Any = getattr(buffer, "__dlpack_device__", None)
    if tell is None:
        return None
    try:
        return int(tell()[0])
    except Exception as error:  # noqa: BLE001 (a lender's own, of whatever kind)
        raise _badly(buffer, error) from None


def lent(buffer: object, *, writable: bool) -> Lent | None:
    """What a buffer lends; None if it doesn't speak DLPack. Raises: LocalMisuse."""
    kind = device_type(buffer)
    if kind is None:
        return None
    # On a GPU it shall be ready for the usual stream; elsewhere there are no streams.
    stream = 1 if kind in ON_GPU else None
    try:
        capsule = _capsule(buffer, stream)
    except Exception as error:  # noqa: BLE001 (a lender's own, of whatever kind)
        raise _badly(buffer, error) from None
    tensor, flags = _held(capsule)
    if tensor.device_type not in _HERE | ON_GPU:
        raise LocalMisuse(f"memory on a device of DLPack's type {tensor.device_type}")
    if writable and flags & _READ_ONLY:
        raise LocalMisuse("a buffer to fill is read-only")
    if writable and flags & _IS_COPY:
        raise LocalMisuse("a buffer to fill is only a copy")
    length = _num_bytes(tensor)
    if length and not tensor.data:
        raise LocalMisuse("a tensor without memory")
    return Lent(
        capsule,
        (tensor.data or 0) + tensor.byte_offset,
        length,
        bool(flags & _READ_ONLY),
        tensor.device_type in ON_GPU,
        tensor.device_id,
    )


def _capsule(buffer: Any, stream: int | None) -> object:
    try:
        return buffer.__dlpack__(stream=stream, max_version=_VERSION, copy=False)
    except TypeError:  # from before there were versions
        return buffer.__dlpack__(stream=stream)


def _held(capsule: object) -> tuple[DLTensor, int]:
    """The tensor in a capsule, and its flags; they are the capsule's. Raises: LocalMisuse."""
    if _is_capsule(capsule, b"dltensor_versioned"):
        new = Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if new.major != _VERSION[0]:
            raise LocalMisuse(f"DLPack of version {new.major}, we read {_VERSION[0]}")
        return new.tensor, new.flags
    if _is_capsule(capsule, b"dltensor"):
        return Managed.from_address(_pointer(capsule, b"dltensor")).tensor, 0
    raise LocalMisuse(f"{type(capsule).__name__} is no capsule of DLPack's")


def _num_bytes(tensor: DLTensor) -> int:
    """Raises: LocalMisuse."""
    item_bits = tensor.bits * tensor.lanes
    if tensor.ndim < 0 or (tensor.ndim and not tensor.shape) or item_bits % 8:
        raise LocalMisuse(f"a tensor of {tensor.ndim} axes and items of {item_bits} bits")
    shape = tensor.shape[: tensor.ndim] if tensor.ndim else []
    strides = tensor.strides[: tensor.ndim] if tensor.ndim and tensor.strides else None
    return num_bytes(shape, strides, 1, item_bits // 8)


def num_bytes(
    shape: Sequence[int], strides: Sequence[int] | None, step: int, item_bytes: int
) -> int:
    """Bytes of a contiguous array whose strides count in `step`s. Raises: LocalMisuse.

    >>> num_bytes((2, 1, 3), (3, 77, 1), 1, 4)
    24
    """
    if min(shape, default=0) < 0 or item_bytes < 1:
        raise LocalMisuse(f"an array of shape {tuple(shape)}, items of {item_bytes} bytes")
    if (size := math.prod(shape) * item_bytes) > _MAX_BYTES:
        raise LocalMisuse(f"an array of {size} bytes")
    if strides is None or not size:
        return size
    due = step
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != due:
            raise LocalMisuse("a buffer is not contiguous")
        due *= length
    return size


def _badly(buffer: object, error: Exception) -> LocalMisuse:
    return LocalMisuse(f"{type(buffer).__name__} doesn't lend its memory: {error}")
