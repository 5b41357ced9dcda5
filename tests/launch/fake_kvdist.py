"""Stands in for `kvdist` in tests of launching: the real router, and nodes that compute nothing.

Flags of nodes: --dies (after it is ready), --fails (at once), --deaf (to SIGTERM), --unbalanced,
--slow (never ready), --no-ledger; each may be followed by =NAME of the node that it is for.
"""

import asyncio
import json
import os
import signal
import sys

import aiohttp
from aiohttp import web

from kvdist.launch import lifeline


class Node:
    def __init__(self, flags: list[str]) -> None:
        self.flags = dict(flag.removeprefix("--").partition("=")[::2] for flag in flags)
        self.name = self.flags["node-id"]
        self.stop = asyncio.Event()

    def does(self, what: str) -> bool:
        return self.flags.get(what) in ("", self.name)

    async def run(self) -> None:
        if self.does("fails"):
            sys.stdout.write("something is missing\n")
            sys.exit(3)
        self.say("loading", what="weights", share=0.5)
        sys.stderr.write("10 %\r50 %\r100 %\n")
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.asked)
        server = web.Application()
        server.router.add_post("/v1/completions", self.completion)
        server.router.add_get("/debug/ledger", self.ledger)
        runner = web.AppRunner(server, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession() as session:
            while not self.stop.is_set():
                await self.beat(session)
                await asyncio.sleep(0.05)
        await runner.cleanup()

    def asked(self) -> None:
        self.say("asked to end")
        if not self.does("deaf"):
            self.stop.set()

    async def beat(self, session: aiohttp.ClientSession) -> None:
        body = {
            **{"node_id": self.name, "incarnation": os.getpid(), "role": self.flags["role"]},
            **{"model": "tiny", "api": self.url, "control": "tcp://127.0.0.1:1"},
            "ready": not self.does("slow"),
        }
        headers = {"Authorization": f"Bearer {os.environ['KVDIST_REGISTRY_TOKEN']}"}
        url = f"{self.flags['registry']}/registry/nodes"
        try:
            async with session.post(url, json=body, headers=headers) as response:
                ready = [one["node_id"] for one in (await response.json())["members"]]
        except aiohttp.ClientError:
            return
        if self.does("dies") and {"p0", "d0"} <= set(ready):
            await asyncio.sleep(0.5)
            sys.stdout.write("out of luck\n")
            sys.stdout.flush()
            os._exit(7)

    def say(self, event: str, **more: object) -> None:
        told = {"event": event, "level": "info", "timestamp": "2020-01-01T10:20:30Z", **more}
        sys.stderr.write(json.dumps(told) + "\n")

    async def completion(self, request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(0.5)
        return web.json_response({"choices": [{"text": f"{self.name} says so"}]})

    async def ledger(self, request: web.Request) -> web.Response:
        if self.does("no-ledger"):
            raise web.HTTPNotFound
        return web.json_response({"balanced": not self.does("unbalanced"), "held": {}})


if __name__ == "__main__":
    if "router" in sys.argv:
        from kvdist.cli.main import app  # a second, which the nodes don't need

        app()
    lifeline.hold(int(sys.argv[1].removeprefix("--lifeline=")))
    asyncio.run(Node(sys.argv[4:]).run())
