"""What a pair adds to the time to the first token of a long prompt, where decode reads along.

Owns:   the order of requests.
Knows nothing of: how nodes are started, tables.

A pair and a single node are both there and take turns. The single node and prefill have the same
core, so that the prompt is computed alike; the rest has the other core, in both.
"""

import asyncio
import os
import time
from typing import Final

from benchmarks.pair_cluster import Cores, Setup, folder_of, running, token_bytes
from benchmarks.pair_figures import FirstToken, gaps
from benchmarks.pair_load import Ask, Heard, Server, client, listen, noise
from benchmarks.pair_transfer import moved
from benchmarks.patterns import Pattern

_BLOCK_TOKENS: Final = 16
#: Of each answer: enough to know what a step takes.
_ANSWER_TOKENS: Final = 6
_STREAM: Final = 700_000


async def first_token(
    transport: str, model: str, cores: Cores, *, prompt: int, chunk: int, rounds: int
) -> FirstToken:
    """See the module. Raises: RuntimeError if a request fails."""
    found = FirstToken(transport, prompt, chunk)
    last = prompt % chunk or chunk
    size = token_bytes(folder_of(model)) * _BLOCK_TOKENS
    pattern = Pattern("last chunk", -(-last // _BLOCK_TOKENS), size)
    found.last_chunk, found.trips = await asyncio.to_thread(moved, transport, pattern, rounds)
    computing, other = cores
    os.sched_setaffinity(0, [other])
    pair = Setup("pair", 1, 1, transport, chunk)
    single = Setup("single", 0, 1, transport, chunk)
    async with (
        running(pair, model, {"p0": [computing], "d0": [other], "router": [other]}) as two,
        running(single, model, {"d0": [computing], "router": [other]}) as one,
    ):
        for number in range(rounds + 1):
            prompt_tokens = noise(_STREAM + number, prompt)
            alone = await _ask(one.server, prompt_tokens)
            paired = await _ask(two.server, prompt_tokens)
            if number:  # the first time doesn't count
                found.single.append(alone.first_s)
                found.pair.append(paired.first_s)
                found.steps += gaps(paired.times)
    os.sched_setaffinity(0, cores)
    return found


async def _ask(server: Server, prompt: list[int]) -> Heard:
    heard = Heard(0.0)
    async with client() as session:
        await listen(session, server, Ask(0.0, prompt, _ANSWER_TOKENS), heard, time.monotonic())
    if heard.error:
        raise RuntimeError(heard.error)
    return heard
