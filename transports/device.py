"""GPU memory as a view: what a `memoryview` is for memory of this machine.

Knows nothing of: CUDA; it is told an address and believes it.
Units:  bytes.
Source: the CUDA array interface, version 3; DLPack.
Ready:  what a lender names a stream for is moved when that is done, which is waited for here;
        whoever names none has waited.
"""

from collections.abc import Sequence
from operator import index
from typing import Any, Self, TypeGuard, cast

from transports import cuda, dlpack
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


def device_view(buffer: object, *, writable: bool = False) -> DeviceView | None:
    """A view of memory on a GPU, which has told what it is by `__cuda_array_interface__` or by
    DLPack, and holds what it should by now; None if that isn't where it is. Raises: LocalMisuse.
    """
    if type(buffer) is memoryview:
        return None
    try:
        told: Any = getattr(buffer, "__cuda_array_interface__", None)
    except Exception as error:  # noqa: BLE001 (a lender's own, of whatever kind)
        raise _badly(buffer, error) from None
    if told is not None:
        return _by_interface(buffer, told)
    if dlpack.device_type(buffer) not in dlpack.ON_GPU:
        return None
    lent = dlpack.lent(buffer, writable=writable)
    if lent is None or not lent.on_gpu:
        raise LocalMisuse(f"{type(buffer).__name__} isn't where it says that it is")
    cuda.wait_for(cuda.LEGACY_STREAM, lent.device_id)
    return DeviceView(lent.owner, lent.address, lent.length, lent.readonly)


def _by_interface(buffer: object, told: Any) -> DeviceView:
    try:
        shape, item_bytes = tuple(map(index, told["shape"])), int(told["typestr"][2:])
        address, readonly = told["data"]
        address, readonly = index(address or 0), bool(readonly)
        strides = told.get("strides")
        strides = None if strides is None else tuple(map(index, strides))
        length = dlpack.num_bytes(shape, strides, item_bytes, item_bytes)
        stream = told.get("stream")
        stream = None if stream is None else index(stream)
    except LocalMisuse:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _badly(buffer, error) from None
    if (length and address <= 0) or stream == 0:
        raise _badly(buffer, f"address {address}, stream {stream}")
    if stream is not None:
        cuda.wait_for(stream)
    return DeviceView(buffer, address, length, readonly)


def _badly(buffer: object, error: object) -> LocalMisuse:
    return LocalMisuse(f"{type(buffer).__name__} describes its memory badly: {error}")


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
    found = _device_views(buffers, writable) if looked_at else []
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


def _device_views(buffers: Sequence[object], writable: bool) -> list[DeviceView]:
    return [
        view for buffer in buffers if (view := device_view(buffer, writable=writable)) is not None
    ]
