"""Two processes: one owns a region, the other aborts links in the middle of scattered reads of it.

Run without arguments; exits with 0 if it lives to the end.
"""

import asyncio
import os
import random
import sys
from contextlib import suppress

from transports.api import Head, Link, Span
from transports.config import SessionConfig
from transports.errors import TransportError
from transports.ucx import UcxTransport

SIZE = 64 << 20
SPANS = 1024
LINKS = 12


def _config(name: str) -> SessionConfig:
    return SessionConfig(node_id=name, token=b"sixteen bytes at least")


async def own() -> None:
    """Share a region with whoever comes, and send and receive bodies until the link ends."""
    async with UcxTransport(_config("owner")).open() as transport:
        region = transport.allocate(SIZE)
        listener = await transport.listen("ucx://127.0.0.1:0")
        sys.stdout.write(f"{listener.address}\n")
        sys.stdout.flush()
        async with asyncio.TaskGroup() as group:
            while True:
                link = await listener.accept()
                await link.send(1, str(await link.share(region)).encode())
                group.create_task(_send(link))
                group.create_task(_receive(link))


async def _send(link: Link) -> None:
    with suppress(TransportError):
        while True:
            await link.send(1, b"", [bytes(SIZE)])


async def _receive(link: Link) -> None:
    target = bytearray(SIZE)

    def place(head: Head) -> list[memoryview]:
        return [memoryview(target)[: head.body_bytes]]

    with suppress(TransportError):
        while True:
            await link.recv(place)


async def strike(address: str) -> None:
    """Abort link after link while spans and bodies are under way."""
    chance = random.Random(1)
    step = SIZE // SPANS
    async with UcxTransport(_config("reader")).open() as transport:
        for _ in range(LINKS):
            link = await transport.connect(address)
            number = int((await link.recv()).meta)
            spans = [Span(i * step, step) for i in chance.sample(range(SPANS), SPANS)]
            into = bytearray(SIZE)
            read = asyncio.create_task(link.read(number, spans, [into]).wait())
            tasks = [read, asyncio.create_task(_send(link)), asyncio.create_task(_receive(link))]
            await asyncio.sleep(0.02 * chance.random())
            link.abort()
            await link.quiet()
            await asyncio.wait(tasks)
            with suppress(TransportError):
                read.result()


async def main() -> None:
    """Start the owner, strike, and see that it still lives."""
    if sys.argv[1:] == ["own"]:
        await own()
        return
    owner = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "own", stdout=asyncio.subprocess.PIPE, env=os.environ
    )
    assert owner.stdout is not None
    try:
        await strike((await owner.stdout.readline()).decode().strip())
        assert owner.returncode is None, "the owner has died"
    finally:
        with suppress(ProcessLookupError):
            owner.kill()
        await owner.wait()


if __name__ == "__main__":
    asyncio.run(main())
