"""Requests of a public conversation trace, as they came but faster and smaller; and two plots.

Each block of 512 tokens of the trace becomes one of 16, so that what prompts share is the same.

    python examples/09_replay_workload.py plots.png 200
"""

import asyncio
import gzip
import json
import sys
import tempfile
import time
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from openai import AsyncOpenAI

from kvdist.launch.cluster import launched
from kvdist.launch.plan import Plan

TRACE = Path(__file__).parent.parent / "tests/data/workload/conversation_trace.jsonl.gz"
BLOCK, SECONDS, WORDS = 16, 5.0, 90
KINDS = ("cached_tokens", "remote_cached_tokens", "remote_computed_tokens")
NAMES = ("decode had them", "prefill had them", "prefill computed them", "decode computed them")


class Done(NamedTuple):
    """One answered request. Seconds; tokens by source, in the order of `NAMES`."""

    came_s: float
    first_token_s: float
    tokens: list[int]


def prompt_of(hash_ids: list[int]) -> list[int]:
    """Equal ids are equal blocks, and no others."""
    digits = ([i // WORDS**place % WORDS for place in range(4)] for i in hash_ids)
    return [digit for block in digits for digit in block * (BLOCK // 4)]


async def ask(client: AsyncOpenAI, asked: dict[str, Any], came_s: float) -> Done:
    """When its time has come."""
    await asyncio.sleep(came_s)
    began_s, first_s, usage = time.monotonic(), None, None
    async for chunk in await client.completions.create(
        model="stub",
        prompt=prompt_of(asked["hash_ids"]),
        max_tokens=1 + asked["output_length"] // 50,
        stream=True,
        stream_options={"include_usage": True},
    ):
        first_s = first_s or time.monotonic() - began_s
        usage = chunk.usage or usage
    assert first_s and usage and usage.prompt_tokens_details
    told = usage.prompt_tokens_details.model_dump()
    tokens = [int(told.get(kind) or 0) for kind in KINDS]
    return Done(came_s, first_s, [*tokens, usage.prompt_tokens - sum(tokens)])


def plot(done: list[Done], path: Path) -> None:
    """Where tokens came from, added up; how long each first token took."""
    figure = Figure(figsize=(8, 7), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    times = [one.came_s for one in done]
    by_source = zip(*(one.tokens for one in done), strict=True)
    above.stackplot(times, [list(accumulate(numbers)) for numbers in by_source], labels=NAMES)
    above.set_ylabel("prompt tokens so far")
    above.legend(loc="upper left")
    below.plot(times, [1000 * one.first_token_s for one in done], ".")
    below.set_ylabel("first token after, ms")
    below.set_xlabel("s")
    figure.savefig(path)


async def main(path: Path, num_requests: int) -> None:
    """Replay, tell, plot."""
    with gzip.open(TRACE, "rt") as file:
        asked = [json.loads(line) for line, _ in zip(file, range(num_requests), strict=False)]
    scale = SECONDS / max(one["timestamp"] for one in asked)
    flags = ("--max-model-len=4096", "--num-gpu-blocks-override=4096")
    async with (
        launched(Plan(model="stub", port=0, node_flags=flags)) as pair,
        AsyncOpenAI(base_url=f"{pair.url}/v1", api_key="none") as client,
    ):
        done = await asyncio.gather(*(ask(client, one, scale * one["timestamp"]) for one in asked))
    for source, name in enumerate(NAMES):
        print(f"{name:22} {sum(one.tokens[source] for one in done):7,} prompt tokens")
    plot(done, path)
    print(f"plotted to {path}")


if __name__ == "__main__":
    default = Path(tempfile.gettempdir()) / "kvdist-replay.png"
    asyncio.run(
        main(
            Path(sys.argv[1]) if len(sys.argv) > 1 else default,
            int(sys.argv[2]) if len(sys.argv) > 2 else 60,
        )
    )
