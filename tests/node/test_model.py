"""The same over a real model, small and random, in a worker process that `kvdist serve` starts."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kvdist.cli.runners import tokenizer_of
from kvdist.cli.worker import command
from kvdist.node.build import NodeSettings, build_engine
from kvdist.node.worker_process import WorkerProcess
from kvdist.worker.settings import WorkerSettings
from tests.node.running import TOKENIZER, Running, running
from tests.worker import tiny

_TEMPLATE = "{% for message in messages %}[{{ message.role }}] {{ message.content }}{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder, as the hub has them."""
    folder = tmp_path_factory.mktemp("models") / "llama"
    tiny.network("llama").save_pretrained(folder)
    TOKENIZER._vocabulary.save(str(folder / "tokenizer.json"))
    config = {"chat_template": _TEMPLATE, "eos_token": {"content": "<|im_end|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def expected(prompt: str, num_tokens: int) -> tiny.Continuation:
    return tiny.continuation("llama", tuple(TOKENIZER.encode(prompt)), num_tokens)


async def conversation(node: Running) -> None:
    comparison = tiny.Comparison()
    prompts = ["once upon a time there was a cache", "once upon a time there was none", "x"]
    ask: Any = node.openai.completions.create
    async with asyncio.TaskGroup() as tasks:
        answers = [
            tasks.create_task(
                ask(
                    model="tiny",
                    prompt=TOKENIZER.encode(prompt),
                    max_tokens=20,
                    temperature=0,
                    logprobs=1,
                    extra_body={"ignore_eos": True},
                )
            )
            for prompt in prompts
        ]
    for prompt, answer in zip(prompts, answers, strict=True):
        wanted = expected(prompt, 20)
        choice = answer.result().choices[0]
        if choice.text != TOKENIZER.decode(wanted.tokens):
            comparison.num_close += min(wanted.margins) < tiny.CLOSE
            assert min(wanted.margins) < tiny.CLOSE
        assert len(choice.logprobs.token_logprobs) == 20
        assert all(value <= 0 for value in choice.logprobs.token_logprobs)
    again = await ask(model="tiny", prompt=prompts[0], max_tokens=2, temperature=0)
    assert again.usage.prompt_tokens_details.cached_tokens == 32
    seeded = [
        await ask(model="tiny", prompt="dice", max_tokens=12, temperature=1.5, seed=seed, n=2)
        for seed in (7, 7, 8)
    ]
    texts = [[choice.text for choice in answer.choices] for answer in seeded]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0][0] != texts[0][1]
    chat = await node.openai.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=4
    )
    assert chat.usage is not None and chat.usage.prompt_tokens == len("[user] hi")


def test_a_node_over_a_real_model(folder: Path) -> None:
    async def main() -> None:
        settings = WorkerSettings(
            model=str(folder), dtype="float32", device="cpu", num_blocks=65, max_model_len=512
        )
        worker = await WorkerProcess.start(command(settings))
        try:
            told: list[str] = []
            capacity = await worker.ready(lambda what, share: told.append(what))
            assert told[0] == "starting PyTorch" and told[-1] == "ready"
            assert (capacity.num_blocks, capacity.max_model_len) == (65, 512)
            assert tokenizer_of(capacity).encode("abc") == TOKENIZER.encode("abc")
            engine = build_engine(NodeSettings(names=("tiny",)), capacity, worker)
            async with running(engine=engine, tokenizer=tokenizer_of(capacity)) as node:
                await conversation(node)
            node.assert_nothing_held()
        finally:
            await worker.close()

    asyncio.run(main())
