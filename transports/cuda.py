"""Waiting for a GPU: nothing that is still being computed may be moved.

Knows nothing of: memory, links.
"""

import importlib
from typing import Any

from transports.errors import LocalMisuse

#: The stream that others wait for unless they say otherwise.
LEGACY_STREAM = 1


def wait_for(stream: int, device: int | None = None) -> None:
    """Return when all that was begun on a stream is done, of the current device or of `device`.

    The loop stands still meanwhile. Raises: LocalMisuse if this process can't wait for it.
    """
    try:
        runtime: Any = importlib.import_module("cuda.bindings.runtime")
    except ImportError as error:
        raise LocalMisuse(f"no way to wait for a stream of the GPU's: {error}") from None
    if device is None:
        _done(runtime.cudaStreamSynchronize(stream))
        return
    before = _done(runtime.cudaGetDevice())[0]
    _done(runtime.cudaSetDevice(device))
    try:
        _done(runtime.cudaStreamSynchronize(stream))
    finally:
        _done(runtime.cudaSetDevice(before))


def _done(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call returned but for its status. Raises: LocalMisuse."""
    status, *rest = result
    if status:
        raise LocalMisuse(f"a stream of the GPU's can't be waited for: {status!r}")
    return tuple(rest)
