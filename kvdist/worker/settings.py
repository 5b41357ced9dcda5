"""What a worker can be told, in words that need no tensors: nodes say it before PyTorch is there.

Owns:   the names of the settings.
Knows nothing of: what becomes of them.
Units:  tokens, blocks and bytes, by name.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """None: what the model or the machine suggests."""

    #: A folder, a name on the hub, `default_model.NAME`, or what stands for no model.
    model: str
    dtype: str = "auto"
    #: As PyTorch names it; `auto`: a GPU if there is one.
    device: str = "auto"
    max_model_len: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
