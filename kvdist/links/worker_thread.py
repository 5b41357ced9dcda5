"""The thread of a worker's process in which its links live, beside the main thread with the model.

Owns:   the thread, the loop, the transport, and the socket to the node.
Knows nothing of: models, plans.

The main thread asks for memory that peers may read, loads its model into it, and says when that is
done; from then on the two share nothing but the bytes.
"""

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from kvdist.connector.geometry import Geometry
from kvdist.connector.messages import Fingerprint, Hello
from kvdist.connector.worker_half import WorkerHalf
from kvdist.errors import FormatError, WorkerLost
from kvdist.links import local_wire
from kvdist.links.faults import Faults, read_faults, tell, with_faults
from kvdist.links.local_wire import Begin, Listening, LocalMessage
from kvdist.links.marks import Marks
from kvdist.links.memory import Memory
from kvdist.links.socket_folder import socket_folder
from kvdist.links.worker_links import WorkerLinks
from transports.api import Region, Transport
from transports.config import SessionConfig
from transports.faulty import FaultyTransport
from transports.registry import make_transport

#: The name of a hash algorithm -> what is compared before blocks are exchanged.
Fingerprints: TypeAlias = Callable[[str], Fingerprint]

_log = structlog.get_logger(__name__)

#: How long links may need to end.
_ENDS_S: Final = 3.0
#: Exit status of a worker whose links failed.
_FAILED: Final = 3


class WorkerThread:
    """`link`: one end of a pair of sockets, whose other end the node has."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._transport: Future[Transport] = Future()
        self._memory: Future[tuple[Memory, Geometry, Fingerprints]] = Future()
        self._thread = threading.Thread(target=self._main, name="links", daemon=True)

    def start(self) -> None:
        """The thread runs, until the node closes the socket."""
        self._thread.start()

    def join(self) -> bool:
        """The node has gone: the links end, too, and leave nothing behind. False: they take too
        long, for a peer that stands still, say; the process must not be taken down around them.
        """
        self._thread.join(_ENDS_S)
        return not self._thread.is_alive()

    def allocate(self, size: int) -> Region | None:
        """Memory that peers can be allowed to read; None: over this transport it is sent.

        Raises: TransportError if there isn't so much.
        """
        transport = self._transport.result()
        if not transport.capabilities.one_sided_reads:
            return None

        async def allocate() -> Region:
            return transport.allocate(size)

        return asyncio.run_coroutine_threadsafe(allocate(), self._loop.result()).result()

    def begin(self, memory: Memory, geometry: Geometry, fingerprint: Fingerprints) -> None:
        """The model is there: peers may come. `fingerprint` is told how blocks are found."""
        self._memory.set_result((memory, geometry, fingerprint))

    def _main(self) -> None:
        try:
            asyncio.run(self._live())
        except Exception as error:  # noqa: BLE001
            if self._transport.done():
                _log.exception("links failed")
                os._exit(_FAILED)  # whoever reads from us has to see that we are gone (T5)
            self._transport.set_exception(error)  # the main thread says so
        if not self._transport.done():
            self._transport.set_exception(WorkerLost("the node has gone"))

    async def _live(self) -> None:
        self._loop.set_result(asyncio.get_running_loop())
        reader, writer = await asyncio.open_unix_connection(sock=self._link)
        try:
            begin = await local_wire.read(reader)
            if not isinstance(begin, Begin):
                raise FormatError("a node begins with Begin")
            with socket_folder() as folder:
                config = SessionConfig(
                    node_id=begin.node,
                    incarnation=str(begin.run),
                    token=begin.token,
                    checksum_bodies=begin.is_checked,
                )
                address = _address(begin, folder)
                made = make_transport(address, config)
                faults = read_faults(begin.faults) if begin.faults else Faults()
                if faults.rates:
                    made = with_faults(made, faults)
                async with made.open() as transport:
                    self._transport.set_result(transport)
                    marks = Marks(faults.at_marks)
                    await self._serve(begin, transport, address, reader, writer, marks)
        except EOFError:
            pass  # the node has gone, and the main thread sees that too
        finally:
            writer.close()

    async def _serve(
        self,
        begin: Begin,
        transport: Transport,
        address: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        marks: Marks,
    ) -> None:
        memory, geometry, fingerprints = await asyncio.wrap_future(self._memory)
        memory = replace(memory, is_checked=begin.is_checked)
        fingerprint = fingerprints(begin.hash_algorithm)

        def say(message: LocalMessage) -> None:
            writer.write(local_wire.frame(message))

        def sends(link: str) -> bool:
            return not links.lends(link)

        hello = Hello(begin.node, begin.run, fingerprint)
        half = WorkerHalf(hello, begin.rank, geometry, begin.settings, sends=sends)
        links = WorkerLinks(half, memory, begin.settings, transport, say, _give_up, marks)
        listener = await transport.listen(address)
        say(Listening(listener.address, fingerprint))
        try:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(links.run(listener))
                telling = None
                if isinstance(transport, FaultyTransport):
                    telling = group.create_task(tell(transport))
                with suppress(EOFError):  # the node has gone
                    await _hear_all(reader, links)
                running.cancel()
                if telling is not None:
                    telling.cancel()
        finally:
            if memory.region is not None:
                memory.region.close()


async def _hear_all(reader: asyncio.StreamReader, links: WorkerLinks) -> None:
    """Raises: EOFError when the node has gone; FormatError."""
    while True:
        message = await local_wire.read(reader)
        if isinstance(message, Begin | Listening | local_wire.Ask):
            raise FormatError(f"a node doesn't say {type(message).__name__} now")
        links.hear(message)  # type: ignore[arg-type]


def _address(begin: Begin, folder: Path) -> str:
    match begin.transport:
        case "shm":
            return f"shm://{folder}/worker-{begin.rank}"
        case scheme:
            host = f"[{begin.host}]" if ":" in begin.host else begin.host
            return f"{scheme}://{host}:0"


def _give_up(why: str) -> None:
    _log.error("worker gives up", reason=why)
    os._exit(_FAILED)
