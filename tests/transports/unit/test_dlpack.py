"""What tensors lend: read rightly, given back, and refused where it can't be moved."""

import gc
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from transports import cuda
from transports.api import Capabilities
from transports.buffers import as_views
from transports.device import body_views
from transports.dlpack import lent
from transports.errors import LocalMisuse
from transports.testing.tensors import IS_COPY, READ_ONLY, Tensor


def _memory() -> bytearray:
    return bytearray(range(120))


@pytest.mark.parametrize("versioned", [True, False])
def test_a_view_keeps_the_tensors_memory(versioned: bool) -> None:
    tensor = Tensor(_memory(), 10, 12, versioned=versioned)
    (view,) = as_views([tensor], writable=True)
    assert (view.format, view.ndim) == ("B", 1)
    assert view == _memory()
    part = view[5:7]
    part[:] = b"ab"
    assert tensor.memory[5:7] == b"ab"
    view.release()
    assert tensor.num_lent == 1
    part.release()
    del part, view
    assert tensor.num_lent == 0


def test_ten_thousand_bodies_are_given_back() -> None:
    tensors = [Tensor(bytearray(100)) for _ in range(10)]
    for number in range(1000):
        views = as_views(tensors, writable=bool(number % 2))
        assert [tensor.num_lent for tensor in tensors] == [1] * 10
        del views
    gc.collect()
    assert not any(tensor.num_lent for tensor in tensors)


@pytest.mark.parametrize(
    ("tensor", "wanted"),
    [
        (Tensor(_memory(), 3, 5, bits=16, lanes=2), _memory()[:60]),
        (Tensor(_memory(), 10, byte_offset=20), _memory()[20:30]),
        (Tensor(_memory(), 3, 1, 4, strides=(4, 99, 1)), _memory()[:12]),
        (Tensor(_memory(), 2, 2, strides=(2, 1), bits=64), _memory()[:32]),
        (Tensor(_memory(), ndim=0, bits=64), _memory()[:8]),
        (Tensor(_memory(), device_type=3), _memory()),
    ],
)
def test_what_is_contiguous(tensor: Tensor, wanted: bytes) -> None:
    assert as_views([tensor])[0] == wanted


def test_what_is_empty() -> None:
    assert as_views([Tensor(bytearray(), 3, 0, strides=(9, 9)), Tensor(bytearray())]) == []


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor(_memory(), 10, 6, strides=(12, 1)),
        Tensor(_memory(), 10, 12, strides=(1, 10)),
        Tensor(_memory(), 10, strides=(-1,)),
        Tensor(_memory(), -1),
        Tensor(_memory(), 1 << 40, 1 << 40),
        Tensor(_memory(), ndim=-1),
        Tensor(_memory(), bits=4),
        Tensor(_memory(), bits=0),
        Tensor(_memory(), data=0),
        Tensor(_memory(), device_type=2),
        Tensor(_memory(), device_type=7),
        Tensor(_memory(), major=2),
    ],
)
def test_what_cant_be_moved(tensor: Tensor) -> None:
    with pytest.raises(LocalMisuse):
        as_views([tensor])
    assert tensor.num_lent == 0


@pytest.mark.parametrize("flag", [READ_ONLY, IS_COPY])
def test_what_cant_be_filled(flag: int) -> None:
    tensor = Tensor(_memory(), flags=flag)
    (view,) = as_views([tensor])
    assert view.readonly == (flag == READ_ONLY)
    with pytest.raises(LocalMisuse):
        as_views([tensor], writable=True)


class _Broken:
    """Asked for what it lends, it gives or raises this."""

    def __init__(self, answer: Any, device: Any = (1, 0)) -> None:
        self.answer, self.device = answer, device

    def __dlpack_device__(self) -> Any:
        return self.device

    def __dlpack__(self, **_: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    "broken",
    [
        _Broken(None),
        _Broken(b"dltensor"),
        _Broken(RuntimeError("no")),
        _Broken(TypeError("no")),
        _Broken(BufferError("no")),
        _Broken(None, device=None),
        Tensor,
    ],
)
def test_lenders_that_are_broken(broken: object) -> None:
    for capabilities in (Capabilities(), Capabilities(device_memory=True)):
        with pytest.raises(LocalMisuse):
            body_views([broken], capabilities, SimpleNamespace(checksum_bodies=False))  # type: ignore[arg-type]


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch isn't installed (the extra is `serve`)")
    ours = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    (view,) = as_views([ours], writable=True)
    assert len(view) == 24
    view[:] = bytes(24)
    assert not ours.any()
    for odd in (ours.T, ours.to_sparse(), torch.ones(3, requires_grad=True)):
        with pytest.raises(LocalMisuse):
            as_views([odd])


def test_arrays_of_numpy() -> None:
    numpy = pytest.importorskip("numpy", reason="numpy isn't installed (the extra is `serve`)")
    array = numpy.arange(10)
    found = lent(array, writable=True)
    assert found is not None
    assert found.address == array.ctypes.data
    array.flags.writeable = False
    with pytest.raises(LocalMisuse):
        lent(array, writable=True)


class _Runtime(SimpleNamespace):
    """Stands in for CUDA's, and notes what it is asked."""

    def __init__(self, status: int = 0) -> None:
        self.asked: list[Any] = []
        self.status = status

    def cudaGetDevice(self) -> tuple[int, int]:
        return 0, 5

    def cudaSetDevice(self, device: int) -> tuple[int]:
        self.asked.append(f"device {device}")
        return (0,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[int]:
        self.asked.append(stream)
        return (self.status,)


class _Array:
    """Describes memory of ours as a GPU's."""

    def __init__(self, **told: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": (4,),
            "typestr": "|u1",
            "data": (4096, False),
            "version": 3,
            **told,
        }


def _on_gpu(buffer: object) -> list[memoryview]:
    config: Any = SimpleNamespace(checksum_bodies=False)
    return body_views([buffer], Capabilities(device_memory=True), config)


def test_what_is_computed_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = _Runtime()
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", runtime)
    _on_gpu(_Array(stream=77))
    assert runtime.asked == [77]
    tensor = Tensor(_memory(), device_type=2, device_id=3)
    (view,) = _on_gpu(tensor)
    assert len(view) == 120
    assert (tensor.stream, runtime.asked[1:]) == (1, ["device 3", 1, "device 5"])
    del view
    assert tensor.num_lent == 0
    runtime.asked.clear()
    for array in (_Array(), _Array(stream=None)):
        _on_gpu(array)
    (view,) = _on_gpu(Tensor(_memory()))
    assert view == _memory()
    assert not runtime.asked


def test_what_cant_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", _Runtime(status=1))
    with pytest.raises(LocalMisuse):
        _on_gpu(_Array(stream=77))
    with pytest.raises(LocalMisuse):
        _on_gpu(_Array(stream=0))
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", None)
    with pytest.raises(LocalMisuse):
        cuda.wait_for(1)
    _on_gpu(_Array())


@pytest.mark.parametrize(
    "told",
    [
        {"shape": (-1,)},
        {"shape": (1.5,)},
        {"shape": 7},
        {"shape": (1 << 62, 1 << 62)},
        {"data": (0, False)},
        {"data": (-5, False)},
        {"data": ("x", False)},
        {"typestr": "|u0"},
        {"typestr": 7},
        {"strides": (1, 1)},
        {"strides": ("x",)},
        {"stream": "x"},
    ],
)
def test_arrays_described_badly(told: dict[str, Any]) -> None:
    with pytest.raises(LocalMisuse):
        _on_gpu(_Array(**told))
