"""`kvdist doctor`: what this machine can do, and what to do about what it can't.

Owns:   the list of what is looked at.
Knows nothing of: how any of it is used.
"""

import importlib
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import kvdist
from kvdist.cli.screen import Screen
from transports.address import WITH_PORT
from transports.config import SessionConfig
from transports.errors import TransportError
from transports.registry import TRANSPORTS, make_transport

_PACKAGES: Final = ("torch", "transformers", "tokenizers", "aiohttp", "ucxx-cu12", "vllm")
_EXTRA: Final = {"torch": "serve", "transformers": "serve", "ucxx-cu12": "ucx", "vllm": "vllm"}


def doctor() -> None:
    """Say what this machine can do: versions, devices, transports, shared memory."""
    screen = Screen()
    for title, look in _LOOKS.items():
        screen.line(f"{title}:")
        for line in look():
            screen.line(f"  {line}")


def _system() -> Iterator[str]:
    yield f"kvdist {kvdist.__version__}, Python {platform.python_version()}, {platform.platform()}"
    yield f"{os.cpu_count()} processors, {_gib(_memory())} of memory"


def _packages() -> Iterator[str]:
    for name in _PACKAGES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"{name}: not installed; it comes with kvdist[{_EXTRA.get(name, 'dev')}]"


def _devices() -> Iterator[str]:
    try:
        found = importlib.import_module("kvdist.worker.devices").devices()
    except ImportError as error:
        found = [f"none, since no model can run: {error}; install kvdist[serve]"]
    yield from found


def _transports() -> Iterator[str]:
    for scheme in TRANSPORTS:
        address = f"{scheme}://localhost:1" if scheme in WITH_PORT else f"{scheme}:///x"
        try:
            make_transport(address, SessionConfig(node_id="doctor"))
        except TransportError as error:
            yield f"{scheme}: no: {error}"
        else:
            yield f"{scheme}: yes"


def _shared_memory() -> Iterator[str]:
    yield "memfd: yes" if hasattr(os, "memfd_create") else "memfd: no: it needs Linux"
    if os.path.isdir("/dev/shm"):
        yield f"/dev/shm: {_gib(shutil.disk_usage('/dev/shm').free)} free"


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


_LOOKS: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "system": _system,
    "packages": _packages,
    "devices": _devices,
    "transports": _transports,
    "shared memory": _shared_memory,
}
