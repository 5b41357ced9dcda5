"""Which runner a model's name stands for; used in the worker's process, or in the node's own.

Owns:   the name of the stub, and its size.
Knows nothing of: sockets, HTTP.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvdist.cache import FullAttentionSpec, KVCacheConfig
from kvdist.errors import ConfigError
from kvdist.node.roles import Runner
from kvdist.node.speech import Speech
from kvdist.node.tokenizer import Tokenizer
from kvdist.node.worker_host import Progress
from kvdist.node.worker_wire import Capacity
from kvdist.sim.stub_runner import StubRunner

#: In place of a folder: no model, but words all the same.
STUB: Final = "stub"
#: Printable ASCII, the first of `Tokenizer.of_bytes`.
_STUB_VOCABULARY: Final = 95


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """What a worker can be told; None: what the model or the machine suggests."""

    model: str
    dtype: str = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None


def build_runner(settings: RunnerSettings, progress: Progress) -> tuple[Runner, Capacity]:
    """The runner, loaded. Raises: ConfigError."""
    return _stub(settings) if settings.model == STUB else _model(settings, progress)


def tokenizer_of(capacity: Capacity) -> Tokenizer:
    """That of the model which the worker has loaded. Raises: ConfigError."""
    return Tokenizer.from_folder(Path(capacity.folder)) if capacity.folder else Tokenizer.of_bytes()


def speech_of(capacity: Capacity) -> Speech | None:
    """How to ask a model that hears; None: it doesn't. Raises: ConfigError."""
    if capacity.window is None:
        return None
    return Speech.from_folder(Path(capacity.folder), capacity.window)


def _stub(settings: RunnerSettings) -> tuple[Runner, Capacity]:
    config = KVCacheConfig.single(
        FullAttentionSpec(block_size=settings.block_size or 16),
        num_blocks=settings.num_blocks or 513,
        max_model_len=settings.max_model_len or 2048,
    )
    return StubRunner(config, _STUB_VOCABULARY), Capacity.of(config)


def _model(settings: RunnerSettings, progress: Progress) -> tuple[Runner, Capacity]:
    progress("starting PyTorch", 0.0)
    # Threads that spin while they wait keep others from the work that they wait for: on a busy
    # machine a step takes a hundred times as long. Read when PyTorch is loaded, never again.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        from kvdist.worker import build  # takes seconds, and is an extra
    except ImportError as error:
        raise ConfigError(
            f"no model can run here: {error}. Install kvdist with its extra 'serve'"
        ) from error
    told = {name: getattr(settings, name) for name in RunnerSettings.__slots__}
    built = build.build(build.WorkerSettings(**told), progress)
    progress("ready", 1.0)
    capacity = Capacity(
        built.num_blocks, built.groups, built.max_model_len, str(built.folder), built.window
    )
    return built.runner, capacity
