"""Addresses: a scheme, and what comes after it.

Knows nothing of: sockets; a transport says itself what its part means.

    memory://name     tcp://host:port     shm:///path/of/a/socket     ucx://host:port
"""

from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from transports.errors import LocalMisuse


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = f":{self.port}" if self.scheme in WITH_PORT else ""
        return f"{self.scheme}://{host}{port}{self.path}"


#: Schemes whose addresses have a port.
WITH_PORT = frozenset({"tcp", "ucx"})


def parse(text: str) -> Address:
    """Raises: LocalMisuse for what is no address.

    >>> parse("tcp://[::1]:7000")
    Address(scheme='tcp', host='::1', port=7000, path='')
    >>> str(parse("shm:///run/kv.sock"))
    'shm:///run/kv.sock'
    """
    try:
        parts: SplitResult = urlsplit(text)
        port = parts.port
    except (ValueError, AttributeError, TypeError) as error:
        raise LocalMisuse(f"no address: {text!r}: {error}") from None
    if not parts.scheme or parts.query or parts.fragment or parts.username is not None:
        raise LocalMisuse(f"no address: {text!r}")
    if parts.scheme in WITH_PORT:
        if not parts.hostname or port is None or parts.path:
            raise LocalMisuse(f"{text!r} lacks a host or a port, or has more than these")
    elif port is not None:
        raise LocalMisuse(f"{text!r} has a port")
    return Address(parts.scheme, parts.hostname or "", port or 0, parts.path)
