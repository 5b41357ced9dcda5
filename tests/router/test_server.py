"""A router as a process: nodes that it was given, nodes that come and go, how it ends."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.router.fake import LONG, TEXT, FakeNode, Json, pair, until

BODY: Json = {"prompt": LONG}


class Process:
    """`kvdist router`, and who asks it."""

    def __init__(self, process: asyncio.subprocess.Process, http: aiohttp.ClientSession) -> None:
        self.process, self.http = process, http
        self.url = ""
        self.lines: list[Json] = []

    async def event(self, name: str) -> Json:
        """The next log line of that name."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(json.loads(line))
            if self.lines[-1]["event"] == name:
                return self.lines[-1]
        raise AssertionError(f"no {name} in {self.lines}")

    async def post(self, path: str, body: Json) -> tuple[int, Any]:
        async with self.http.post(self.url + path, json=body) as response:
            return response.status, await response.json()

    async def until_ready(self, wanted: bool) -> None:
        while True:
            async with self.http.get(self.url + "/ready") as response:
                if (response.status == 200) == wanted:
                    return
            await asyncio.sleep(0.05)


@asynccontextmanager
async def router(*flags: str) -> AsyncIterator[Process]:
    command = [sys.executable, "-m", "kvdist", "router", "--port", "0", *flags]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(50), aiohttp.ClientSession() as http:
            found = Process(process, http)
            found.url = (await found.event("listening"))["url"]
            yield found
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def test_nodes_that_it_was_given() -> None:
    async def main() -> None:
        fakes = pair()
        flags = []
        for fake in fakes:
            fake.others = fakes
            await fake.start()
            flags += ["--node", f"{fake.name}={fake.role},{fake.url}"]
        async with router(*flags) as found:
            await found.until_ready(True)
            status, answer = await found.post(TEXT, BODY)
            assert (status, answer["choices"][0]["text"]) == (200, "one two three")
            fakes[1].is_ready = False
            await found.until_ready(False)
        for fake in fakes:
            await fake.server.close()

    asyncio.run(main())


def test_sigterm_answers_what_is_open_and_then_ends() -> None:
    async def main() -> None:
        decode = await FakeNode("d0", "decode").start()
        decode.go_on.clear()
        async with router() as found:
            assert (await found.post("/registry/nodes", beat(decode)))[0] == 200
            asking = asyncio.create_task(found.post(TEXT, BODY))
            await until(lambda: decode.asked)
            found.process.send_signal(signal.SIGTERM)
            await found.event("asked to end")
            assert (await found.post(TEXT, BODY))[0] == 503
            decode.go_on.set()
            assert (await asking)[0] == 200
            assert await found.process.wait() == 0
        await decode.server.close()

    asyncio.run(main())


def test_a_second_signal_is_impatient() -> None:
    async def main() -> None:
        decode = await FakeNode("d0", "decode").start()
        decode.go_on.clear()
        async with router() as found:
            await found.post("/registry/nodes", beat(decode))
            async with found.http.post(found.url + TEXT, json=BODY | {"stream": True}) as response:
                await response.content.readline()
                found.process.send_signal(signal.SIGINT)
                await found.event("asked to end")
                found.process.send_signal(signal.SIGINT)
                rest = await response.content.read()
                assert b'"error"' in rest and b"[DONE]" not in rest
            assert await found.process.wait() == 0
        decode.go_on.set()
        await decode.server.close()

    asyncio.run(main())


def test_a_node_that_stands_still_is_not_waited_for() -> None:
    async def main() -> None:
        still = await FakeNode("d0", "decode").start()
        other = await FakeNode("d1", "decode").start()
        still.begin.clear()
        async with router() as found:
            await found.post("/registry/nodes", beat(still))
            asking = asyncio.create_task(found.post(TEXT, BODY))
            await until(lambda: still.asked)
            while not asking.done():
                await found.post("/registry/nodes", beat(other))
                await asyncio.sleep(0.1)
            assert asking.result()[0] == 200
            assert len(other.asked) == 1
        for fake in (still, other):
            fake.begin.set()
            await fake.server.close()

    asyncio.run(main())


def beat(fake: FakeNode) -> Json:
    return {
        **{"node_id": fake.name, "incarnation": 1, "role": fake.role, "model": fake.model},
        **{"api": fake.url, "control": "tcp://127.0.0.1:1", "ready": True},
    }


def test_a_port_that_is_taken() -> None:
    async def main() -> None:
        async with router() as found:
            port = found.url.rsplit(":", 1)[1]
            command = [sys.executable, "-m", "kvdist", "router", "--port", port]
            other = await asyncio.create_subprocess_exec(
                *command, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            _, said = await other.communicate()
            assert other.returncode == 2
            assert f"can't listen at 127.0.0.1:{port}" in said.decode()

    asyncio.run(main())
