"""Scheme -> transport, imported when first used.

Knows nothing of: what a transport does. The one place that imports by name.
"""

import importlib

from transports.address import parse
from transports.api import Transport
from transports.config import SessionConfig
from transports.errors import LocalMisuse, Unsupported

#: Where each scheme's transport is.
TRANSPORTS = {
    "memory": ("transports.memory", "MemoryTransport"),
    "tcp": ("transports.tcp", "TcpTransport"),
    "shm": ("transports.shm", "ShmTransport"),
    "ucx": ("transports.ucx", "UcxTransport"),
}


def make_transport(address: str, config: SessionConfig) -> Transport:
    """The transport for the scheme of `address`, not yet open.

    Raises: LocalMisuse for an unknown scheme; Unsupported if it isn't there on this machine.
    """
    scheme = parse(address).scheme
    if scheme not in TRANSPORTS:
        raise LocalMisuse(f"no transport {scheme!r}; there are {', '.join(TRANSPORTS)}")
    module, name = TRANSPORTS[scheme]
    try:
        made = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise Unsupported(f"{scheme} isn't there on this machine: {error}") from error
    transport: Transport = made(config)
    return transport
