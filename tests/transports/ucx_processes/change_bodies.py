"""Two processes: one sends bodies, lets go of each in the middle and writes into its buffer; the
other, whose loop stands still meanwhile, must not take what it then finds there for the body.

Run without arguments; exits with 0 if no changed body was received.
"""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from transports.api import Head
from transports.config import SessionConfig
from transports.errors import TransportError
from transports.ucx import UcxTransport, UcxWire

#: Copied with the head, one piece, a few pieces, several parts.
SIZES = (1_000, 100_000, 5 << 20, 70 << 20)
BEFORE, AFTER = 0xAA, 0xBB
BUSY_S = 0.2
WAYS = ("abort", "cancel")


def _config(name: str) -> SessionConfig:
    return SessionConfig(node_id=name, token=b"sixteen bytes at least")


def _busy_at_each_body() -> None:
    """From now on the loop stands still between the head of a body and the body."""
    real = UcxWire.recv_body

    async def recv_body(wire: UcxWire, into: Sequence[memoryview]) -> None:
        sys.stdout.write("a body\n")
        sys.stdout.flush()
        time.sleep(BUSY_S)  # noqa: ASYNC251 (that is the point)
        await real(wire, into)

    setattr(UcxWire, "recv_body", recv_body)  # noqa: B010 (mypy takes no other)


async def receive() -> None:
    """Take a body of each link; say whether it came, and how."""
    _busy_at_each_body()
    async with UcxTransport(_config("receiver")).open() as transport:
        listener = await transport.listen("ucx://127.0.0.1:0")
        sys.stdout.write(f"{listener.address}\n")
        for _ in range(len(SIZES) * len(WAYS)):
            sys.stdout.flush()
            link = await listener.accept()
            target = bytearray()

            def place(head: Head, target: bytearray = target) -> list[bytearray]:
                target.extend(bytes(head.body_bytes))
                return [target]

            try:
                await link.recv(place)
            except TransportError as error:
                said = type(error).__name__
            else:
                said = "whole" if target.count(BEFORE) == len(target) else "CHANGED"
            sys.stdout.write(f"it was {said}\n")
            link.abort()
        sys.stdout.flush()


async def change(address: str, answers: asyncio.StreamReader) -> None:
    """Send, let go, change the buffer, hear what came of it."""
    async with UcxTransport(_config("sender")).open() as transport:
        for size in SIZES:
            for way in WAYS:
                link = await transport.connect(address)
                body = bytearray([BEFORE]) * size
                sending = asyncio.create_task(link.send(1, b"", [body]))
                line = (await answers.readline()).decode()
                if way == "abort":
                    link.abort()
                else:
                    sending.cancel()
                with suppress(TransportError, asyncio.CancelledError):
                    await sending
                await link.quiet()
                body[:] = bytes([AFTER]) * size
                while "it was" not in line:
                    line = (await answers.readline()).decode()
                    assert line, "the receiver has died"
                sys.stdout.write(f"{size} {way}: {line}")
                assert "CHANGED" not in line, f"{size} bytes, {way}: {line}"


async def main() -> None:
    """Start the receiver, and change bodies under its hands."""
    if sys.argv[1:] == ["receive"]:
        await receive()
        return
    receiver = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "receive", stdout=asyncio.subprocess.PIPE, env=os.environ
    )
    assert receiver.stdout is not None
    try:
        address = (await receiver.stdout.readline()).decode().strip()
        await change(address, receiver.stdout)
    finally:
        with suppress(ProcessLookupError):
            receiver.kill()
        await receiver.wait()


if __name__ == "__main__":
    asyncio.run(main())
