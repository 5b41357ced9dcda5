"""Links over UCX: what the fastest path between two processes is, UCX finds out.

Owns:   per transport one UCX context; per link a worker with its endpoint, and a socket.
Knows nothing of: blocks; how a worker is progressed (`ucx_worker`).
Heads:  small tagged messages, with small bodies at their end. Other bodies: tagged lists of pieces,
        straight from and into the buffers, then a *commit*.
Commit: a piece may be fetched by the receiver, from the sender's memory, whenever it comes to it,
        even when the sender has let go of it. So a body counts only when the sender has said that
        all of it was sent.
Tags:   high 48 bits a number that the receiver drew for this link, low 16 bits head, body or
        commit; they are matched in full, on a worker that serves this link alone.
Source: the verbs and settings were chosen by measuring them, see the benchmarks.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import os
import secrets
import socket
import struct
import weakref
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from transports import ucp
from transports.address import Address
from transports.api import Capabilities, Region
from transports.base import MAX_WAITING, Bound, OnWire, WireTransport
from transports.buffers import Cursor, copy, total
from transports.config import SessionConfig
from transports.errors import LocalMisuse, PeerLost, RemoteProtocol, TransportError, Unsupported
from transports.frame import HEAD_BYTES, MAX_META_BYTES, is_message, meta_bytes
from transports.sockets import dialled, listening, tune
from transports.stream import Door
from transports.ucx_bootstrap import Bootstrap
from transports.ucx_context import Context
from transports.ucx_memory import PIECE_BYTES, Piece, pieces
from transports.ucx_operation import Flush, Receive, Send
from transports.ucx_region import RemoteUcxRegion, UcxRegion
from transports.ucx_settings import MOST_EAGER
from transports.ucx_unread import Unread, most_bytes
from transports.ucx_worker import Worker
from transports.wire import RemoteRegion, Wire

logger = logging.getLogger(__name__)

#: version, tag under which we receive, boot id of our machine; the worker's address follows.
_INTRODUCTION = struct.Struct("<BQ36s")
_VERSION: Final = 2
_MAX_ADDRESS_BYTES: Final = 32 << 10
_HEAD, _BODY, _COMMIT = 0, 1, 2
#: A head with the most meta, or one with a small body at its end.
_MAX_MESSAGE_BYTES: Final = max(HEAD_BYTES + MAX_META_BYTES, MOST_EAGER)
#: The first thing that is said over UCX, both ways: the lanes work.
_GREETING: Final = b"ucx works"
#: The second: whether the side that says it can read the other's memory.
_READS, _NO_READS = b"reads", b"no reads"
_COMMITTED: Final = memoryview(b"sent")
#: Transports that only join processes of one host.
_SHARED_MEMORY: Final = frozenset({"posix", "sysv", "cma", "xpmem", "knem", "self"})
#: Transports that read a peer's memory without its doing. Over all others UCX has the peer's worker
#: answer each read, and a reader that goes in the middle of it can take that process down.
_READING: Final = frozenset({"cma", "knem", "rc_verbs", "rc_mlx5", "dc_mlx5"})
#: Within a host a part this large takes a few ms, and a new one costs half of one.
_PART_BYTES: Final = 32 << 20
#: Over tcp a call of UCX's progress moves hundreds of KB, and all of a turn's hold up the loop.
_STREAM_CALLS: Final = 4
#: After a goodbye: what was flushed has long arrived by then.
_LINGER_S: Final = 1.0


class UcxWire(Wire):
    """One side of a link."""

    def __init__(
        self, context: Context, bootstrap: Bootstrap, address: str, window_bytes: int
    ) -> None:
        self.peer_address = address
        self.capabilities = context.capabilities
        #: Transport and device of each lane in use, once there are any.
        self.lanes: list[str] = []
        #: Why the lanes aren't what one would expect between these two; empty if they are.
        self.concern = ""
        self._context = context
        self._bootstrap = bootstrap
        self._worker: Worker | None = None
        self._error: TransportError | None = None
        self._window_bytes = window_bytes
        self._tag_in = self._tag_out = 0
        self._head = bytearray(_MAX_MESSAGE_BYTES)
        #: The body that came with the last head.
        self._small = b""
        self._commit = bytearray(len(_COMMITTED))
        self._linger: asyncio.TimerHandle | None = None
        bootstrap.on_end = self._on_hung_up

    # -- becoming a link -----------------------------------------------------------------------

    async def trusted(self) -> None:
        """See `Wire.trusted`: bring up UCX, and let it show that it works in both directions."""
        self._check()
        self._tag_in = secrets.randbits(48) << 16
        worker = self._worker = self._make_worker()
        ours = _INTRODUCTION.pack(_VERSION, self._tag_in, _boot_id())
        self._bootstrap.send(ours + worker.address())
        theirs = await self._bootstrap.receive()
        if not _INTRODUCTION.size < len(theirs) <= _INTRODUCTION.size + _MAX_ADDRESS_BYTES:
            raise RemoteProtocol(f"an introduction of {len(theirs)} bytes")
        version, self._tag_out, boot_id = _INTRODUCTION.unpack_from(theirs)
        if version != _VERSION:
            raise RemoteProtocol(f"introduction of version {version}, we speak {_VERSION}")
        worker.connect(theirs[_INTRODUCTION.size :])
        if await self._exchange(worker, _GREETING) != _GREETING:
            raise RemoteProtocol("no greeting over UCX")
        self.lanes = worker.lanes()
        await self._agree_on_reads(worker)
        self._look_at_lanes(worker, boot_id == _boot_id())

    def _make_worker(self) -> Worker:
        tags = [self._tag_in | each for each in (_HEAD, _BODY, _COMMIT)]
        unread = Unread(tags, most_bytes(self._window_bytes))
        try:
            return Worker(self._context.handle, unread, self._break)
        except Unsupported:
            self._context.renew()
            return Worker(self._context.handle, unread, self._break)

    async def _exchange(self, worker: Worker, message: bytes) -> bytes:
        """Say something, and hear the same kind of thing from the peer."""
        sending = self._start(worker, message)
        answer = await self._recv_message(worker)  # each side may wait for the other to fetch
        await sending.result()
        return answer

    async def _agree_on_reads(self, worker: Worker) -> None:
        """There are reads on this link if both sides have lanes for them."""
        here = bool(self._transports() & _READING)
        answer = await self._exchange(worker, _READS if here else _NO_READS)
        if answer not in (_READS, _NO_READS):
            raise RemoteProtocol("a peer that doesn't say whether it reads")
        both = here and answer == _READS
        self.capabilities = dataclasses.replace(self.capabilities, one_sided_reads=both)

    def _transports(self) -> set[str]:
        return {lane.partition("/")[0] for lane in self.lanes}

    def _look_at_lanes(self, worker: Worker, same_host: bool) -> None:
        over_memory = bool(self._transports() & _SHARED_MEMORY)
        if over_memory or same_host:
            self.least_part_bytes = _PART_BYTES
        if not over_memory:
            worker.calls_per_turn = _STREAM_CALLS
        full = over_memory and self.capabilities.one_sided_reads
        if same_host and not full and "UCX_TLS" not in os.environ:
            self.concern = (
                f"UCX goes through {', '.join(self.lanes)} within one host, which is not the "
                "fastest it has; do both processes see the same /dev/shm, and may they read each "
                "other's memory (ptrace)?"
            )
            logger.warning("%s: %s", self.peer_address, self.concern)
        logger.info("%s: lanes %s", self.peer_address, ", ".join(self.lanes))

    # -- moving bytes --------------------------------------------------------------------------

    async def send(self, head: bytes, body: Sequence[memoryview] = ()) -> None:
        """See `Wire.send`."""
        self._check()
        worker = self._worker
        if worker is None:
            self._bootstrap.send(head)
        elif is_message(head) and len(head) + total(body) <= self._context.eager_bytes:
            await self._start(worker, b"".join((head, *body))).result()
        else:
            await self._start(worker, head, body).result()
            if body:  # the receiver has it, or UCX has a copy
                commit = Send(iter([(self._tag_out | _COMMIT, Piece([_COMMITTED]))]))
                worker.start(commit)
                await commit.result()

    async def send_part(self, head: bytes, body: Sequence[memoryview], num_bytes: int) -> None:
        """See `Wire.send_part`: a head, and each piece of a body, goes whole or not at all."""
        self._check()
        if self._worker is not None and num_bytes >= len(head):
            whole = (num_bytes - len(head)) // PIECE_BYTES * PIECE_BYTES
            await self._start(self._worker, head, Cursor(body).peek(whole)).result()

    def _start(self, worker: Worker, head: bytes, body: Sequence[memoryview] = ()) -> Send:
        message = (self._tag_out | _HEAD, Piece([memoryview(head)]))
        sending = Send(itertools.chain([message], pieces(self._tag_out | _BODY, body)))
        worker.start(sending)
        return sending

    async def recv_head(self) -> bytes:
        """See `Wire.recv_head`."""
        self._check()
        if self._worker is None:
            head = await self._bootstrap.receive()
            self.received_bytes += len(head)
            return head
        if self._small:
            raise RemoteProtocol("a body that no head announced")
        message = await self._recv_message(self._worker)
        end = HEAD_BYTES + meta_bytes(message[:HEAD_BYTES])
        self._small = message[end:]
        return message[:end]

    async def _recv_message(self, worker: Worker) -> bytes:
        place = (self._tag_in | _HEAD, Piece([memoryview(self._head)]))
        receiving = Receive(iter([place]), exact=False)
        await self._receive(worker, receiving)
        return bytes(self._head[: receiving.length])

    async def recv_body(self, into: Sequence[memoryview]) -> None:
        """See `Wire.recv_body`; it returns when the body was committed."""
        self._check()
        if self._worker is None:
            raise RemoteProtocol("a body in the handshake")
        if small := self._small:
            if len(small) != total(into):
                raise RemoteProtocol("a body of another size than its head said")
            self._small = b""
            copy([memoryview(small)], into)
            return
        commit = (self._tag_in | _COMMIT, Piece([memoryview(self._commit)]))
        body = pieces(self._tag_in | _BODY, into)
        await self._receive(self._worker, Receive(itertools.chain(body, [commit])))

    async def _receive(self, worker: Worker, receiving: Receive) -> None:
        receiving.on_arrival = self._count
        worker.start(receiving)
        await receiving.result()

    def _count(self, num_bytes: int) -> None:
        self.received_bytes += num_bytes

    # -- regions -------------------------------------------------------------------------------

    def share(self, region: Region) -> bytes:
        """See `Wire.share`."""
        if not isinstance(region, UcxRegion) or region.context is not self._context:
            raise LocalMisuse("not a region of this transport")
        if self._worker is None:
            raise LocalMisuse("no link yet")
        self._check_reads()
        return region.describe(self._worker.context)

    def attach(self, description: bytes, size: int) -> RemoteRegion:
        """See `Wire.attach`."""
        if self._worker is None:
            raise RemoteProtocol("a region in the handshake")
        self._check()  # it may have broken since the description came
        self._check_reads()
        return RemoteUcxRegion(self._worker, description, size)

    def _check_reads(self) -> None:
        if not self.capabilities.one_sided_reads:
            raise self.no_reads()

    def no_reads(self) -> Unsupported:
        """See `Wire.no_reads`."""
        return Unsupported(f"no one-sided reads over {', '.join(self.lanes)}: send messages")

    # -- the end -------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._error is not None:
            raise type(self._error)(*self._error.args)

    def _break(self, error: TransportError) -> None:
        """The wire has broken; whoever waits on it hears why."""
        if self._error is None:
            self._error = error
        if self._linger is not None:
            self._linger.cancel()
        if self._worker is not None:
            self._worker.destroy(self._error)
        self._bootstrap.close(self._error)

    def _on_hung_up(self) -> None:
        """The socket has ended: the peer's process has, or it said goodbye, and what it flushed
        before that may still lie unread.
        """
        if self._error is None and self._bootstrap.said_goodbye and self._worker is not None:
            loop = asyncio.get_running_loop()
            self._linger = loop.call_later(_LINGER_S, self._break, PeerLost("the peer has gone"))
        else:
            assert self._bootstrap.error is not None
            self._break(self._bootstrap.error)

    def abort(self) -> None:
        """See `Wire.abort`."""
        self._break(PeerLost("the link was aborted on this side"))

    async def close(self) -> None:
        """See `Wire.close`: flush, say so on the socket, and wait until the peer has too."""
        with contextlib.suppress(TransportError):
            self._check()
            if self._worker is not None:
                flushing = Flush()
                self._worker.start(flushing)
                await flushing.result()
            self._bootstrap.say_goodbye()
            await self._bootstrap.goodbye()

    async def quiet(self) -> None:
        """See `Wire.quiet`: with `abort` the worker has gone, and only it moves bytes."""


class UcxTransport(WireTransport):
    """`ucx://host:port`: where the socket is; UCX finds its own ways beside it."""

    scheme = "ucx"
    #: Once the transport is in use also GPU memory, where there is a GPU. Whether there are reads
    #: on a link depends on its lanes.
    capabilities = Capabilities(one_sided_reads=True)

    def __init__(self, config: SessionConfig) -> None:
        super().__init__(config)
        ucp.library()  # is it there?
        self._context: Context | None = None
        self._regions: weakref.WeakSet[UcxRegion] = weakref.WeakSet()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["UcxTransport"]:
        """See `Transport.open`."""
        try:
            async with super().open():
                yield self
        finally:
            for region in list(self._regions):
                region.close()
            if self._context is not None:
                self._context.close()
            self._context = None

    @property
    def context(self) -> Context:
        """The UCX context, made when it is first needed."""
        if self._context is None:
            self._context = Context()
            self.capabilities = self._context.capabilities
        return self._context

    async def dial(self, address: Address) -> Wire:
        """See `WireTransport.dial`. Raises: Unsupported if UCX can't start."""
        context = self.context
        sock = await dialled(address, self.config.handshake_s)
        return self._wire(context, sock, str(address))

    async def bind(self, address: Address, on_wire: OnWire) -> Bound:
        """See `WireTransport.bind`. Raises: Unsupported if UCX can't start."""
        context = self.context

        def came_in(sock: socket.socket) -> Wire:
            tune(sock)
            host, port = sock.getpeername()[:2]
            return self._wire(context, sock, str(Address("ucx", host, port)))

        sock = await listening(address, MAX_WAITING)
        bound = Address("ucx", address.host, sock.getsockname()[1])
        return Bound(bound, Door(sock, came_in, on_wire).close)

    def _wire(self, context: Context, sock: socket.socket, address: str) -> UcxWire:
        return UcxWire(context, Bootstrap(sock), address, self.config.window_bytes)

    def allocate(self, size: int) -> Region:
        """See `Transport.allocate`."""
        region = UcxRegion(self.context, size)
        self._regions.add(region)
        return region


def _boot_id() -> bytes:
    """The same for all processes of one running machine, containers included."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_bytes()[:36]
    return socket.gethostname().encode()[:36]
