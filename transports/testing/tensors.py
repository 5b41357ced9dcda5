"""A tensor that lends its memory by DLPack and has no other way, as small as can be.

Knows nothing of: tensor libraries.
Units:  bytes.
"""

from ctypes import (
    CFUNCTYPE,
    PYFUNCTYPE,
    addressof,
    c_char_p,
    c_int64,
    c_ubyte,
    c_void_p,
    cast,
    py_object,
    pythonapi,
)
from typing import Any, Final

from transports.dlpack import Managed, Versioned

CPU: Final = 1
READ_ONLY, IS_COPY = 1, 2
_OLD, _NEW = b"dltensor", b"dltensor_versioned"

_new_capsule: Any = pythonapi.PyCapsule_New
_new_capsule.argtypes, _new_capsule.restype = [c_void_p, c_char_p, c_void_p], py_object
_name: Any = PYFUNCTYPE(c_char_p, c_void_p)(("PyCapsule_GetName", pythonapi))
_pointer: Any = PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", pythonapi))
_Deleter = CFUNCTYPE(None, c_void_p)

#: What was lent and hasn't been given back, by its address.
_lent: dict[int, "tuple[Tensor, object]"] = {}


def _delete(managed: int) -> None:
    tensor, _ = _lent.pop(managed)
    tensor.num_lent -= 1


def _destroy(capsule: int) -> None:
    """A capsule goes that nobody has marked as used."""
    name = _name(capsule)
    managed = _pointer(capsule, name)
    form = Versioned if name == _NEW else Managed
    _Deleter(form.from_address(managed).deleter)(managed)


_deleter = _Deleter(_delete)
_destructor = PYFUNCTYPE(None, c_void_p)(_destroy)


class Tensor:
    """Lends `memory`; `told` are fields of `DLTensor` that shall be otherwise."""

    def __init__(
        self,
        memory: bytearray,
        *shape: int,
        strides: tuple[int, ...] | None = None,
        versioned: bool = True,
        flags: int = 0,
        major: int = 1,
        **told: int,
    ) -> None:
        self.memory = memory
        self.shape = shape or (len(memory),)
        self.strides = strides
        self.versioned = versioned
        self.flags = flags
        self.major = major
        self.told = {"device_type": CPU, "bits": 8, "lanes": 1, "code": 1, **told}
        #: Capsules that haven't been given back.
        self.num_lent = 0
        #: The last stream that was asked for.
        self.stream: int | None = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.told["device_type"], self.told.get("device_id", 0)

    def __dlpack__(self, *, stream: int | None = None, **asked: Any) -> object:
        if asked and not self.versioned:
            raise TypeError("from before there were versions")
        self.stream = stream
        held = (c_ubyte * len(self.memory)).from_buffer(self.memory) if self.memory else None
        shape = (c_int64 * len(self.shape))(*self.shape)
        strides = None if self.strides is None else (c_int64 * len(self.strides))(*self.strides)
        deleter = cast(_deleter, c_void_p).value
        managed = Versioned() if self.versioned else Managed()
        if isinstance(managed, Versioned):
            managed.major, managed.flags = self.major, self.flags
        managed.deleter = deleter
        tensor = managed.tensor
        tensor.data = None if held is None else addressof(held)
        tensor.ndim = len(self.shape)
        tensor.shape = cast(shape, type(tensor.shape))
        if strides is not None:
            tensor.strides = cast(strides, type(tensor.strides))
        for field, value in self.told.items():
            setattr(tensor, field, value)
        address = addressof(managed)
        _lent[address] = self, (managed, held, shape, strides)
        self.num_lent += 1
        name = _NEW if self.versioned else _OLD
        return _new_capsule(address, name, cast(_destructor, c_void_p))
