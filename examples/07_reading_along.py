"""A long prompt, computed in many steps: decode pulls each step's K/V while the next is computed.

Beside it the same with a ticket: decode begins when prefill has ended. With a model, whose steps
take their time: python examples/07_reading_along.py SmolLM2-135M-Instruct
"""

import asyncio
import sys
import time
from statistics import median

from openai import AsyncOpenAI

from kvdist.launch.cluster import launched
from kvdist.launch.plan import Plan

STEPS = ("--max-num-batched-tokens=64",)


async def first_token_s(client: AsyncOpenAI, model: str, prompt: str) -> float:
    """From the request to its first token."""
    began_s = time.monotonic()
    stream = await client.completions.create(
        model=model, prompt=prompt, max_tokens=4, temperature=0, stream=True
    )
    told_s = [time.monotonic() - began_s async for _ in stream]
    return told_s[0]


async def main(model: str) -> None:
    """Six new prompts each way, one after the other."""
    for flag in ("--overlap", "--no-overlap"):
        plan = Plan(model=model, port=0, node_flags=STEPS, router_flags=(flag,))
        async with (
            launched(plan) as pair,
            AsyncOpenAI(base_url=f"{pair.url}/v1", api_key="none") as client,
        ):
            prompts = [f"{flag} {i}: " + f"the number {i} is a number. " * 50 for i in range(7)]
            times = [await first_token_s(client, model, prompt) for prompt in prompts]
            print(f"{flag:13} first token after {1000 * median(times[1:]):6.1f} ms (median)")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "stub"))
