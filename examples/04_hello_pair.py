"""A prefill and a decode node: one computes a prompt, the other pulls its K/V and answers.

Without a model, so that it takes seconds: the words are nonsense, but the same nonsense that one
node by itself would say. With one:

    python examples/04_hello_pair.py SmolLM2-135M-Instruct
"""

import asyncio
import sys

from openai import AsyncOpenAI

from kvdist.launch.cluster import launched
from kvdist.launch.plan import Plan

PROMPT = (
    "A story about a cache that remembered everything that it had ever computed.\n\n"
    "Once upon a time, there was a cache"
)


async def main(model: str) -> None:
    """Ask twice, and see where the prompt's tokens came from."""
    async with (
        launched(Plan(model=model, port=0, transport="shm")) as pair,
        AsyncOpenAI(base_url=f"{pair.url}/v1", api_key="none") as client,
    ):
        for _ in range(2):
            answer = await client.completions.create(
                model=model, prompt=PROMPT, max_tokens=24, temperature=0
            )
            assert answer.usage and answer.usage.prompt_tokens_details
            came = answer.usage.prompt_tokens_details.model_dump()
            print(f"{answer.choices[0].text!r}")
            print(
                f"  of {answer.usage.prompt_tokens} prompt tokens decode had "
                f"{came['cached_tokens']} and pulled {came['remote_tokens']}, which prefill had "
                f"({came['remote_cached_tokens']}) or computed ({came['remote_computed_tokens']})"
            )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "stub"))
