"""Two prefill and three decode nodes: two compute prompts, three answer from what they have pulled.

With a model (five copies of it): python examples/08_many_nodes.py SmolLM2-135M-Instruct
"""

import asyncio
import sys

import aiohttp
from openai import AsyncOpenAI
from prometheus_client.parser import text_string_to_metric_families

from kvdist.launch.cluster import launched
from kvdist.launch.plan import Plan

STORY = "is a story of its own, long enough to be computed by one node and told by another: "


async def number(url: str, name: str, **labels: str) -> float:
    """The sum of a counter, out of /metrics."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


async def main(model: str) -> None:
    """Thirty prompts at once; then who did what."""
    plan = Plan(model=model, num_prefill=2, num_decode=3, port=0)
    async with (
        launched(plan) as cluster,
        AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key="none") as client,
    ):
        asking = (
            client.completions.create(model=model, prompt=f"{i} {STORY}", max_tokens=8)
            for i in range(30)
        )
        answers = await asyncio.gather(*asking)
        print(f"{len(answers)} answers")
        for name in plan.nodes:
            url = cluster.url_of(name)
            prompts = await number(url, "vllm:request_prompt_tokens_count")
            outputs = await number(url, "vllm:generation_tokens_total")
            print(f"{name}: {prompts:3.0f} prompts, {outputs:4.0f} tokens of output")
        source = "kvdist:router_prompt_tokens_by_source_total"
        pulled = await number(cluster.url, source, source="remote_compute")
        print(f"{pulled:.0f} prompt tokens were computed by one node for another")
        assert pulled


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "stub"))
