"""Clients that take their time: heads, bodies and pauses that come to an end by themselves."""

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from pydantic import BaseModel
from structlog.testing import capture_logs

from kvdist.web import reading
from kvdist.web.arrival import Arrival
from kvdist.web.listening import Patience, face, listen
from kvdist.web.middleware import named, shaped

SHORT = Patience(head_s=0.2, idle_s=0.4, unread_s=0.3)
GZIP = b"Content-Length: 4\r\nContent-Encoding: gzip\r\n\r\nnone"
ENDED = threading.Event()
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n"


class Body(BaseModel):
    pass


async def slow(request: web.Request) -> web.Response:
    await asyncio.sleep(0.3)  # longer than a head may take
    return web.Response(text="well")


async def reads(request: web.Request) -> web.Response:
    if request.content_type == "multipart/form-data":
        async with reading.read_form(request, Body, "file"):
            return web.Response()
    await reading.read_body(request, Body)
    return web.Response()


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        while True:
            await response.write(bytes(1 << 20))
    except (asyncio.CancelledError, ConnectionError):
        ENDED.set()
        raise


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a process that has little patience."""
    app = web.Application(middlewares=[named, shaped])
    app.add_routes([web.get("/", slow), web.post("/", reads), web.get("/endless", endless)])
    runner = face(app, SHORT)
    await runner.setup()
    await listen(runner, "127.0.0.1", 0, SHORT)
    try:
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
            try:
                yield reader, writer
            finally:
                writer.close()
    finally:
        await runner.cleanup()


def run(talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with connected() as (reader, writer):
            return await talk(reader, writer)

    return asyncio.run(main())


async def rest(reader: asyncio.StreamReader) -> bytes:
    """All up to the end, however it comes."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def answer(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"well")


async def dribble(writer: asyncio.StreamWriter, data: bytes) -> None:
    """A byte at a time, until nobody listens any more."""
    for i in range(len(data)):
        if writer.is_closing():
            return
        writer.write(data[i : i + 1])
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 50])
def test_a_first_head_that_does_not_end(words: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            speaking = tasks.create_task(dribble(writer, words))
            assert await rest(reader) == b""
            speaking.cancel()
        return time.monotonic() - began

    assert 0.15 < run(talk) < 5


def test_what_was_asked_in_time_may_take_its_time_and_idle_connections_end() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            writer.write(GET)
            assert b"200 OK" in await answer(reader)
        assert await rest(reader) == b""

    run(talk)


def test_a_later_head_that_does_not_end() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GET)
        await answer(reader)
        async with asyncio.TaskGroup() as tasks:
            speaking = tasks.create_task(dribble(writer, b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 50))
            assert await rest(reader) == b""
            speaking.cancel()

    run(talk)


FORM = POST.replace(b"Content", b"Content-Type: multipart/form-data; boundary=b\r\nContent", 1)


@pytest.mark.parametrize("head", [POST, FORM])
def test_a_body_that_does_not_come(monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    monkeypatch.setattr(reading, "BODY_S", 0.2)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head + b"{")
        found = await reader.readuntil(b"seconds")
        assert found.startswith(b"HTTP/1.1 408") and b'"error"' in found

    run(talk)


@pytest.mark.parametrize(
    "more",
    [
        b"x: " + b"y" * 9000 + b"\r\n",
        b"".join(b"x%d: y\r\n" % i for i in range(200)),
    ],
)
def test_a_head_that_is_too_large(more: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GET[:-2] + more + b"\r\n")
        assert b" 400 " in await reader.readline()
        await rest(reader)

    run(talk)


def test_what_is_no_request_is_no_error_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(POST[: POST.index(b"Content")] + GZIP)
        assert b" 400 " in await reader.readline()
        await rest(reader)

    with capture_logs() as logs:
        run(talk)
    assert not caplog.records
    assert "a request that can't be read" in [log["event"] for log in logs]


@pytest.mark.skipif(sys.platform != "linux", reason="the system's own patience is longer")
def test_a_client_that_reads_nothing_of_its_answer() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GET.replace(b"/ ", b"/endless ", 1))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        assert await asyncio.to_thread(ENDED.wait, 15)

    run(talk)


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = False
        self.protocols: list[asyncio.BaseProtocol] = []

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocols.append(protocol)

    def abort(self) -> None:
        self.is_aborted = True


class _Handler(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data


@pytest.mark.parametrize("head", [GET, GET.replace(b"\r", b"")])
def test_a_head_in_two_pieces_wherever_it_is_cut(head: bytes) -> None:
    async def main() -> None:
        for cut in range(len(head)):
            handler, transport = _Handler(), _Transport()
            arrival = Arrival(handler, 60)
            arrival.connection_made(transport)
            arrival.data_received(head[:cut])
            assert not transport.protocols
            arrival.data_received(head[cut:])
            assert transport.protocols == [handler] and handler.data == head
        assert not transport.is_aborted

    asyncio.run(main())
