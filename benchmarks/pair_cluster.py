"""What is measured: real processes, and the cores that each may use.

Owns:   the processes, for as long as a block lasts.
Knows nothing of: loads, figures.
"""

import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.pair_load import Server
from kvdist.launch.cluster import launched
from kvdist.launch.plan import Plan

#: Room for what is asked here, and no more: memory that is touched first takes its time.
_FLAGS: Final = ("--max-model-len=4096", "--num-gpu-blocks-override=2048")

_ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}

Cores = Sequence[int]


@dataclass(frozen=True, slots=True)
class Setup:
    """Nodes behind a router. Without a prefill node, decode nodes compute prompts themselves."""

    name: str
    num_prefill: int
    num_decode: int
    transport: str = "shm"
    #: Tokens of one step, and so of a chunk of a prompt.
    step_tokens: int = 2048


@dataclass(frozen=True, slots=True)
class Running:
    """A set-up that is ready."""

    #: The router.
    server: Server
    #: Each node by itself, by name.
    nodes: Mapping[str, Server]


@asynccontextmanager
async def running(setup: Setup, model: str, cores: Mapping[str, Cores]) -> AsyncIterator[Running]:
    """`cores`: of each node by its name, and of the router; who isn't named may use any."""
    plan = Plan(
        model=model,
        num_prefill=setup.num_prefill,
        num_decode=setup.num_decode,
        transport=setup.transport,
        port=0,
        node_flags=(*_FLAGS, f"--max-num-batched-tokens={setup.step_tokens}"),
    )
    async with launched(plan) as cluster:
        for name, allowed in cores.items():
            pin(cluster.process_id(name), allowed)
        name = cluster.model
        nodes = {node: Server(cluster.url_of(node), name) for node in plan.nodes}
        yield Running(Server(cluster.url, name), nodes)


def pin(process_id: int, cores: Cores) -> None:
    """A process, its children and all their threads; those that come later are as their makers."""
    for task in _tasks(process_id):
        os.sched_setaffinity(task, cores)


def _tasks(process_id: int) -> Iterator[int]:
    for task in Path(f"/proc/{process_id}/task").iterdir():
        yield int(task.name)
        for child in (task / "children").read_text().split():
            yield from _tasks(int(child))


def two_cores() -> tuple[int, int]:
    """The first two that this process may use. Raises: RuntimeError."""
    first, *rest = sorted(os.sched_getaffinity(0))
    if not rest:
        raise RuntimeError("a pair is measured on two cores, and there is one")
    return first, rest[0]


def folder_of(model: str) -> Path:
    """Where the model's files are."""
    from kvdist.worker.default_model import NAME, default_model

    return default_model(lambda what, _: print(what)) if model == NAME else Path(model)


def token_bytes(folder: Path) -> int:
    """K/V of one token, in a model whose layers are all alike."""
    config = json.loads((folder / "config.json").read_text())
    num_heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // num_heads
    kept = config.get("num_key_value_heads", num_heads) * head_size
    dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
    return int(2 * config["num_hidden_layers"] * kept * _ITEM_BYTES[dtype])
