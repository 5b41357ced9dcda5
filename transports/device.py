"""GPU memory as a view: what a `memoryview` is for memory of this machine.

Knows nothing of: CUDA; it is told an address and believes it.
Units:  bytes.
Source: the CUDA array interface, version 3.
"""

import math
from collections.abc import Sequence
from typing import Any, Self, TypeGuard, cast

from transports.api import Capabilities
from transports.buffers import as_views
from transports.config import SessionConfig
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

    def __setitem__(self, part: slice, data: object) -> None:
        raise LocalMisuse("a small body can't land on the GPU: only wires write there")


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
    """A body is on the GPU or not, as a whole. There it is only for wires to touch, so that it
    never travels as part of its message.
    """
    return bool(views) and type(views[0]) is DeviceView


def body_views(
    buffers: Sequence[object],
    capabilities: Capabilities,
    config: SessionConfig,
    *,
    writable: bool = False,
) -> list[memoryview]:
    """What is to be sent or filled, here or on the GPU. Raises: LocalMisuse."""
    looked_at = capabilities.device_memory and isinstance(buffers, Sequence)
    found = _device_views(buffers) if looked_at else []
    if not found:
        return as_views(buffers, writable=writable)
    if len(found) < len(buffers):
        raise LocalMisuse("a body that is only in part on the GPU")
    if config.checksum_bodies:
        raise LocalMisuse("there are no checksums of memory on the GPU")
    if writable and any(view.readonly for view in found):
        raise LocalMisuse("a buffer to fill is read-only")
    # They can be cut and measured like the others, and only the wire looks closer.
    return cast("list[memoryview]", [view for view in found if len(view)])


def _device_views(buffers: Sequence[object]) -> list[DeviceView]:
    return [view for buffer in buffers if (view := device_view(buffer)) is not None]
