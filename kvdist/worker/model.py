"""A model from a directory, and what its layers keep.

Owns:   the weights.
Knows nothing of: block tables, plans, sampling.
Units:  bytes a page, tokens a block.
Source: transformers' `AutoModelForCausalLM`, with the attention function of `attention`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSpeechSeq2Seq,
    PreTrainedModel,
)
from transformers.utils import logging

from kvdist.cache import (
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from kvdist.cache.grouping import KVCacheLayout, plan_groups
from kvdist.cache.numbers import MAX_TOKENS
from kvdist.errors import ConfigError
from kvdist.worker import attention
from kvdist.worker.families import HEARING, STATES, AttentionLayer, architecture, attention_layers
from kvdist.worker.hearing import Hearing
from kvdist.worker.states import StateLayer, state_layers

DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True)
class Model:
    """Weights that are ready to run, and its layers with a cache."""

    network: PreTrainedModel
    attention_layers: tuple[AttentionLayer, ...]
    state_layers: tuple[StateLayer, ...] = ()
    #: The keyword of its call that takes states; empty if it has none.
    cache_keyword: str = ""
    #: None: it has no encoder that hears.
    hearing: Hearing | None = None

    @classmethod
    def of(cls, network: PreTrainedModel, folder: Path | None = None) -> "Model":
        """`network` itself, its attention replaced; how it hears is said in `folder`.

        Raises: ConfigError if it can't run here.
        """
        name = architecture(network.config)
        keyword = STATES.get(name, "")
        hearing = Hearing.of(network.config, folder) if name in HEARING else None
        network.train(mode=False)
        network.requires_grad_(requires_grad=False)
        network.set_attn_implementation("eager")
        states = state_layers(network, keyword) if keyword else ()
        network.set_attn_implementation(attention.NAME)
        return cls(network, attention_layers(network.config), states, keyword, hearing)

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and K/V."""
        dtype: torch.dtype = self.network.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.network.device
        return device

    @property
    def vocab_size(self) -> int:
        """Tokens are 0 .. vocab_size - 1."""
        return int(self.network.config.vocab_size)

    @property
    def max_model_len(self) -> int:
        """The longest sequence that the model was made for."""
        config = self.network.config
        names = ("max_position_embeddings", "max_target_positions")
        return next((int(n) for name in names if (n := getattr(config, name, 0))), MAX_TOKENS)

    def layout(self, block_size: int) -> KVCacheLayout:
        """How its layers share memory, with at least `block_size` tokens a block.

        Beside states blocks are longer, so that a page of K/V is as large as a state.
        """
        attending = {layer.name: self._spec(layer, block_size) for layer in self.attention_layers}
        states = {layer.name: layer.num_bytes for layer in self.state_layers}
        if attending and states:
            page = max(spec.page_size_bytes for spec in attending.values())
            block_size *= -(-max(states.values()) // page)
        return plan_groups(
            attending
            | {
                name: MambaSpec(block_size=block_size, page_size_bytes=size)
                for name, size in states.items()
            }
        )

    def _spec(self, layer: AttentionLayer, block_size: int) -> KVCacheSpec:
        page = block_size * layer.num_kv_heads * 2 * layer.head_dim * self.dtype.itemsize
        if layer.is_cross:
            heard = 0 if self.hearing is None else self.hearing.window.num_tokens
            return CrossAttentionSpec(
                block_size=block_size, page_size_bytes=page, num_encoder_tokens=heard
            )
        if layer.window is None:
            return FullAttentionSpec(block_size=block_size, page_size_bytes=page)
        return SlidingWindowSpec(
            block_size=block_size, page_size_bytes=page, sliding_window=layer.window
        )


def load(folder: Path, dtype: str = "auto", device: str = "cpu") -> Model:
    """The model in a directory.

    Raises: ConfigError that says what is wrong with the directory, the dtype or the device.
    """
    logging.disable_progress_bar()  # it would leave a thread behind, and hosts show their own
    config = _read(AutoConfig, folder)
    hears = architecture(config) in HEARING
    network, report = _read(
        AutoModelForSpeechSeq2Seq if hears else AutoModelForCausalLM,
        folder,
        config=config,
        dtype=_dtype(dtype, config),
        output_loading_info=True,
    )
    if missing := sorted(report["missing_keys"]):
        raise ConfigError(
            f"{folder} lacks {len(missing)} weights, the first is {missing[0]}: is a file of it "
            "missing, or its config.json another model's?"
        )
    try:
        network.to(torch.device(device))
    except (RuntimeError, AssertionError) as error:  # the latter: a PyTorch without CUDA
        raise ConfigError(f"the model doesn't go to device {device!r}: {error}") from error
    return Model.of(network, folder)


def _dtype(name: str, config: Any) -> torch.dtype:
    if name == "auto":
        return getattr(config, "dtype", None) or torch.float32
    if name not in DTYPES:
        raise ConfigError(f"dtype {name!r} is none of auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def _read(kind: Any, folder: Path, **settings: Any) -> Any:
    """What `kind` finds there. Raises: ConfigError if it is missing or can't be read."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no directory")
    try:
        return kind.from_pretrained(str(folder), local_files_only=True, **settings)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ConfigError(
            f"can't load {folder}: {error} "
            "(a model's directory has config.json, *.safetensors and a tokenizer)"
        ) from error
