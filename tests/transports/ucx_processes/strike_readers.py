"""Processes: one owns a region; others go in the middle of scattered reads of it, and of bodies.

They abort their links, are killed, or stand still until the owner gives them up. Where there are no
one-sided reads, there are bodies only. Run without arguments; exits with 0 if the owner lives to
the end and can still be read from.
"""

import asyncio
import os
import random
import signal
import sys
from contextlib import suppress

from transports.api import Head, Link, Span
from transports.config import SessionConfig
from transports.errors import TransportError
from transports.ucx import UcxTransport

SIZE = 64 << 20
SPANS = 1024
LINKS = 8
STRIKES = [signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL]


def _config(name: str) -> SessionConfig:
    return SessionConfig(
        node_id=name, token=b"sixteen bytes at least", keepalive_s=0.2, lost_after_s=0.8
    )


async def own() -> None:
    """Share a region with whoever comes, and send and receive bodies until the link ends."""
    async with UcxTransport(_config("owner")).open() as transport:
        region = transport.allocate(SIZE)
        listener = await transport.listen("ucx://127.0.0.1:0")
        _say(listener.address)
        async with asyncio.TaskGroup() as group:
            while True:
                link = await listener.accept()
                number = b"0"
                with suppress(TransportError):
                    if link.capabilities.one_sided_reads:
                        number = str(await link.share(region)).encode()
                    await link.send(1, number)
                group.create_task(_send(link))
                group.create_task(_receive(link))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


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


async def _read(link: Link, number: int) -> None:
    step, into = SIZE // SPANS, bytearray(SIZE)
    with suppress(TransportError):
        while number:
            spans = [Span(i * step, step) for i in random.sample(range(SPANS), SPANS)]
            await link.read(number, spans, [into]).wait()


async def _use(link: Link) -> list[asyncio.Task[None]]:
    number = int((await link.recv()).meta)
    works = (_read(link, number), _read(link, number), _send(link), _receive(link))
    return [asyncio.create_task(work) for work in works]


async def use(address: str) -> None:
    """Read, send and receive until somebody ends this process."""
    async with UcxTransport(_config("reader")).open() as transport:
        tasks = await _use(await transport.connect(address))
        _say("at it")
        await asyncio.wait(tasks)


async def abort(address: str, num_links: int) -> None:
    """Abort link after link while spans and bodies are under way."""
    async with UcxTransport(_config("reader")).open() as transport:
        for _ in range(num_links):
            link = await transport.connect(address)
            tasks = await _use(link)
            await asyncio.sleep(0.02 * random.random())
            link.abort()
            await link.quiet()
            await asyncio.wait(tasks)


async def strike(address: str, number: signal.Signals) -> None:
    """Let another process read, and strike it."""
    reader = await _another("use", address)
    assert reader.stdout is not None
    await reader.stdout.readline()
    await asyncio.sleep(0.05 * random.random())
    reader.send_signal(number)
    if number is signal.SIGSTOP:
        await asyncio.sleep(1.5)  # the owner gives it up
        reader.kill()
    await reader.wait()


async def _another(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, __file__, *arguments, stdout=asyncio.subprocess.PIPE, env=os.environ
    )


async def main() -> None:
    """What the arguments say; without any, everything."""
    match sys.argv[1:]:
        case ["own"]:
            await own()
        case ["use", address]:
            await use(address)
        case _:
            await strikes()


async def strikes() -> None:
    """Start an owner, strike whoever uses it, and see that it still serves."""
    owner = await _another("own")
    assert owner.stdout is not None
    try:
        address = (await owner.stdout.readline()).decode().strip()
        await abort(address, LINKS)
        for number in STRIKES:
            await strike(address, number)
        await abort(address, 1)
        assert owner.returncode is None, "the owner has died"
    finally:
        with suppress(ProcessLookupError):
            owner.kill()
        await owner.wait()


if __name__ == "__main__":
    asyncio.run(main())
