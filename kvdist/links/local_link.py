"""The node's end of the socket to a worker's links.

Owns:   the socket.
Knows nothing of: what messages are for.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import TypeAlias

from kvdist.connector.local import FromWorker, ToWorker
from kvdist.errors import FormatError, WorkerLost
from kvdist.links import local_wire
from kvdist.links.local_wire import Ask, Begin, Known, Listening

Hear: TypeAlias = Callable[[FromWorker | Ask], None]


class LocalLink:
    """See `open`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, link: socket.socket, begin: Begin) -> "LocalLink":
        """The worker knows who it is, and can begin."""
        reader, writer = await asyncio.open_unix_connection(sock=link)
        writer.write(local_wire.frame(begin))
        return cls(reader, writer)

    async def listening(self) -> Listening:
        """Where others find it and what it has, once its model is loaded. Raises: WorkerLost."""
        message = await self._read()
        if not isinstance(message, Listening):
            raise WorkerLost(f"it begins with {type(message).__name__}")
        return message

    def say(self, message: ToWorker | Known) -> None:
        """To the worker; in vain if it is gone, which others notice."""
        if not self._writer.is_closing():
            self._writer.write(local_wire.frame(message))

    async def run(self, hear: Hear) -> None:
        """All that it says, until it is lost. Raises: WorkerLost, and never returns."""
        while True:
            message = await self._read()
            if not isinstance(message, FromWorker | Ask):
                raise WorkerLost(f"a worker doesn't say {type(message).__name__}")
            hear(message)

    def close(self) -> None:
        """The worker's links end."""
        self._writer.close()

    async def _read(self) -> local_wire.LocalMessage:
        try:
            return await local_wire.read(self._reader)
        except EOFError:
            raise WorkerLost("its links have ended") from None
        except FormatError as error:
            raise WorkerLost(str(error)) from error
