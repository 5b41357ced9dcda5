"""A peer that says whatever a test wants: frames by hand over a wire, behind a real handshake."""

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from tests.transports.linked import config
from transports.address import parse
from transports.api import Link
from transports.base import WireTransport
from transports.errors import TransportError
from transports.frame import Flag, Frame, Type, decode
from transports.greet import initiate
from transports.memory import MemoryRegion, MemoryTransport
from transports.wire import Wire

_numbers = itertools.count()


class RawPeer:
    """Numbers its frames, and otherwise keeps no rule."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.number = 2
        self.region = 0

    async def say(self, type_: Type, *, body: bytes = b"", **fields: Any) -> None:
        """One frame; `fields` override what a sound one would have."""
        fields = {"number": self.number, "body_bytes": len(body), "flags": Flag.NONE, **fields}
        self.number += 1
        await self.wire.send(Frame(type_, **fields).encode(), [memoryview(body)] if body else [])

    async def share(self, size: int, **fields: Any) -> MemoryRegion:
        """A region, announced as it should be but for `fields`."""
        region = MemoryRegion(size)
        self.region += 1
        described = {"argument": self.region, "meta": self.wire.share(region), "body_bytes": size}
        await self.say(Type.REGION, **{**described, **fields})
        return region

    async def hear(self, *wanted: Type) -> tuple[Frame, bytes]:
        """The next frame of one of these types, or of any, with its body."""
        while True:
            frame = decode(await self.wire.recv_head())
            body = bytearray()
            if frame.type in (Type.MESSAGE, Type.BODY) and frame.body_bytes:
                body = bytearray(frame.body_bytes)
                await self.wire.recv_body([memoryview(body)])
            if not wanted or frame.type in wanted:
                return frame, bytes(body)

    async def until_cut_off(self) -> None:
        """Read until the other side has ended the wire."""
        with contextlib.suppress(TransportError):
            while True:
                await self.hear()


@dataclass
class Raw:
    """A link under test and the peer at its other end."""

    peer: RawPeer
    link: Link
    transport: WireTransport


@contextlib.asynccontextmanager
async def raw_peer(**settings: Any) -> AsyncIterator[Raw]:
    """The peer has dialled the link's transport."""
    address = f"memory://raw-{next(_numbers)}"
    ours = MemoryTransport(config("ours", **settings))
    theirs = MemoryTransport(config("theirs"))
    async with ours.open(), theirs.open():
        listener = await ours.listen(address)
        wire = await theirs.dial(parse(address))
        try:
            await initiate(wire, theirs.config)
            yield Raw(RawPeer(wire), await listener.accept(), ours)
        finally:
            wire.abort()
            await wire.quiet()


async def say_all(wire: Wire, heads: list[bytes]) -> None:
    """Send heads as they are, as long as the wire lasts."""
    with contextlib.suppress(TransportError):
        for head in heads:
            await wire.send(head)
            await asyncio.sleep(0)


def nonce() -> bytes:
    """Fresh chance for a handshake by hand."""
    return secrets.token_bytes(32)
