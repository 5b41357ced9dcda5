"""From settings to a runner: loads the model, and finds out how many blocks there is room for.

Owns:   what is assumed where nothing is said: device, block size, memory for K/V.
Knows nothing of: nodes, sockets.
Units:  tokens, blocks and bytes, by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from transformers.utils.logging import disable_progress_bar

from kvdist.cache import KVCacheGroupSpec
from kvdist.errors import ConfigError
from kvdist.sched.audio import AudioWindow
from kvdist.worker import default_model
from kvdist.worker.default_model import Progress
from kvdist.worker.model import Model, load
from kvdist.worker.runner import ModelRunner
from kvdist.worker.settings import WorkerSettings, folder_of
from kvdist.worker.weights import weights_digest

#: Of what is free beside the weights on a GPU; the rest is for what a step computes.
_SHARE_OF_GPU: Final = 0.8
_CPU_BYTES: Final = 1 << 30


#: Told how many bytes.
Allocate: TypeAlias = Callable[[int], memoryview | None]


@dataclass(frozen=True, slots=True)
class Built:
    """A runner, and what it has room for."""

    runner: ModelRunner
    num_blocks: int
    groups: tuple[KVCacheGroupSpec, ...]
    max_model_len: int
    folder: Path
    #: What the model hears at a time; None: nothing.
    window: AudioWindow | None
    #: Digest of the weights.
    weights: str
    #: Tokens are 0 .. vocab_size - 1.
    vocab_size: int


def build(settings: WorkerSettings, progress: Progress, allocate: Allocate | None = None) -> Built:
    """The model is loaded, memory for its K/V taken. Raises: ConfigError that says what to do.

    `allocate`: gives memory that others share; None, or nothing given: the pool has its own.
    """
    disable_progress_bar()  # whoever hears of our progress has one
    folder = _folder(settings.model, progress)
    progress("loading the weights", 0.5)
    model = load(folder, settings.dtype, _device(settings.device))
    layout = model.layout(settings.block_size or 16)
    longest = settings.max_model_len or model.max_model_len
    if longest > model.max_model_len:
        raise ConfigError(
            f"max_model_len {longest} is more than the {model.max_model_len} tokens that the "
            "model was made for: choose less"
        )
    num_blocks = settings.num_blocks or layout.num_blocks(_kv_bytes(settings, model))
    memory = None
    if allocate is not None and model.device.type == "cpu":
        memory = allocate(num_blocks * layout.bytes_per_block)
    runner = ModelRunner(model, layout, num_blocks, memory)
    window = model.hearing.window if model.hearing is not None else None
    groups = layout.kv_cache_groups
    return Built(
        runner,
        num_blocks,
        groups,
        longest,
        folder,
        window,
        weights_digest(folder),
        model.vocab_size,
    )


def _device(name: str) -> str:
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def _kv_bytes(settings: WorkerSettings, model: Model) -> int:
    if settings.kv_cache_memory_bytes is not None:
        return settings.kv_cache_memory_bytes
    if model.device.type != "cuda":
        return _CPU_BYTES
    free, _ = torch.cuda.mem_get_info(model.device)
    return int(free * _SHARE_OF_GPU)


def _folder(name: str, progress: Progress) -> Path:
    """Where the model's files are; they are fetched if need be. Raises: ConfigError."""
    if (folder := folder_of(name)) is not None:
        return folder
    if name == default_model.NAME:
        return default_model.default_model(progress)
    patterns = ["*.json", "*.jinja", "*.safetensors", "*.model"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigError(
            f"can't fetch {name} from the hub: {error} "
            "(is the name right, and can this machine reach the hub? Else give a folder)"
        ) from error
