"""Which architectures run here, and what each of their layers keeps.

Owns:   the list of what is supported.
Knows nothing of: weights, tensors; it reads configurations.
Units:  tokens, heads, elements.
Source: `layer_types` and `sliding_window` are transformers' names (5.19).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvdist.errors import ConfigError

#: Decoders whose layers all attend; the tests compare each with transformers' own `generate`.
ATTENTION: Final = frozenset(
    (
        "Cohere2ForCausalLM",
        "GraniteForCausalLM",
        "LlamaForCausalLM",
        "MixtralForCausalLM",
        "Olmo2ForCausalLM",
        "Phi3ForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "SmolLM3ForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "MistralForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "GptOssForCausalLM",
        "Olmo3ForCausalLM",
    )
)

#: Decoders some or all of whose layers keep a state, with the keyword that takes their cache.
STATES: Final[Mapping[str, str]] = {
    "Mamba2ForCausalLM": "cache_params",
    "FalconH1ForCausalLM": "past_key_values",
    "Qwen3NextForCausalLM": "past_key_values",
    "GraniteMoeHybridForCausalLM": "past_key_values",
    "Lfm2ForCausalLM": "past_key_values",
}
#: Decoders that also attend to an encoder which hears.
HEARING: Final = frozenset(("WhisperForConditionalGeneration",))
#: Kinds of layers that don't attend: what they keep is seen when they run.
_NOT_ATTENDING: Final = frozenset(("linear_attention", "conv", "mamba"))


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """K/V of every token, or of those in the window."""

    index: int
    num_kv_heads: int
    head_dim: int
    #: None: every earlier token is read.
    window: int | None
    #: It reads the encoder's tokens, not the decoder's.
    is_cross: bool = False

    @property
    def name(self) -> str:
        """Its name among the layers with a cache."""
        return f"layers.{self.index}.{'cross' if self.is_cross else 'attention'}"


def architecture(config: Any) -> str:
    """The model's class. Raises: ConfigError if it doesn't run here, saying what does."""
    names = getattr(config, "architectures", None) or ["(none named in config.json)"]
    name: str = names[0]
    known = (*ATTENTION, *STATES, *HEARING)
    if name not in known:
        raise ConfigError(
            f"architecture {name} is not supported; these are: {', '.join(sorted(known))}"
        )
    return name


def attention_layers(config: Any) -> tuple[AttentionLayer, ...]:
    """The layers that attend, in order. Raises: ConfigError for a kind that doesn't run here."""
    if config.is_encoder_decoder:
        return tuple(_beside_an_encoder(config))
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:  # then all layers are alike
        kinds = ["sliding_attention" if window else "full_attention"] * config.num_hidden_layers
    windows = {"full_attention": None, "hybrid": None, "sliding_attention": window}
    layers = []
    for index, kind in enumerate(kinds):
        if kind in _NOT_ATTENDING:
            continue
        if kind not in windows:
            raise ConfigError(f"layer {index} is of kind {kind}, which is not supported")
        layers.append(AttentionLayer(index, *_heads(config), windows[kind]))
    return tuple(layers)


def _beside_an_encoder(config: Any) -> Iterator[AttentionLayer]:
    heads = config.decoder_attention_heads
    for index in range(config.decoder_layers):
        for is_cross in (False, True):
            yield AttentionLayer(index, heads, config.d_model // heads, None, is_cross)


def _heads(config: Any) -> tuple[int, int]:
    """How many heads keys and values have, and how large they are."""
    num_heads = config.num_attention_heads
    num_kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
    return num_kv_heads, getattr(config, "head_dim", None) or config.hidden_size // num_heads
