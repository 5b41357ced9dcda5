"""Clients of an OpenAI-compatible API: requests that come when a seed says, and when tokens come.

Owns:   the connections.
Knows nothing of: what is behind the API, what times mean.
Units:  tokens; seconds since the load began.

Prompts are noise, and no two are alike: nothing is found in a cache. Nothing ends an answer early.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import aiohttp

from benchmarks.prompts import Prompt

_PATIENCE_S: Final = 240.0
_DATA: Final = b"data: {"
#: Tokens that every model has, and what stands for none, too.
_VOCABULARY: Final = 90
#: Prompts are so much longer or shorter than the middle, at most.
_SPREAD: Final = 0.5


@dataclass(frozen=True, slots=True)
class Server:
    """Where a model is asked."""

    url: str
    model: str
    #: Asked first, for one token, where no router does that.
    prefill: str | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    at_s: float
    prompt: Prompt
    num_tokens: int


@dataclass(slots=True)
class Heard:
    """What became of one request."""

    at_s: float
    #: When each chunk with a token came.
    times: list[float] = field(default_factory=list)
    num_tokens: int = 0
    #: Of the prompt; those that came from another node, as far as the server tells.
    num_prompt: int = 0
    num_remote: int = 0
    error: str = ""

    @property
    def first_s(self) -> float:
        """From when it came to its first token."""
        return self.times[0] - self.at_s

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


def noise(stream: int, num_tokens: int) -> Prompt:
    """A prompt; another stream is another one from its first block on."""
    return random.Random(stream).choices(range(_VOCABULARY), k=num_tokens)


def arrivals(
    seed: int, rate: float, seconds: float, prompt_tokens: int, num_tokens: int
) -> list[Ask]:
    """Independent of each other, `rate` a second in the middle; at least one."""
    chance, at_s = random.Random(seed), 0.0
    asks: list[Ask] = []
    while not asks or (at_s := at_s + chance.expovariate(rate)) < seconds:
        size = round(prompt_tokens * chance.uniform(1 - _SPREAD, 1 + _SPREAD))
        asks.append(Ask(at_s, noise(seed * 1_000 + len(asks), size), num_tokens))
    return asks


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """As many connections as there are requests."""
    patience = aiohttp.ClientTimeout(total=_PATIENCE_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=patience, connector=connector) as session:
        yield session


async def load(server: Server, asks: Sequence[Ask]) -> list[Heard]:
    """Each when its time has come, whatever became of the others."""
    async with client() as session, asyncio.TaskGroup() as tasks:
        began = time.monotonic()
        found = [tasks.create_task(_in_time(session, server, ask, began)) for ask in asks]
    return [one.result() for one in found]


async def _in_time(session: aiohttp.ClientSession, server: Server, ask: Ask, began: float) -> Heard:
    await asyncio.sleep(max(0.0, began + ask.at_s - time.monotonic()))
    heard = Heard(ask.at_s)
    await listen(session, server, ask, heard, began)
    return heard


async def listen(
    session: aiohttp.ClientSession, server: Server, ask: Ask, heard: Heard, began: float
) -> None:
    """Ask now; `heard` is filled as tokens come. `began`: by the monotonic clock."""
    body = {"model": server.model, "prompt": ask.prompt, "temperature": 0, "ignore_eos": True}
    told = body | {
        "max_tokens": ask.num_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    try:
        if server.prefill is not None:
            url = f"{server.prefill}/v1/completions"
            async with session.post(url, json=body | {"max_tokens": 1}, raise_for_status=True):
                pass
        url = f"{server.url}/v1/completions"
        async with session.post(url, json=told, raise_for_status=True) as response:
            async for line in response.content:
                if line.startswith(_DATA):
                    _note(heard, json.loads(line[len(_DATA) - 1 :]), time.monotonic() - began)
    except (aiohttp.ClientError, TimeoutError) as error:
        heard.error = str(error) or type(error).__name__
    if not heard.error and not heard.times:
        heard.error = "no token came"


def _note(heard: Heard, chunk: dict[str, Any], now_s: float) -> None:
    if "error" in chunk:
        heard.error = str(chunk["error"])
    elif chunk["choices"]:
        heard.times.append(now_s)
    if usage := chunk.get("usage"):
        heard.num_tokens, heard.num_prompt = usage["completion_tokens"], usage["prompt_tokens"]
        heard.num_remote = (usage.get("prompt_tokens_details") or {}).get("remote_tokens") or 0
