"""Twenty questions behind one long system prompt: it is computed once and travels once.

With a model: python examples/05_shared_system_prompt.py SmolLM2-135M-Instruct
"""

import asyncio
import sys
from collections import Counter

from openai import AsyncOpenAI

from kvdist.launch.cluster import launched
from kvdist.launch.plan import Plan

SYSTEM = "You answer questions about caches, briefly and truthfully, whatever happens. " * 12
KINDS = ("cached_tokens", "remote_cached_tokens", "remote_computed_tokens")


async def ask(client: AsyncOpenAI, model: str, question: str) -> Counter[str]:
    """Where the prompt's tokens came from."""
    answer = await client.chat.completions.create(
        model=model,
        messages=[
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": question},
        ],
        max_tokens=8,
    )
    assert answer.usage and answer.usage.prompt_tokens_details
    told = answer.usage.prompt_tokens_details.model_dump()
    counts = Counter({kind: int(told[kind]) for kind in KINDS})
    counts["computed by decode"] = answer.usage.prompt_tokens - counts.total()
    return counts


def show(what: str, counts: Counter[str]) -> None:
    """One line."""
    print(f"{what:22}", *(f"{kind}: {number:6,}" for kind, number in sorted(counts.items())))


async def main(model: str) -> None:
    """The first question alone, the others all at once."""
    async with (
        launched(Plan(model=model, port=0)) as pair,
        AsyncOpenAI(base_url=f"{pair.url}/v1", api_key="none") as client,
    ):
        show("first question", await ask(client, model, "What is a cache?"))
        asking = (ask(client, model, f"What is question number {i}?") for i in range(20))
        others = sum(await asyncio.gather(*asking), Counter[str]())
        show("twenty more", others)
        assert others["cached_tokens"] > 0.7 * others.total()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "stub"))
