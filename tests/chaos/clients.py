"""Clients: they ask, listen, compare, leave.

Owns:   what is asked by whom, by chance.
Knows nothing of: what befalls the nodes.

    by a router    as any client
    by hand        a ticket from p0, or a transfer id for both, then d0
"""

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import aiohttp

from kvdist.connector.params import ByHash, ByTransfer, Lend, write_params
from tests.chaos.report import Report
from tests.chaos.scene import Scene
from tests.chaos.truth import Question, Truth

Json: TypeAlias = dict[str, Any]

#: Nobody waits longer for an answer, whatever has happened.
_PATIENCE_S: Final = 90.0
#: Errors that a client may see: the node is busy, or can't be reached; its K/V were lost.
_HONEST: Final = frozenset({503, 502, 504})
_STORM: Final = 60
_MOST_TOLD: Final = 300


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` 0: the connection failed, or ended early."""

    status: int
    texts: tuple[str, ...] = ()
    error: str = ""
    #: Of what isn't streamed.
    body: Json | None = None

    @property
    def num_remote(self) -> int:
        """Tokens of the prompt that came from another node, as far as it was said."""
        usage = (self.body or {}).get("usage") or {}
        told: Json = usage.get("prompt_tokens_details") or {}
        return sum(count for name, count in told.items() if name.startswith("remote"))


class Clients:
    """All of one play. `urls`: of p0, d0 and the router, as far as they are there."""

    def __init__(
        self,
        scene: Scene,
        truth: Truth,
        urls: dict[str, str],
        http: aiohttp.ClientSession,
        report: Report,
    ) -> None:
        self._scene, self._truth, self._urls = scene, truth, urls
        self._http, self._report = http, report
        self._chance = random.Random(f"clients {scene.seed}")

    async def run(self, is_over: Callable[[], bool]) -> None:
        """All of them, until the play is over, and each has its last answer."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._scene.num_clients):
                group.create_task(self._one(is_over))

    async def storm(self) -> None:
        """Many come, and leave at once."""
        asking = [asyncio.create_task(self._ask()) for _ in range(_STORM)]
        await asyncio.sleep(self._chance.uniform(0.0, 0.5))
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def _one(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            if self._chance.random() < 0.08:
                await self._leave()
            elif not await self._ask():
                await asyncio.sleep(0.2)

    async def _leave(self) -> None:
        asking = asyncio.create_task(self._ask())
        await asyncio.wait([asking], timeout=self._chance.expovariate(10))
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        self._report.count("clients that left")

    async def _ask(self) -> bool:
        """One question; False: no answer."""
        question, n = self._truth.question(self._chance), self._chance.choice([1, 1, 1, 3])
        body = question.body | {"n": n, "stream": self._chance.random() < 0.3}
        if self._scene.through_router:
            answer = await self._post("router", body)
        else:
            answer = await self._by_hand(body)
        return self._judge(question, n, answer)

    async def _by_hand(self, body: Json) -> Answer:
        first = {"prompt": body["prompt"], "max_tokens": 1}
        if self._chance.random() < 0.1:
            await self._post("p0", first)  # whoever has it can be asked for it
            return await self._post("d0", body | {"kv_transfer_params": write_params(ByHash("p0"))})
        transfer = f"t{self._chance.getrandbits(64):x}"
        if self._chance.random() < 0.1:
            await self._lose(first, transfer)
            return await self._post("d0", body)
        if self._chance.random() < 0.3:
            prefill = asyncio.create_task(
                self._post("p0", first | {"kv_transfer_params": write_params(Lend(transfer))})
            )
            along = {"kv_transfer_params": write_params(ByTransfer("p0", transfer))}
            try:
                return await self._post("d0", body | along)
            finally:
                prefill.cancel()
        prefilled = await self._post("p0", first | {"kv_transfer_params": write_params(Lend())})
        params = (prefilled.body or {}).get("kv_transfer_params")
        self._report.count(f"ticket {prefilled.status}" + ("" if params else ", none"))
        if params is None:
            return await self._post("d0", body)
        if self._chance.random() < 0.03:
            return Answer(503)  # who has a ticket need not come
        answer = await self._post("d0", body | {"kv_transfer_params": params})
        if answer.status in (0, 503):  # as a router does
            await self._post("p0", {"kv_transfer_params": params}, "kv/release")
        return answer

    async def _lose(self, body: Json, transfer: str) -> None:
        """An answer of p0's that names a lease, or would have; and give that back by its name."""
        lend = write_params(Lend(transfer, reads_along=self._chance.random() < 0.5))
        prefill = asyncio.create_task(self._post("p0", body | {"kv_transfer_params": lend}))
        await asyncio.wait([prefill], timeout=self._chance.expovariate(50))
        prefill.cancel()
        named = {"kv_transfer_params": write_params(ByTransfer("p0", transfer))}
        answer = await self._post("p0", named, "kv/release")
        self._report.count(f"given back by its name: {answer.status}")

    def _judge(self, question: Question, n: int, answer: Answer) -> bool:
        if answer.status == 200:
            if len(answer.texts) != n or not all(
                self._truth.is_right(question, text) for text in answer.texts
            ):
                self._report.find(f"WRONG: {question} got {answer.texts}"[:_MOST_TOLD])
            self._report.count(
                "right" + (", with tokens of another node" * bool(answer.num_remote))
            )
            return True
        if answer.status in _HONEST:
            self._report.count(f"answered {answer.status}")
        elif answer.status == 0 and self._may_be_cut_off:
            self._report.count(f"cut off: {answer.error}")
        else:
            self._report.find(f"status {answer.status}: {answer.error}")
        return False

    @property
    def _may_be_cut_off(self) -> bool:
        """Whoever is asked may die."""
        return not self._scene.through_router or "router" in self._scene.victims

    async def _post(self, name: str, body: Json, path: str = "completions") -> Answer:
        url = f"{self._urls[name]}/v1/{path}"
        try:
            async with asyncio.timeout(_PATIENCE_S), self._http.post(url, json=body) as response:
                if response.content_type == "text/event-stream":
                    return await _listen(response, body["n"])
                told = await response.json()
                texts = tuple(choice["text"] for choice in told.get("choices", ()))
                return Answer(response.status, texts, str(told.get("error", "")), told)
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError):
                self._report.find(f"{name} doesn't answer for {_PATIENCE_S:g} s: {body}")
            return Answer(0, error=type(error).__name__)


async def _listen(response: aiohttp.ClientResponse, n: int) -> Answer:
    """To a stream, to its end, which says whether it is one."""
    texts = [""] * n
    async for raw in response.content:
        line = raw.decode().strip()
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            return Answer(200, tuple(texts))
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            return Answer(int(event["error"].get("code") or 503), error=str(event["error"]))
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    return Answer(-1, error="a stream that ends without an end")
