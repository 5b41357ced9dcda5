"""Addresses that are taken long before anybody listens there: while a model is loaded.

Owns:   the sockets that keep others away until then.
Knows nothing of: what will listen.
"""

import os
import socket
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from kvdist.errors import ConfigError


class Reserved:
    """`with`: nobody else can listen there, until `release` or the end of the block.

    Who connects meanwhile is refused at once, as where nobody is: a socket that listens and doesn't
    accept would let the first wait for the model, and the others for a minute and longer.
    """

    def __init__(self, host: str, port: int, flag: str) -> None:
        """Port 0, any that is free, needs no reservation. Raises: ConfigError, naming `flag`."""
        self._sockets = ExitStack()
        with ExitStack() as taken:
            for family, address in _addresses(host, port, flag) if port else ():
                one = taken.enter_context(socket.socket(family, socket.SOCK_STREAM))
                _bind(one, address, f"{host}:{port} ({flag})")
            self._sockets = taken.pop_all()

    def release(self) -> None:
        """From now on somebody else can listen there."""
        self._sockets.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def cannot_listen(where: str, error: OSError) -> ConfigError:
    """What a user is told."""
    number = error.errno or 0  # below 0 if a host isn't known
    why = os.strerror(number) if number > 0 else error.strerror or error
    return ConfigError(f"can't listen at {where}: {why}")


def _bind(one: socket.socket, address: Any, where: str) -> None:
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if one.family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
        # What an earlier run has left there is no hindrance; from now on this is one, to anybody.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as error:
        raise cannot_listen(where, error) from error


def _addresses(host: str, port: int, flag: str) -> set[tuple[int, Any]]:
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise cannot_listen(f"{host}:{port} ({flag})", error) from error
    return {(family, address) for family, _, _, _, address in found}
