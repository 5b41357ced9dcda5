"""The few calls of libucp that the UCX transport makes, typed, and what their statuses mean.

Owns:   nothing; handles are plain integers that their makers give back.
Knows nothing of: wires, asyncio, when a call is right.
Calls keep the GIL (`PyDLL`): each lasts a microsecond or copies a piece, and a thread that gives
the GIL away for every such call waits milliseconds to get it back while others compute.
Source: ucp/api/ucp.h of UCX 1.21; structures there only grow at their ends.
"""

import ctypes
import functools
import importlib
import os
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_int,
    c_int8,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from enum import IntEnum
from typing import Any, ClassVar, Final, TypeAlias

from transports.errors import PeerLost, RemoteProtocol, TransportError, Unsupported

INSTALL: Final = "ucx:// needs the package ucxx: pip install ucxx-cu12 (or ucxx-cu13)"

#: Bits of `op_attr_mask`.
FIELD_DATATYPE: Final = 1 << 3
FIELD_FLAGS: Final = 1 << 4
FIELD_MEMORY_TYPE: Final = 1 << 6
NO_IMMEDIATE_COMPLETION: Final = 1 << 16
#: Datatypes.
CONTIGUOUS: Final = 1 << 3
IOV: Final = 2
#: The memory type of this machine's own memory.
HOST: Final = 0

_CLOSE_FORCE: Final = 1
FULL_MASK: Final = (1 << 64) - 1
#: Results from here on are negated statuses, below are requests.
FIRST_ERROR: Final = (1 << 64) - 100


class Status(IntEnum):
    """What UCX answers; the names are its own."""

    OK = 0
    INPROGRESS = 1
    NO_MESSAGE = -1
    NO_RESOURCE = -2
    IO_ERROR = -3
    NO_MEMORY = -4
    INVALID_PARAM = -5
    UNREACHABLE = -6
    INVALID_ADDR = -7
    NOT_IMPLEMENTED = -8
    MESSAGE_TRUNCATED = -9
    NO_PROGRESS = -10
    BUFFER_TOO_SMALL = -11
    NO_ELEM = -12
    SOME_CONNECTS_FAILED = -13
    NO_DEVICE = -14
    BUSY = -15
    CANCELED = -16
    SHMEM_SEGMENT = -17
    ALREADY_EXISTS = -18
    OUT_OF_RANGE = -19
    TIMED_OUT = -20
    EXCEEDS_LIMIT = -21
    UNSUPPORTED = -22
    REJECTED = -23
    NOT_CONNECTED = -24
    CONNECTION_RESET = -25
    ENDPOINT_TIMEOUT = -80


def name_of(status: int) -> str:
    """UCX's name of a status."""
    try:
        return f"UCS_ERR_{Status(status).name}" if status < 0 else f"UCS_{Status(status).name}"
    except ValueError:
        return f"UCS status {status}"


def error_of(status: int, what: str) -> TransportError:
    """Our error for a failed call.

    >>> error_of(-25, "get")
    PeerLost('get: UCS_ERR_CONNECTION_RESET')
    """
    text = f"{what}: {name_of(status)}"
    if status == Status.MESSAGE_TRUNCATED:
        return RemoteProtocol(text)
    if status in (Status.UNSUPPORTED, Status.NOT_IMPLEMENTED, Status.NO_DEVICE):
        return Unsupported(text)
    return PeerLost(text)


class RequestParam(Structure):
    """ucp_request_param_t."""

    _fields_: ClassVar = [
        ("op_attr_mask", c_uint32),
        ("flags", c_uint32),
        ("request", c_void_p),
        ("cb", c_void_p),
        ("datatype", c_uint64),
        ("user_data", c_void_p),
        ("reply_buffer", c_void_p),
        ("memory_type", c_int),
        ("recv_info", c_void_p),
        ("memh", c_void_p),
    ]


class TagRecvInfo(Structure):
    """ucp_tag_recv_info_t."""

    _fields_: ClassVar = [("sender_tag", c_uint64), ("length", c_size_t)]


class MemMapParams(Structure):
    """ucp_mem_map_params_t."""

    _fields_: ClassVar = [
        ("field_mask", c_uint64),
        ("address", c_void_p),
        ("length", c_size_t),
        ("flags", c_uint32),
        ("prot", c_uint32),
        ("memory_type", c_int),
        ("exported_memh_buffer", c_void_p),
    ]


class WorkerParams(Structure):
    """ucp_worker_params_t, as far as it is used."""

    _fields_: ClassVar = [("field_mask", c_uint64), ("thread_mode", c_int), ("rest", c_char * 256)]


ErrorCallback = CFUNCTYPE(None, c_void_p, c_void_p, c_int8)


class EpParams(Structure):
    """ucp_ep_params_t, as far as it is used."""

    _fields_: ClassVar = [
        ("field_mask", c_uint64),
        ("address", c_char_p),
        ("err_mode", c_int),
        ("err_cb", ErrorCallback),
        ("err_arg", c_void_p),
        ("rest", c_char * 128),
    ]


class TransportEntry(Structure):
    """ucp_transport_entry_t."""

    _fields_: ClassVar = [("transport", c_char_p), ("device", c_char_p)]


class EpAttr(Structure):
    """ucp_ep_attr_t."""

    _fields_: ClassVar = [
        ("field_mask", c_uint64),
        ("name", c_char * 32),
        ("local_sockaddr", c_uint64 * 16),
        ("remote_sockaddr", c_uint64 * 16),
        ("entries", POINTER(TransportEntry)),
        ("num_entries", c_uint32),
        ("entry_size", c_size_t),
        ("user_data", c_void_p),
    ]


#: result, arguments
_Signature: TypeAlias = tuple[Any, list[Any]]
_HANDLE: Final = c_void_p
#: UCX packs this enumeration into a byte.
_STATUS: Final = c_int8
_PARAM: Final = POINTER(RequestParam)
_SIGNATURES: Final[dict[str, _Signature]] = {
    "ucp_worker_create": (_STATUS, [_HANDLE, POINTER(WorkerParams), POINTER(_HANDLE)]),
    "ucp_worker_destroy": (None, [_HANDLE]),
    "ucp_worker_get_address": (_STATUS, [_HANDLE, POINTER(_HANDLE), POINTER(c_size_t)]),
    "ucp_worker_release_address": (None, [_HANDLE, _HANDLE]),
    "ucp_worker_get_efd": (_STATUS, [_HANDLE, POINTER(c_int)]),
    "ucp_worker_arm": (_STATUS, [_HANDLE]),
    "ucp_worker_progress": (c_uint32, [_HANDLE]),
    "ucp_ep_create": (_STATUS, [_HANDLE, POINTER(EpParams), POINTER(_HANDLE)]),
    "ucp_ep_close_nbx": (_HANDLE, [_HANDLE, _PARAM]),
    "ucp_ep_flush_nbx": (_HANDLE, [_HANDLE, _PARAM]),
    "ucp_ep_query": (_STATUS, [_HANDLE, POINTER(EpAttr)]),
    "ucp_tag_send_nbx": (_HANDLE, [_HANDLE, _HANDLE, c_size_t, c_uint64, _PARAM]),
    "ucp_tag_recv_nbx": (_HANDLE, [_HANDLE, _HANDLE, c_size_t, c_uint64, c_uint64, _PARAM]),
    "ucp_tag_probe_nb": (_HANDLE, [_HANDLE, c_uint64, c_uint64, c_int, POINTER(TagRecvInfo)]),
    "ucp_tag_msg_recv_nbx": (_HANDLE, [_HANDLE, _HANDLE, c_size_t, _HANDLE, _PARAM]),
    "ucp_get_nbx": (_HANDLE, [_HANDLE, _HANDLE, c_size_t, c_uint64, _HANDLE, _PARAM]),
    "ucp_request_check_status": (_STATUS, [_HANDLE]),
    "ucp_tag_recv_request_test": (_STATUS, [_HANDLE, POINTER(TagRecvInfo)]),
    "ucp_request_cancel": (None, [_HANDLE, _HANDLE]),
    "ucp_request_free": (None, [_HANDLE]),
    "ucp_mem_map": (_STATUS, [_HANDLE, POINTER(MemMapParams), POINTER(_HANDLE)]),
    "ucp_mem_unmap": (_STATUS, [_HANDLE, _HANDLE]),
    "ucp_rkey_pack": (_STATUS, [_HANDLE, _HANDLE, POINTER(_HANDLE), POINTER(c_size_t)]),
    "ucp_rkey_buffer_release": (None, [_HANDLE]),
    "ucp_ep_rkey_unpack": (_STATUS, [_HANDLE, c_char_p, POINTER(_HANDLE)]),
    "ucp_rkey_destroy": (None, [_HANDLE]),
}


#: What ucxx has put into the environment while it was imported: no wishes of the user's.
_PUT_BY_UCXX: Final[dict[str, str]] = {}


def environment() -> dict[str, str]:
    """What the user says to UCX, among other things."""
    put = _PUT_BY_UCXX.items()
    return {name: value for name, value in os.environ.items() if (name, value) not in put}


def ucxx() -> Any:
    """Its binding of contexts; importing it loads libucp. Raises: ImportError."""
    return importlib.import_module("ucxx._lib.libucxx")


@functools.cache
def library() -> Any:
    """The libucp that ucxx has loaded. Raises: Unsupported."""
    # UCX writes to stdout what it thinks of peers that die. All of it comes to us as statuses too,
    # so it is only wanted by who asks for it; and UCX reads this variable while it is loaded.
    quieten = "UCX_LOG_LEVEL" not in os.environ
    if quieten:
        os.environ["UCX_LOG_LEVEL"] = "fatal"
    before = dict(os.environ)
    try:
        ucxx()
        _PUT_BY_UCXX.update(os.environ.items() - before.items())
    except ImportError as error:
        raise Unsupported(f"{INSTALL} ({error})") from None
    finally:
        if quieten:
            del os.environ["UCX_LOG_LEVEL"]
    try:
        # By soname and only if it is loaded: a second copy would not know ucxx's handles.
        loaded = ctypes.PyDLL("libucp.so.0", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError as error:
        raise Unsupported(f"ucxx has loaded no libucp.so.0: {error}") from None
    for name, (result, arguments) in _SIGNATURES.items():
        call = getattr(loaded, name)
        call.restype, call.argtypes = result, arguments
    return loaded


def request_of(result: int | None) -> int:
    """The request that a call began, 0 if it is done already. Raises: what the status says."""
    if not result:
        return 0
    if result >= FIRST_ERROR:
        raise error_of(result - (1 << 64), "post")
    return result


def check(status: int, what: str) -> None:
    """Raises: what the status says, unless it is OK."""
    if status != Status.OK:
        raise error_of(status, what)


def force_close_param() -> RequestParam:
    """Close now, whatever is under way."""
    return RequestParam(op_attr_mask=FIELD_FLAGS, flags=_CLOSE_FORCE)
