"""What a worker can be told, in words that need no tensors: nodes say it before PyTorch is there.

Owns:   the names of the settings, and what a model can be called.
Knows nothing of: what becomes of them.
Units:  tokens, blocks and bytes, by name.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvdist.errors import ConfigError

#: A small real model, fetched and converted once.
DEFAULT_MODEL: Final = "SmolLM2-135M-Instruct"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """None: what the model or the machine suggests."""

    #: A folder, a name on the hub, `DEFAULT_MODEL`, or what stands for no model.
    model: str
    dtype: str = "auto"
    #: As PyTorch names it; `auto`: a GPU if there is one.
    device: str = "auto"
    max_model_len: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None


def folder_of(model: str) -> Path | None:
    """The folder with that model; None: it is to be fetched. Raises: ConfigError: it is neither."""
    if model == DEFAULT_MODEL:
        return None
    if (folder := Path(model).expanduser()).is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{model} is no model's folder: it has no config.json")
        return folder
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise ConfigError(
            f"{model} is no folder, and no name OWNER/MODEL on the hub or {DEFAULT_MODEL} either"
        )
    return None
