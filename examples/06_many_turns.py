"""A conversation of six turns through a pair: each turn's prompt holds all that was said before.

With a model: python examples/06_many_turns.py SmolLM2-135M-Instruct
"""

import asyncio
import sys
from typing import Any

from openai import AsyncOpenAI

from kvdist.launch.cluster import launched
from kvdist.launch.plan import Plan

QUESTIONS = ("What is a cache?", "Why?", "And what is a block?", "Who needs it?", "When?", "Sure?")


async def main(model: str) -> None:
    """Say for each turn where its prompt's tokens came from."""
    said: list[Any] = []
    async with (
        launched(Plan(model=model, port=0)) as pair,
        AsyncOpenAI(base_url=f"{pair.url}/v1", api_key="none") as client,
    ):
        print("turn  prompt  decode had  prefill had  prefill computed  decode computed")
        for turn, question in enumerate(QUESTIONS, 1):
            said.append({"role": "user", "content": question})
            answer = await client.chat.completions.create(
                model=model, messages=said, max_tokens=48, temperature=0
            )
            said.append({"role": "assistant", "content": answer.choices[0].message.content})
            assert answer.usage and answer.usage.prompt_tokens_details
            came = answer.usage.prompt_tokens_details.model_dump()
            parts = [
                came[f"{kind}_tokens"] for kind in ("cached", "remote_cached", "remote_computed")
            ]
            rest = answer.usage.prompt_tokens - sum(parts)
            print(
                f"{turn:4}  {answer.usage.prompt_tokens:6}  {parts[0]:10}  {parts[1]:11}  "
                f"{parts[2]:16}  {rest:15}"
            )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "stub"))
