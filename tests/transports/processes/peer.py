"""The other process of a test: listens, does one thing with one link, prints what came of it."""

import asyncio
import json
import os
import signal
import sys

from tests.transports.linked import config
from transports.api import Link, Transport
from transports.errors import TransportError
from transports.registry import make_transport

#: Of the bodies that are poured out and taken in.
BODY_BYTES = 192 << 20
#: Of the region that is shared.
REGION_BYTES = 64 << 20
#: What regions are full of that take each other's place.
LETTERS = b"abcdefghij"


def say(text: str) -> None:
    """Tell the test."""
    print(text, flush=True)  # noqa: T201 (that is how it hears)


async def echo(_: Transport, link: Link) -> None:
    """Send everything back until the link ends."""
    while True:
        body = bytearray()

        def place(head: object, body: bytearray = body) -> list[bytearray]:
            body.extend(bytes(head.body_bytes))  # type: ignore[attr-defined]
            return [body]

        head = await link.recv(place)
        await link.send(head.kind, head.meta, [body] if body else [])


async def last_words(_: Transport, link: Link) -> None:
    """Die as soon as `send` has returned."""
    await link.send(1, b"last words")
    os.kill(os.getpid(), signal.SIGKILL)


async def farewell(_: Transport, link: Link) -> None:
    """Close as soon as `send` has returned, and end the process as soon as that has."""
    await link.send(1, b"last words", [b"b" * 50_000])
    await link.close()
    os._exit(0)


async def pour(_: Transport, link: Link) -> None:
    """Send large bodies without end."""
    body = b"x" * BODY_BYTES
    while True:
        await link.send(1, b"", [body])


async def drink(_: Transport, link: Link) -> None:
    """Take large bodies without end."""
    body = bytearray(BODY_BYTES)
    while True:
        await link.recv(lambda head: [memoryview(body)[: head.body_bytes]])


async def wait(_: Transport, link: Link) -> None:
    """Receive, which only ends with the link."""
    while True:
        await link.recv()


async def share(transport: Transport, link: Link) -> None:
    """Share a region full of x."""
    region = transport.allocate(REGION_BYTES)
    try:
        region.view[:] = b"x" * REGION_BYTES
        await link.share(region)
        await link.send(0)
        await wait(transport, link)
    finally:
        region.close()


async def replace(transport: Transport, link: Link) -> None:
    """Regions one after another, each full of its own letter, closed while they are read."""
    for letter in LETTERS:
        region = transport.allocate(REGION_BYTES // 4)
        region.view[:] = letter.to_bytes(1) * region.size
        number = await link.share(region)
        await link.send(letter, number.to_bytes(1))
        await link.recv()
        region.close()
    await region.quiet()
    await link.close()


PLAYED = (echo, last_words, farewell, pour, drink, wait, share, replace)
SCENARIOS = {each.__name__: each for each in PLAYED}


async def main(scenario: str, address: str, settings: str) -> None:
    """Lines: where it listens; who came; how the link ended."""
    async with make_transport(address, config(**json.loads(settings))).open() as transport:
        listener = await transport.listen(address)
        say(listener.address)
        link = await listener.accept()
        say(link.peer.node_id)
        try:
            await SCENARIOS[scenario](transport, link)
        except TransportError as error:
            say(type(error).__name__)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
