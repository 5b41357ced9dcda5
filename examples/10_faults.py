"""Bytes between two nodes that go wrong on purpose, by seed: the answers stay right.

Some one-sided reads say that they are over before their bytes are there, which only a checksum
finds; some links break in the middle. What the nodes do about each is printed as it happens, and at
last the whole life of one request that it happened to; the same seed goes wrong alike.

    python examples/10_faults.py [SEED]
"""

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from openai import AsyncOpenAI

from kvdist.launch.cluster import launched
from kvdist.launch.lines import Line
from kvdist.launch.plan import Plan
from kvdist.trace.events import LoadFailed
from kvdist.trace.reading import TraceFiles
from kvdist.trace.story import story

PROMPTS = [f"Question {i}: what is a cache for, when it fails? " * 3 for i in range(8)]
#: Of what the nodes say.
STORY = ("fault", "pull failed", "data link ended", "no data link")


def tell(who: str, line: Line) -> None:
    """The story's lines, and no others."""
    if line.event in STORY:
        print(f"  {who}: {line.text}")


async def ask(url: str, prompt: str) -> tuple[str, int]:
    """What is said, and how many tokens of the prompt were pulled."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        answer = await client.completions.create(model="stub", prompt=prompt, max_tokens=16)
        assert answer.usage and answer.usage.prompt_tokens_details
        return answer.choices[0].text, answer.usage.prompt_tokens_details.model_dump()[
            "remote_tokens"
        ]


def tell_story(trace: TraceFiles) -> None:
    """Of the first request whose K/V didn't come as they should."""
    failed = (entry.event for entry in trace if isinstance(entry.event, LoadFailed))
    if (event := next(failed, None)) is not None:
        print(f"the life of {event.req}:")
        for line in story(trace, event.req):
            print(f"  {line}")


async def main(seed: int, folder: Path) -> None:
    """Each prompt by a pair that fails, then by its decode node alone."""
    faults = f"--kv-faults={seed}:early=0.08,cut-inside=0.02"
    traces = f"--trace-file={folder}/%n.trace"
    flags = (faults, "--kv-checksum", traces)
    plan = Plan(model="stub", port=0, transport="shm", node_flags=flags)
    num_pulled = 0
    async with launched(plan, tell) as pair:
        for prompt in PROMPTS:
            print(f"{prompt[:10]!r} ...")
            text, pulled = await ask(pair.url, prompt)
            alone, _ = await ask(pair.url_of("p0"), prompt)
            assert text == alone, "a wrong token"
            print(f"  {text!r}: {pulled} of {len(prompt)} tokens were pulled")
            num_pulled += pulled > 0
    tell_story(TraceFiles(folder / "d0.trace"))
    print(f"{len(PROMPTS)} right answers; K/V were pulled for {num_pulled}")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, Path(folder)))
