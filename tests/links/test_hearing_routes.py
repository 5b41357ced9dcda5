"""What is said in a file: heard by one node, written down by another, over HTTP and by a router."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import FormData
from aiohttp.test_utils import TestClient, TestServer

from kvdist.node.build import NodeSettings, build_api
from kvdist.node.speech import Speech
from kvdist.node.tokenizer import Tokenizer
from tests.links.pairs import Node, a_pair
from tests.links.test_hearing import encodings
from tests.node.test_sound import written
from tests.node.test_transcriptions import PATH, WINDOW, expected, file, folder
from tests.router import fake
from tests.router.fake import Json
from tests.worker.tiny_whisper import sound

__all__ = ["folder"]

LEND: Json = {"do_remote_decode": True}


@dataclass
class Real:
    """A node that runs, as the router's tests have it."""

    name: str
    role: str
    node: Node
    server: TestServer
    model: str = "tiny"

    async def start(self) -> "Real":
        await self.server.start_server()
        return self

    @property
    def url(self) -> str:
        return str(self.server.make_url("")).rstrip("/")


@asynccontextmanager
async def cluster(folder: Path, **settings: Any) -> AsyncIterator[tuple[Real, Real, Any]]:
    """Both nodes, and a client of a router in front of them."""
    told: dict[str, Any] = {"model": str(folder), "max_model_len": 128, "num_blocks": 200}
    async with AsyncExitStack() as stack:
        # Not shm: aiohttp remembers handlers, and with them mappings.
        pair = await stack.enter_async_context(a_pair("tcp", **told))
        speech = Speech.from_folder(folder, WINDOW)
        reals = []
        for name, role, node in zip(("p0", "d0"), ("prefill", "decode"), pair, strict=True):
            tokenizer = Tokenizer.from_folder(folder, 512)
            api = build_api(NodeSettings(names=("tiny",)), node.engine, tokenizer, speech)
            reals.append(Real(name, role, node, TestServer(api.app)))
        router = await stack.enter_async_context(fake.running(*reals, **settings))  # type: ignore[arg-type]
        yield reals[0], reals[1], router.http
        for node in pair:
            await node.rest()


async def post(client: Any, data: Any, **fields: Any) -> tuple[int, Any]:
    form = FormData()
    form.add_field("file", data, filename="x.wav")
    for name, value in {"max_completion_tokens": "20", **fields}.items():
        form.add_field(name, value if isinstance(value, str) else json.dumps(value))
    async with client.post(PATH, data=form) as response:
        text = await response.text()
        is_json = response.content_type == "application/json"
        return response.status, json.loads(text) if is_json else text


def test_a_router_has_it_heard_by_one_and_written_down_by_the_other(folder: Path) -> None:
    async def main() -> None:
        async with cluster(folder) as (prefill, decode, router):
            there, here = encodings(prefill.node), encodings(decode.node)
            status, body = await post(router, file(0))
            assert (status, body["text"]) == (200, expected(folder, sound(0)))
            assert body == {"text": body["text"], "usage": {"type": "duration", "seconds": 1}}
            text = expected(folder, sound(1), language="de")
            told = {"language": "de", "response_format": "text"}
            assert await post(router, file(1), **told) == (200, f"{text}\n")
            status, events = await post(router, file(2), stream="true")
            assert status == 200 and events.endswith("data: [DONE]\n\n")
            done = json.loads(events.split("data: ")[-2])
            assert done["text"] == expected(folder, sound(2))
            assert (len(there), len(here)) == (3, 0)

            samples = np.concatenate([np.frombuffer(sound(n).samples, "<f4") for n in range(3)])
            status, body = await post(router, written(samples))
            assert status == 200 and body["text"]
            assert (len(there), len(here)) == (3, 2)  # of several windows nothing is handed over
            assert (await post(router, b"no sound"))[0] == 400

    asyncio.run(main())


def test_a_ticket_goes_as_a_field_of_the_form(folder: Path) -> None:
    async def main() -> None:
        async with cluster(folder) as (prefill, decode, _):
            here = encodings(decode.node)
            async with TestClient(prefill.server) as p, TestClient(decode.server) as d:
                for spoken, num_heard_here in ((0, 0), (1, 1)):  # the second is another sound
                    status, first = await post(p, file(0), kv_transfer_params=LEND)
                    assert (status, first["text"]) == (200, "")
                    ticket = first["kv_transfer_params"]
                    status, body = await post(d, file(spoken), kv_transfer_params=ticket)
                    assert (status, body["text"]) == (200, expected(folder, sound(spoken)))
                    assert len(here) == num_heard_here
                for fields in (
                    {"kv_transfer_params": "{"},
                    {"kv_transfer_params": "[]"},
                    {"kv_transfer_params": LEND, "stream": "true"},
                ):
                    status, body = await post(p, file(0), **fields)
                    assert (status, body["error"]["param"]) == (400, "kv_transfer_params")

    asyncio.run(main())


@pytest.mark.parametrize("allowed", [True, False])
def test_a_clients_own_ticket_is_passed_on_where_it_may(folder: Path, *, allowed: bool) -> None:
    async def main() -> None:
        async with cluster(folder, allow_kv_transfer_params=allowed) as (_, decode, router):
            status, body = await post(router, file(0), kv_transfer_params=LEND)
            assert status == 200 and (body["text"] == "") == allowed
            if allowed:
                told = {"kv_transfer_params": body["kv_transfer_params"]}
                assert (await post(router, file(0), **told))[1]["text"]
            assert not encodings(decode.node)

    asyncio.run(main())
