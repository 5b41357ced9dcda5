"""A conversation of six turns through a pair: each turn's prompt holds all that was said before.

With a model: python examples/06_many_turns.py SmolLM2-135M-Instruct

The decode node has what it has said; the prefill node pulls that from it, and computes the rest.
"""

import asyncio
import re
import sys
from typing import Any

import aiohttp
from openai import AsyncOpenAI

from kvdist.launch.cluster import launched
from kvdist.launch.plan import Plan

QUESTIONS = ("What is a cache?", "Why?", "And what is a block?", "Who needs it?", "When?", "Sure?")
OF_USAGE = ("cached", "remote_cached", "remote_computed")
OF_PREFILL = ("local_cache_hit", "from_other_nodes", "local_compute")


async def prefilled(url: str) -> list[int]:
    """By where they came from: tokens of all prompts so far that the prefill node had to have."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as response:
        told = dict(
            re.findall(r'prefill_tokens_\w+_total{source="(\w+)"} (\d+)', await response.text())
        )
    return [int(told.get(source, 0)) for source in OF_PREFILL]


async def main(model: str) -> None:
    """Say for each turn where its prompt's tokens came from, at either node."""
    said: list[Any] = []
    async with (
        launched(Plan(model=model, port=0)) as pair,
        AsyncOpenAI(base_url=f"{pair.url}/v1", api_key="none") as client,
    ):
        print("              | prefill node           | decode node: of the other's")
        print("turn  prompt  |  had  pulled  computed |  had  cached  computed  computed itself")
        before = [0, 0, 0]
        for turn, question in enumerate(QUESTIONS, 1):
            said.append({"role": "user", "content": question})
            answer = await client.chat.completions.create(
                model=model, messages=said, max_tokens=48, temperature=0
            )
            said.append({"role": "assistant", "content": answer.choices[0].message.content})
            assert answer.usage and answer.usage.prompt_tokens_details
            came = answer.usage.prompt_tokens_details.model_dump()
            parts = [came[f"{kind}_tokens"] for kind in OF_USAGE]
            now = await prefilled(pair.url)
            had, pulled, computed = (new - old for new, old in zip(now, before, strict=True))
            before, num_tokens = now, answer.usage.prompt_tokens
            print(
                f"{turn:4}  {num_tokens:6}  | {had:4}  {pulled:6}  {computed:8} | "
                f"{parts[0]:4}  {parts[1]:6}  {parts[2]:8}  {num_tokens - sum(parts):15}"
            )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "stub"))
