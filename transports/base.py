"""What transports over wires share: dialling, the handshake, listening, and who owns the tasks.

Owns:   all links of one transport and their tasks, while its context is open.
Knows nothing of: any one transport; each brings wires.
Bugs:   an error of ours that no one foresaw ends the link, or the handshake, that it came up in and
        no other. The loop's exception handler hears of it at once; leaving the context raises it.
"""

import asyncio
import contextlib
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

from transports.address import Address, parse
from transports.api import Link, Listener, Peer, Region, Transport
from transports.config import SessionConfig
from transports.errors import LocalMisuse, PeerLost, TransportError, Unreachable, Unsupported
from transports.greet import initiate, respond
from transports.link import WireLink
from transports.session import Session
from transports.wire import Wire

#: Peers in the middle of a handshake, and peers that nobody has accepted yet; more are cut off.
MAX_WAITING = 128
#: Bugs kept for the end of the context.
_MAX_BUGS = 16

#: What a transport calls with each wire that comes in.
OnWire: TypeAlias = Callable[[Wire], None]

_Greeting: TypeAlias = Callable[[Wire, SessionConfig], Awaitable[tuple[Session, Peer]]]


class WireTransport(Transport):
    """Links over wires. Subclasses say how wires come about."""

    def __init__(self, config: SessionConfig) -> None:
        self.config = config
        self._group: asyncio.TaskGroup | None = None
        self._links: set[WireLink] = set()
        self._listeners: set[WireListener] = set()
        #: In the middle of a handshake.
        self._raw: set[Wire] = set()
        self._bugs: list[Exception] = []

    @abstractmethod
    async def dial(self, address: Address) -> Wire:
        """A wire to `address`. Raises: Unreachable, LocalMisuse."""

    @abstractmethod
    async def bind(self, address: Address, on_wire: OnWire) -> "Bound":
        """Begin to take wires in. Raises: Unreachable, LocalMisuse."""

    def allocate(self, size: int) -> Region:
        """See `Transport.allocate`."""
        raise Unsupported(f"{self.scheme} has no regions")

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["WireTransport"]:
        """See `Transport.open`."""
        if self._group is not None:
            raise LocalMisuse("this transport is open already")
        failure: Exception | None = None
        async with asyncio.TaskGroup() as self._group:
            try:
                yield self
            except Exception as error:  # noqa: BLE001 (raised below, where no group wraps it)
                failure = error
            finally:
                for listener in list(self._listeners):
                    await listener.close()
                for link in list(self._links):
                    link.abort()
                for wire in list(self._raw):
                    wire.abort()
                self._group = None
        bugs, self._bugs = self._bugs, []
        if failure is not None:
            raise failure
        if bugs:
            raise ExceptionGroup(f"bugs in transport {self.scheme}", bugs)

    async def listen(self, address: str) -> Listener:
        """See `Transport.listen`."""
        self._own_group()
        listener = WireListener(self)
        listener.bound = await self.bind(self._own(address), listener.arrive)
        if self._group is None:
            listener.bound.close()
            raise LocalMisuse("this transport was closed meanwhile")
        listener.address = str(listener.bound.address)
        self._listeners.add(listener)
        return listener

    async def connect(self, address: str) -> Link:
        """See `Transport.connect`."""
        self._own_group()
        target = self._own(address)
        try:
            async with asyncio.timeout(self.config.handshake_s):
                wire = await self.dial(target)
                return await self.greet(wire, initiate)
        except TimeoutError:
            raise Unreachable(f"{address}: no answer in {self.config.handshake_s} s") from None
        except PeerLost as error:
            self._own_group()  # was it us?
            raise Unreachable(f"{address}: lost in the handshake: {error}") from error

    async def greet(self, wire: Wire, greeting: _Greeting) -> WireLink:
        """Handshake on a new wire; a link that runs, or the wire is gone."""
        self._raw.add(wire)
        try:
            self._own_group()
            session, peer = await greeting(wire, self.config)
            await wire.trusted()
            link = WireLink(wire, session, peer)
            group = self._own_group()
        except BaseException:
            wire.abort()
            await wire.quiet()
            raise
        finally:
            self._raw.discard(wire)
        task = group.create_task(self._carry(link), name=f"link {peer.address}")
        # Not at the end of `_carry`: a task that is cancelled before its first step never runs.
        task.add_done_callback(lambda _: self._finish(link))
        self._links.add(link)
        return link

    async def _carry(self, link: WireLink) -> None:
        try:
            await link.run()
        except Exception as bug:  # noqa: BLE001 (reported)
            self.report(f"link {link.peer.address}", bug)

    def _finish(self, link: WireLink) -> None:
        self._links.discard(link)
        link.finish()

    def report(self, where: str, bug: Exception) -> None:
        """A bug came up in a task that nobody waits for."""
        context = {"message": f"bug in {where}", "exception": bug}
        asyncio.get_running_loop().call_exception_handler(context)
        if len(self._bugs) < _MAX_BUGS:
            self._bugs.append(bug)

    def _own_group(self) -> asyncio.TaskGroup:
        if self._group is None:
            raise LocalMisuse("this transport is not open")
        return self._group

    def _own(self, address: str) -> Address:
        parsed = parse(address)
        if parsed.scheme != self.scheme:
            raise LocalMisuse(f"{address!r} is no address of {self.scheme}")
        return parsed

    def forget(self, listener: "WireListener") -> None:
        """The listener has closed."""
        self._listeners.discard(listener)


def _origin(wire: Wire) -> str:
    """A peer's host, or its process: its address without the port."""
    return re.sub(r":\d+$", "", wire.peer_address)


class Bound:
    """An address that takes wires in; `close` ends that."""

    def __init__(self, address: Address, close: Callable[[], None]) -> None:
        self.address = address
        self.close = close


class WireListener(Listener):
    """Greets who comes, and keeps those that passed until somebody accepts them."""

    bound: Bound

    def __init__(self, transport: WireTransport) -> None:
        self._transport = transport
        #: And where each comes from; oldest first.
        self._greeting: dict[asyncio.Task[None], str] = {}
        self._passed: asyncio.Queue[WireLink | None] = asyncio.Queue()
        self._closed = False
        #: Handshakes that failed, for whoever counts.
        self.num_refused = 0

    def arrive(self, wire: Wire) -> None:
        """A wire has come in."""
        group = self._transport._group
        if self._closed or group is None or self._passed.qsize() >= MAX_WAITING:
            self.num_refused += 1
            wire.abort()
            return
        self._make_room()
        task = group.create_task(self._greet(wire), name=f"greeting {wire.peer_address}")
        self._greeting[task] = _origin(wire)
        task.add_done_callback(lambda task: self._greeting.pop(task, None))
        # A task that is cancelled before its first step never runs.
        task.add_done_callback(lambda task: wire.abort() if task.cancelled() else None)

    def _make_room(self) -> None:
        """Of too many the oldest goes, among those from where most come: so silent peers can't keep
        others out, nor cut off slow ones from elsewhere.
        """
        greeting = {
            task: origin
            for task, origin in self._greeting.items()
            if not (task.done() or task.cancelling())
        }
        if len(greeting) < MAX_WAITING:
            return
        ((crowd, _),) = Counter(greeting.values()).most_common(1)
        self.num_refused += 1
        next(task for task, origin in greeting.items() if origin == crowd).cancel()

    async def _greet(self, wire: Wire) -> None:
        try:
            async with asyncio.timeout(self._transport.config.handshake_s):
                link = await self._transport.greet(wire, respond)
        except (TransportError, TimeoutError):
            self.num_refused += 1
            return
        except Exception as bug:  # noqa: BLE001 (reported)
            self._transport.report(f"the handshake with {wire.peer_address}", bug)
            return
        if self._closed:
            link.abort()
        else:
            self._passed.put_nowait(link)

    async def accept(self) -> Link:
        """See `Listener.accept`."""
        while not self._closed:
            link = await self._passed.get()
            if link is not None:
                return link
        self._passed.put_nowait(None)  # for others that wait
        raise LocalMisuse("this listener is closed")

    async def close(self) -> None:
        """See `Listener.close`."""
        if self._closed:
            return
        self._closed = True
        self.bound.close()
        self._transport.forget(self)
        for task in list(self._greeting):
            task.cancel()
        while not self._passed.empty():
            if link := self._passed.get_nowait():
                link.abort()
        self._passed.put_nowait(None)
