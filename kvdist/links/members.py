"""Who is in the cluster, and where.

Owns:   what it was told.
Knows nothing of: how that is found out.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from kvdist.errors import ConfigError
from kvdist.ids import NodeId
from transports.address import parse
from transports.errors import TransportError


class Members(Protocol):
    """Asked whenever a node is to be reached."""

    def control_address(self, node: NodeId) -> str | None:
        """Where a node's process listens for others; None: nobody knows it."""


class StaticMembers:
    """A list that never changes."""

    def __init__(self, addresses: Mapping[NodeId, str]) -> None:
        self._addresses = dict(addresses)

    def control_address(self, node: NodeId) -> str | None:
        """See `Members`."""
        return self._addresses.get(node)


def read_peers(texts: Iterable[str]) -> dict[NodeId, str]:
    """`NAME=ADDRESS` each. Raises: ConfigError.

    >>> read_peers(["p0=tcp://10.0.0.1:7000"])
    {'p0': 'tcp://10.0.0.1:7000'}
    """
    found = {}
    for text in texts:
        name, _, address = text.partition("=")
        if not name or not address:
            raise ConfigError(f"a peer is NAME=ADDRESS, and {text!r} isn't")
        try:
            parse(address)
        except TransportError as error:
            raise ConfigError(str(error)) from error
        if name in found:
            raise ConfigError(f"two peers are called {name}")
        found[name] = address
    return found
