"""The worker half's shell: data links, bytes that move, and the clock.

Owns:   the channels to other workers, and the reads under way.
Knows nothing of: requests, tensors, what an answer means; the half decides everything.
Source: T3, T16, T17, T22 of docs/protocol.md.

    our node  --hear-->   half  --effects-->  channels, reads
    channels  --heard, place, landed, sent, lost-->  half  --effects-->  our node
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

import structlog

from kvdist.connector.effects import (
    CutLink,
    Escalate,
    ReadBytes,
    SendBytes,
    SendToOwnNode,
    SendToPeer,
    ServeKey,
    StopRead,
    StopSending,
    WorkerEffect,
)
from kvdist.connector.local import FromWorker, ToWorker
from kvdist.connector.messages import (
    Close,
    Confirm,
    Greeting,
    Open,
    PartId,
    StillReading,
    TokenSpans,
    WorkerMessage,
)
from kvdist.connector.settings import Settings
from kvdist.connector.worker_half import WorkerHalf
from kvdist.errors import RemoteProtocol
from kvdist.ids import NodeId
from kvdist.links.channel import Channel
from kvdist.links.layout import Bytes
from kvdist.links.local_wire import Ask, Known
from kvdist.links.marks import Marks
from kvdist.links.memory import Memory
from kvdist.links.ticking import Ticking
from transports.api import Buffer, Link, Listener, Read, Span, Transport
from transports.errors import PeerLost, TransportError

_log = structlog.get_logger(__name__)

#: Said by readers, on links that they dialled; all else is said by owners, as answers.
_BY_READERS: Final = (Open, Confirm, Close, StillReading)
#: To find out where a worker is, to reach it, and to be introduced.
_DIAL_S: Final = 5.0

Say: TypeAlias = Callable[[FromWorker | Ask], None]


class WorkerLinks:
    """See the module. `say`: to our own node. `give_up`: the process ends (T5)."""

    def __init__(
        self,
        half: WorkerHalf,
        memory: Memory,
        settings: Settings,
        transport: Transport,
        say: Say,
        give_up: Callable[[str], None],
        marks: Marks,
    ) -> None:
        self.half = half
        self._memory, self._transport, self._say = memory, transport, say
        self._give_up, self._marks = give_up, marks
        self._stall_s = settings.stall_s
        self._last_level = len(settings.escalation_s) - 1
        #: By the name under which the half knows it.
        self._channels: dict[str, Channel] = {}
        #: Those that have ended but may still have bytes landing, too.
        self._unquiet: set[Channel] = set()
        #: What is to be said when a link is there.
        self._dialling: dict[str, list[SendToPeer]] = {}
        self._asked: dict[NodeId, asyncio.Future[tuple[str, ...]]] = {}
        self._reads: dict[PartId, Read] = {}
        self._numbers = itertools.count(1)
        self._events: deque[Callable[[], None]] = deque()
        self._is_busy = False
        #: All links end, and nothing follows from it any more.
        self._is_over = False
        self._tasks: asyncio.TaskGroup
        self._ticking = Ticking(half.next_at, lambda: self._do(half.tick))

    async def run(self, listener: Listener) -> None:
        """Until it is cancelled; every link ends then."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                try:
                    while True:
                        link = await listener.accept()
                        self._tasks.create_task(self._accept(link))
                finally:
                    self._is_over = True
        finally:
            self._ticking.stop()

    def lends(self, address: str) -> bool:
        """Whether the peer at the other end of that link reads our memory by itself."""
        channel = self._channels.get(address)
        return channel is not None and channel.lends

    # -- from our node -------------------------------------------------------------------------

    def hear(self, message: ToWorker | Known) -> None:
        """Our node says something."""
        if isinstance(message, Known):
            asked = self._asked.pop(message.node, None)
            if asked is not None and not asked.done():
                asked.set_result(message.addresses)
        else:
            self._marks.heard(message)
            self._do(lambda: self.half.from_node(message))

    # -- from channels (`channel.Host`) --------------------------------------------------------

    def heard(self, channel: Channel, message: WorkerMessage | Greeting) -> None:
        """See `Host`. What nobody says on that side of a link is left unheard."""
        is_readers, dialled = isinstance(message, _BY_READERS), "/" in channel.address
        if is_readers != dialled or isinstance(message, Greeting):
            self._do(
                lambda: self.half.from_peer(channel.address, channel.peer, channel.run, message)
            )

    def place(self, channel: Channel, part: PartId, spans: TokenSpans) -> Sequence[Buffer] | None:
        """See `Host`."""
        self.half.clock(time.monotonic())
        pieces = self.half.place(channel.peer, channel.run, part, spans)
        if pieces is None:
            return None
        heads, layout = self.half.heads_of(part), self._memory.layout
        return self._memory.pool.buffers(
            layout.spans(spans, pieces, heads, channel.layout.block_sizes)
        )

    def landed(self, channel: Channel, part: PartId, spans: TokenSpans) -> None:
        """See `Host`."""
        self._do(lambda: self.half.landed(part, spans))

    def sent(self, key: ServeKey) -> None:
        """See `Host`."""
        self._do(lambda: self.half.sent(key))

    def lost(self, channel: Channel) -> None:
        """See `Host`."""
        if self._channels.get(channel.address) is channel:
            del self._channels[channel.address]
        self._do(lambda: self.half.link_lost(channel.address))

    # -- events and effects --------------------------------------------------------------------

    def _do(self, event: Callable[[], None]) -> None:
        """Handle an event, then what follows from it; what comes meanwhile waits its turn."""
        if self._is_over:
            return
        self._events.append(event)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._events:
                self.half.clock(time.monotonic())
                self._events.popleft()()
                for effect in self.half.take_effects():
                    self._carry_out(effect)
        finally:
            self._is_busy = False
        self._ticking.set()

    def _carry_out(self, effect: WorkerEffect) -> None:
        match effect:
            case SendToOwnNode(message):
                self._say(message)
                self._marks.said(message)
            case SendToPeer():
                self._send(effect)
            case SendBytes():
                self._send_bytes(effect)
            case StopSending(address, key):
                if channel := self._channels.get(address):
                    channel.stop_sending(key)
            case ReadBytes():
                self._read(effect)
            case StopRead(_, part):
                self._stop_read(part)
            case CutLink(address):
                self._cut(address)
            case Escalate(address, level):
                _log.warning("bytes don't come to rest", peer=address, level=level)
                self._cut(address)
                if level == self._last_level:
                    self._give_up(f"bytes from {address} don't come to rest")

    def _cut(self, address: str) -> None:
        if channel := self._channels.get(address):
            channel.cut()

    # -- links ---------------------------------------------------------------------------------

    def _send(self, effect: SendToPeer) -> None:
        address = effect.address
        if channel := self._channels.get(address):
            channel.say(effect.message, effect.version)
        elif address in self._dialling:
            self._dialling[address].append(effect)
        elif "/" in address:
            self._dialling[address] = [effect]
            self._tasks.create_task(self._dial(address))

    def _channel(self, address: str, link: Link) -> Channel:
        return Channel(address, link, self._memory, self, self._stall_s, self._marks)

    async def _accept(self, link: Link) -> None:
        try:
            channel = self._channel(f"link {next(self._numbers)}", link)
            await channel.introduce(lends=True)
        except (TransportError, RemoteProtocol, TimeoutError) as error:
            _log.warning("data link refused", peer=link.peer.node_id, reason=str(error))
            link.abort()
            return
        await self._run(channel)

    async def _dial(self, address: str) -> None:
        try:
            async with asyncio.timeout(_DIAL_S):
                channel = await self._reach(address)
        except (TransportError, RemoteProtocol, TimeoutError) as error:
            reason = str(error) or "nobody answers"
            _log.warning("no data link", peer=address, reason=reason)
            del self._dialling[address]
            self._do(lambda: self.half.link_lost(address))
            return
        for effect in self._dialling.pop(address):
            channel.say(effect.message, effect.version)
        await self._run(channel)

    async def _reach(self, address: str) -> Channel:
        node, _, rank = address.rpartition("/")
        where = await self._where(node)
        if int(rank) >= len(where):
            raise RemoteProtocol(f"nobody knows where worker {rank} of {node} is")
        link = await self._transport.connect(where[int(rank)])
        try:
            if link.peer.node_id != node:
                raise RemoteProtocol(f"{link.peer.node_id} is there")
            channel = self._channel(address, link)
            await channel.introduce(lends=False)
        except BaseException:
            link.abort()
            raise
        return channel

    async def _where(self, node: NodeId) -> tuple[str, ...]:
        asked = self._asked.get(node)
        if asked is None:
            asked = self._asked[node] = asyncio.get_running_loop().create_future()
            self._say(Ask(node))
        return await asyncio.shield(asked)

    async def _run(self, channel: Channel) -> None:
        self._channels[channel.address] = channel
        self._unquiet.add(channel)
        try:
            await channel.live()
        finally:
            self._unquiet.discard(channel)

    # -- bytes ---------------------------------------------------------------------------------

    def _send_bytes(self, effect: SendBytes) -> None:
        if channel := self._channels.get(effect.address):
            channel.send(effect)
        else:
            self._do(lambda: self.half.sent(effect.key))

    def _read(self, effect: ReadBytes) -> None:
        channel = self._channels.get(effect.address)
        if channel is None or channel.region is None:
            self._do(lambda: self.half.read_failed(effect.part, "no memory to read from"))
            return
        ours, theirs = self._memory.layout, channel.layout
        if not theirs.has(effect.heads):
            why = f"heads {effect.heads} aren't there, but {theirs.heads}"
            self._do(lambda: self.half.read_failed(effect.part, why))
            return
        there = theirs.spans(effect.spans, effect.source, effect.heads, ours.block_sizes)
        here = ours.spans(effect.spans, effect.target, effect.heads, theirs.block_sizes)
        try:
            read = channel.link.read(
                channel.region,
                [Span(first, size) for first, size in there],
                self._memory.pool.buffers(here),
            )
        except TransportError as error:
            self._do(partial(self.half.read_failed, effect.part, str(error)))
            return
        self._reads[effect.part] = read
        self._marks.passed("reading")
        self._tasks.create_task(
            self._finish(effect, read, partial(self._check, channel, there, here))
        )

    async def _check(self, channel: Channel, there: list[Bytes], here: list[Bytes]) -> None:
        """What was read is what its owner has. Raises: TransportError."""
        if not self._memory.is_checked:
            return
        theirs = await channel.checksum(there)
        if theirs != await asyncio.to_thread(self._memory.pool.checksum, here):
            raise PeerLost("the bytes that came aren't those that are there")

    async def _finish(
        self, effect: ReadBytes, read: Read, check: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            await read.wait()
            await check()
        except TransportError as error:
            self._do(partial(self.half.read_failed, effect.part, str(error)))
            await read.quiet()
            self._reads.pop(effect.part, None)
        else:
            self._marks.passed("landed")
            del self._reads[effect.part]
            self._do(lambda: self.half.landed(effect.part, effect.spans))

    def _stop_read(self, part: PartId) -> None:
        read = self._reads.get(part)
        if read is not None:
            read.cancel()
        self._tasks.create_task(self._come_to_rest(part, read))

    async def _come_to_rest(self, part: PartId, read: Read | None) -> None:
        """T3: by what this process knows itself."""
        if read is not None:
            await read.quiet()
        for channel in list(self._unquiet):
            landing = channel.landing
            if landing is not None and landing.part == part:
                await landing.quiet.wait()
        self._do(lambda: self.half.quiet(part))
