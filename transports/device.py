"""GPU memory as a view: what a `memoryview` is for memory of this machine.

Knows nothing of: CUDA; it is told an address and believes it.
Units:  bytes.
Source: the CUDA array interface, version 3.
"""

import math
from collections.abc import Sequence
from typing import Any, Self, TypeGuard

from transports.errors import LocalMisuse


class DeviceView:
    """Contiguous bytes at an address; slices keep the memory alive as views do."""

    __slots__ = ("_length", "_owner", "address", "readonly")

    def __init__(self, owner: object, address: int, length: int, readonly: bool) -> None:
        self._owner = owner
        self._length = length
        self.address = address
        self.readonly = readonly

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> Self:
        start, stop, step = part.indices(self._length)
        assert step == 1, "views are cut, not thinned out"
        return type(self)(self._owner, self.address + start, max(0, stop - start), self.readonly)


def device_view(buffer: object) -> DeviceView | None:
    """A view of what has `__cuda_array_interface__`; None if it hasn't. Raises: LocalMisuse."""
    told: Any = getattr(buffer, "__cuda_array_interface__", None)
    if told is None:
        return None
    try:
        shape, item_bytes = tuple(told["shape"]), int(told["typestr"][2:])
        address, readonly = told["data"]
        strides = told.get("strides")
    except (KeyError, TypeError, ValueError) as error:
        raise LocalMisuse(f"{type(buffer).__name__} describes its memory badly: {error}") from None
    if strides is not None and tuple(strides) != _contiguous(shape, item_bytes):
        raise LocalMisuse("a buffer is not contiguous")
    return DeviceView(buffer, address or 0, math.prod(shape) * item_bytes, readonly)


def _contiguous(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) * item_bytes for axis in range(len(shape)))


def on_device(views: Sequence[object]) -> TypeGuard[Sequence[DeviceView]]:
    """A body is on the GPU or not, as a whole."""
    return bool(views) and type(views[0]) is DeviceView


def device_views(buffers: Sequence[object], *, writable: bool) -> list[DeviceView]:
    """Views of buffers that are all on the GPU; none if none is. Raises: LocalMisuse."""
    views = [view for buffer in buffers if (view := device_view(buffer)) is not None]
    if views and len(views) < len(buffers):
        raise LocalMisuse("a body that is only in part on the GPU")
    if writable and any(view.readonly for view in views):
        raise LocalMisuse("a buffer to fill is read-only")
    return [view for view in views if len(view)]
