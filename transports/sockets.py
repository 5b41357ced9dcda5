"""TCP sockets, dialled and listening: names and numbers, IPv4 and IPv6, errors of ours.

Knows nothing of: wires; what is said over a socket.
Sockets: no delay (small frames go out at once); buffer sizes are the kernel's, which grows them as
         a path needs, while a size that is set stays and is capped. Only within a host, where no
         path needs much, a small one is set. Keep-alive is the session's, which also notices a
         peer that is stopped.
"""

import asyncio
import contextlib
import errno
import os
import socket
from typing import Final, TypeAlias

from transports.address import Address
from transports.errors import LocalMisuse, TransportError, Unreachable

#: What may lie between two sockets of one host, at half of what the kernel counts: so little stays
#: in the caches. With the megabytes that the kernel grows to, bulk takes half as long again.
_WITHIN_HOST_BYTES: Final = 512 << 10

#: Family, and what `connect` and `bind` take.
_Place: TypeAlias = tuple[int, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]


async def dialled(address: Address, limit_s: float) -> socket.socket:
    """A socket connected to the first place that answers. Raises: Unreachable, LocalMisuse."""
    places = await _resolve(address)
    failure: OSError | None = None
    for place in places:
        try:
            return await _connect(place, limit_s / len(places))
        except OSError as error:
            failure = error
    raise Unreachable(f"{address}: {reason_of(failure)}")


async def listening(address: Address, backlog: int) -> socket.socket:
    """A socket that listens at the first place. Raises: Unreachable, LocalMisuse."""
    family, place = (await _resolve(address))[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(place)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        nobody_s = error.errno in (errno.EADDRNOTAVAIL, errno.EACCES)
        kind: type[TransportError] = LocalMisuse if nobody_s else Unreachable
        raise kind(f"{address}: {reason_of(error)}") from None
    return sock


async def _resolve(address: Address) -> list[_Place]:
    """Where an address leads. Raises: Unreachable, LocalMisuse."""
    if not address.host:
        raise LocalMisuse(f"{address} lacks a host")
    loop = asyncio.get_running_loop()
    kind, numeric = socket.SOCK_STREAM, socket.AI_NUMERICHOST
    with contextlib.suppress(OSError, UnicodeError):  # a number needs no resolver, and no thread
        infos = socket.getaddrinfo(address.host, address.port, type=kind, flags=numeric)
        return [(info[0], info[4]) for info in infos]
    try:
        infos = await loop.getaddrinfo(address.host, address.port, type=kind)
    except UnicodeError as error:
        raise LocalMisuse(f"{address}: {error}") from None
    except OSError as error:
        raise Unreachable(f"{address}: {reason_of(error)}") from None
    return [(info[0], info[4]) for info in infos]


async def _connect(place: _Place, limit_s: float) -> socket.socket:
    """A connected socket. Raises: OSError."""
    family, where = place
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        async with asyncio.timeout(limit_s):
            await asyncio.get_running_loop().sock_connect(sock, where)
        if sock.getsockname() == sock.getpeername():
            # Where nobody listens on a port of the ephemeral range, a socket can meet itself.
            raise OSError("connected to itself")
        tune(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def tune(sock: socket.socket) -> None:
    """Small frames go out at once; within a host little is under way."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sock.getsockname()[0] == sock.getpeername()[0]:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _WITHIN_HOST_BYTES)


def reason_of(error: OSError | None) -> str:
    """For people."""
    if error is None:
        return "no address"
    return os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
