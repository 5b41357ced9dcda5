"""Running decodes, with and without long prompts that arrive meanwhile.

Owns:   the order of stretches of time.
Knows nothing of: how nodes are started, tables.

A handful of answers run all the time. Stretches without prompts and with them take turns; the
latter last until the prompts that came in them are answered. The node that decodes has a core of
its own; prefill, router and clients share the other one, which without prefill is left to router
and clients.
"""

import asyncio
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import aiohttp

from benchmarks.pair_cluster import Cores, Setup, running
from benchmarks.pair_figures import Isolation
from benchmarks.pair_load import Ask, Heard, Server, client, listen, noise


@dataclass(frozen=True, slots=True)
class Scene:
    """How much of it. Tokens; prompts a second; seconds of a stretch."""

    decodes: int = 4
    decode_prompt: int = 64
    prompt: int = 1024
    rate: float = 0.5
    seconds: float = 12.0
    rounds: int = 2
    seed: int = 7


#: More than is heard of any.
_ENDLESS = 3_000


async def isolation(setup: Setup, model: str, cores: Cores, scene: Scene) -> list[Isolation]:
    """Of a set-up; of one with a prefill node, also with prompts that only that node computes.

    Raises: RuntimeError if a request fails.
    """
    others, decoding = cores
    places = {"d0": [decoding], "router": [others]}
    if setup.num_prefill:
        places["p0"] = [others]
    os.sched_setaffinity(0, [others])
    try:
        async with running(setup, model, places) as ready:
            found = [await _play(setup.name, ready.server, ready.server, scene)]
            if "p0" in ready.nodes:
                name = f"{setup.name}, its prompts at prefill alone"
                found.append(await _play(name, ready.server, ready.nodes["p0"], scene))
    finally:
        os.sched_setaffinity(0, cores)
    return found


async def _play(name: str, decodes: Server, prompts: Server, scene: Scene) -> Isolation:
    found = Isolation(name)
    seed = scene.seed * 10_000 + sum(map(ord, name))  # so that no cache knows a prompt
    chance = random.Random(scene.seed)
    async with client() as session:
        began = time.monotonic()
        running_ones = [Heard(0.0) for _ in range(scene.decodes)]
        tasks = [
            asyncio.create_task(
                listen(session, decodes, _decode(scene, seed + number), heard, began)
            )
            for number, heard in enumerate(running_ones)
        ]
        await _have_begun(running_ones)
        quiet: list[tuple[float, float]] = []
        busy: list[tuple[float, float]] = []
        for number in range(scene.rounds):
            begin = time.monotonic() - began
            await asyncio.sleep(scene.seconds)
            middle = time.monotonic() - began
            found.firsts += await _prompts(session, prompts, scene, seed + 100 * number, chance)
            quiet.append((begin, middle))
            busy.append((middle, time.monotonic() - began))
        _raise_errors(running_ones)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    found.without = _gaps_within(running_ones, quiet)
    found.beside = _gaps_within(running_ones, busy)
    return found


def _decode(scene: Scene, seed: int) -> Ask:
    return Ask(0.0, noise(seed, scene.decode_prompt), _ENDLESS)


async def _have_begun(heard: Sequence[Heard]) -> None:
    while any(len(one.times) < 3 for one in heard):
        _raise_errors(heard)
        await asyncio.sleep(0.05)


def _raise_errors(heard: Sequence[Heard]) -> None:
    if failed := [one.error for one in heard if one.error]:
        raise RuntimeError(failed[0])


async def _prompts(
    session: aiohttp.ClientSession, server: Server, scene: Scene, seed: int, chance: random.Random
) -> list[float]:
    """Those of one stretch; times to their first tokens."""
    heard: list[Heard] = []
    begin, at_s = time.monotonic(), 0.0
    async with asyncio.TaskGroup() as tasks:
        while at_s < scene.seconds:
            await asyncio.sleep(max(0.0, begin + at_s - time.monotonic()))
            heard.append(Heard(time.monotonic() - begin))
            ask = Ask(at_s, noise(seed + 50 + len(heard), scene.prompt), 1)
            tasks.create_task(listen(session, server, ask, heard[-1], begin))
            at_s += chance.expovariate(scene.rate)
    _raise_errors(heard)
    return [one.first_s for one in heard]


def _gaps_within(heard: Sequence[Heard], windows: Sequence[tuple[float, float]]) -> list[float]:
    return [
        later - earlier
        for one in heard
        for earlier, later in pairwise(one.times)
        for begin, end in windows
        if begin <= earlier and later <= end
    ]
