"""A proxy in front of a tcp listener: does to the bytes what networks do, when it is told to."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from transports.address import parse


class Fault(Enum):
    """What happens when an armed number of bytes has passed."""

    CORRUPT = auto()  #: one bit of the next byte is turned
    TRUNCATE = auto()  #: this direction ends here, cleanly
    DROP = auto()  #: both connections are closed
    RESET = auto()  #: both connections are reset
    FREEZE = auto()  #: nothing goes on in either direction, and nobody is told


@dataclass
class Direction:
    """One direction of all connections."""

    #: How long each piece waits.
    delay_s: float = 0.0
    #: Bytes of a piece.
    piece_bytes: int = 64 << 10
    fault: Fault | None = None
    after_bytes: int = 0

    def arm(self, fault: Fault, after_bytes: int = 0) -> None:
        """Let `fault` happen once so many more bytes have passed."""
        self.fault, self.after_bytes = fault, after_bytes


@dataclass
class Proxy:
    """Where to connect, and what will go wrong."""

    address: str = ""
    #: From who dials to who listens, and back.
    up: Direction = field(default_factory=Direction)
    down: Direction = field(default_factory=Direction)
    frozen: bool = False
    num_connections: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def end(self, *, reset: bool) -> None:
        """End all connections."""
        for writer in self._writers:
            if reset:
                sock: Any = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def serve(self, host: str, port: int, reader: Any, writer: Any) -> None:
        """Carry one connection."""
        self.num_connections += 1
        there, back = await asyncio.open_connection(host, port)
        mine = {writer, back}
        self._writers |= mine
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(self.up, reader, back))
                group.create_task(self._carry(self.down, there, writer))
        except* OSError:
            pass  # one side is lost, so the other is closed
        finally:
            for each in mine:
                each.close()
                with contextlib.suppress(OSError):
                    await each.wait_closed()
            self._writers -= mine

    async def _carry(
        self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := bytearray(await reader.read(direction.piece_bytes)):
            await asyncio.sleep(direction.delay_s)
            cut = self._harm(direction, data)
            if self.frozen:
                await asyncio.Event().wait()
            writer.write(data)
            await writer.drain()
            if cut:
                break
        writer.write_eof()

    def _harm(self, direction: Direction, data: bytearray) -> bool:
        """Apply a fault that is due within `data`; True if the direction ends after it."""
        if direction.fault is None:
            return False
        if direction.after_bytes >= len(data):
            direction.after_bytes -= len(data)
            return False
        fault, direction.fault = direction.fault, None
        match fault:
            case Fault.CORRUPT:
                data[direction.after_bytes] ^= 0x10
            case Fault.TRUNCATE:
                del data[direction.after_bytes :]
                return True
            case Fault.DROP | Fault.RESET:
                self.end(reset=fault is Fault.RESET)
            case Fault.FREEZE:
                self.frozen = True
        return False


@contextlib.asynccontextmanager
async def proxied(target: str) -> AsyncIterator[Proxy]:
    """A proxy in front of `target`, a tcp address."""
    proxy, where = Proxy(), parse(target)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await proxy.serve(where.host, where.port, reader, writer)
        except asyncio.CancelledError:
            pass  # only this file cancels it
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy.address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await server.wait_closed()
