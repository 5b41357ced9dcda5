"""Which runner a model's name stands for; used in the worker's process, or in the node's own.

Owns:   the name of the stub.
Knows nothing of: sockets, HTTP.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvdist.cache import FullAttentionSpec, KVCacheConfig
from kvdist.errors import ConfigError
from kvdist.node.roles import Runner
from kvdist.node.tokenizer import Tokenizer
from kvdist.node.worker_host import Progress
from kvdist.node.worker_wire import Capacity
from kvdist.sim.stub_runner import StubRunner

#: In place of a folder: no model, but words all the same.
STUB: Final = "stub"
#: Printable ASCII, the first of `Tokenizer.of_bytes`.
_STUB_VOCABULARY: Final = 95


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a worker can be told; None: what the model or the machine suggests."""

    model: str
    max_model_len: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None


def build_runner(settings: WorkerSettings, progress: Progress) -> tuple[Runner, Capacity]:
    """The runner, loaded. Raises: ConfigError."""
    if settings.model != STUB:
        raise ConfigError(f"there is no worker for {settings.model!r} yet: only for {STUB!r}")
    config = KVCacheConfig.single(
        FullAttentionSpec(block_size=settings.block_size or 16),
        num_blocks=settings.num_blocks or 513,
        max_model_len=settings.max_model_len or 2048,
    )
    return StubRunner(config, _STUB_VOCABULARY), Capacity.of(config)


def tokenizer_of(model: str) -> Tokenizer:
    """Its tokenizer. Raises: ConfigError."""
    return Tokenizer.of_bytes() if model == STUB else Tokenizer.from_folder(Path(model))
