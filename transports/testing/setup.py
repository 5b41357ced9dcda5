"""What checks are made with: pairs of links, bytes to send, errors to expect.

Knows nothing of: any one transport.
"""

import asyncio
import contextlib
import functools
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from transports.api import Buffer, Head, Link, Listener, Placer, Transport
from transports.base import WireTransport
from transports.config import SessionConfig
from transports.errors import TransportError
from transports.faults import Plan
from transports.faulty import FaultyTransport

Settings: TypeAlias = Mapping[str, Any]

NO_FAULTS = Plan()


@dataclass(frozen=True, slots=True)
class Pair:
    """A link with all that made it."""

    left: Transport
    right: Transport
    listener: Listener
    a: Link  #: the side that dialled
    b: Link  #: the side that was dialled

    async def another(self) -> "Pair":
        """A second link between the same transports."""
        a, b = await meet(self.left, self.listener)
        return replace(self, a=a, b=b)


@dataclass(frozen=True, slots=True)
class Setup:
    """How to make transports of one kind."""

    make: Callable[[SessionConfig], Transport]
    #: A fresh address to listen at, each time.
    address: Callable[[], str]
    #: The two sides of a link can live in two event loops.
    other_loops: bool = True
    dialler_plan: Plan = NO_FAULTS
    listener_plan: Plan = NO_FAULTS

    def faulty(self, dialler: Plan = NO_FAULTS, listener: Plan = NO_FAULTS) -> "Setup":
        """The same with faults."""
        return replace(self, dialler_plan=dialler, listener_plan=listener)

    def dialler(self, **settings: Any) -> Transport:
        """A transport for who dials, not yet open."""
        return self._transport("dialler", self.dialler_plan, settings)

    def listener(self, **settings: Any) -> Transport:
        """A transport for who listens, not yet open."""
        return self._transport("listener", self.listener_plan, settings)

    def _transport(self, node_id: str, plan: Plan, settings: Settings) -> Transport:
        made = self.make(SessionConfig(**{"node_id": node_id, **settings}))
        if not plan.faults:
            return made
        assert isinstance(made, WireTransport), "faults are made on wires"
        return FaultyTransport(made, plan)

    @contextlib.asynccontextmanager
    async def transports(
        self, dialler: Settings | None = None, listener: Settings | None = None, **both: Any
    ) -> AsyncIterator[tuple[Transport, Transport, Listener]]:
        """Two open transports; the second listens."""
        left = self.dialler(**{**both, **(dialler or {})})
        right = self.listener(**{**both, **(listener or {})})
        async with left.open(), right.open():
            yield left, right, await right.listen(self.address())

    @contextlib.asynccontextmanager
    async def pair(
        self, dialler: Settings | None = None, listener: Settings | None = None, **both: Any
    ) -> AsyncIterator[Pair]:
        """A link."""
        async with self.transports(dialler, listener, **both) as (left, right, listening):
            yield Pair(left, right, listening, *await meet(left, listening))


async def meet(left: Transport, listening: Listener) -> tuple[Link, Link]:
    """Dial and be dialled."""
    dialled, accepted = await both(left.connect(listening.address), listening.accept())
    return dialled, accepted


async def both(first: Any, second: Any) -> tuple[Any, Any]:
    """Await two things at once; the first error alone, if there is one."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = group.create_task(first), group.create_task(second)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return tasks[0].result(), tasks[1].result()


@functools.lru_cache(maxsize=8)
def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that differ everywhere, the same for the same seed."""
    return random.Random(seed).randbytes(size)


def pieces(size: int, num: int, seed: int = 0) -> list[int]:
    """Sizes of `num` pieces, some of them empty, that add up to `size`."""
    chance = random.Random(seed)
    cuts = sorted(chance.randrange(size + 1) for _ in range(num - 1))
    return [end - start for start, end in zip([0, *cuts], [*cuts, size], strict=True)]


def split(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """The data in pieces."""
    found, start = [], 0
    for size in sizes:
        found.append(data[start : start + size])
        start += size
    return found


async def send_each(link: Link, messages: Iterable[bytes]) -> None:
    """Messages without bodies."""
    for meta in messages:
        await link.send(1, meta)


async def receive(link: Link) -> tuple[Head, bytes]:
    """A message with its body."""
    body = bytearray()

    def place(head: Head) -> list[Buffer]:
        nonlocal body
        body = bytearray(head.body_bytes)  # a new one each time: what was offered can be withdrawn
        return [body]

    head = await link.recv(place)
    return head, bytes(body) if head.body_bytes else b""


async def carry(a: Link, b: Link, body: bytes = b"", kind: int = 1, meta: bytes = b"") -> None:
    """One message from a to b, checked."""
    _, (head, received) = await both(a.send(kind, meta, [body]), receive(b))
    assert head == Head(kind, meta, len(body))
    assert received == body


async def alive(a: Link, b: Link) -> None:
    """Messages of both sizes pass in both directions."""
    for size in (10, max(70_000, 1)):
        await carry(a, b, noise(size))
        await carry(b, a, noise(size, 1))


def into(*buffers: Buffer) -> Placer:
    """A placer that names these buffers, whatever comes."""
    return lambda _: buffers


def begun(target: bytearray) -> Callable[[], bool]:
    """Whether bytes have begun to land at the start of `target`, which was empty."""
    return lambda: any(target[:16])


@contextlib.contextmanager
def expect(*kinds: type[TransportError]) -> Iterator[None]:
    """One of these errors comes up, exactly of that kind."""
    try:
        yield
    except kinds:
        return
    raise AssertionError(f"none of {[kind.__name__ for kind in kinds]} came up")


async def turns(number: int) -> None:
    """Let the loop go round."""
    for _ in range(number):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop go round until it is so; the check's own time limit ends it otherwise."""
    while not condition():  # noqa: ASYNC110 (there is no event to wait for)
        await asyncio.sleep(0)
