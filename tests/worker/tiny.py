"""Models of each family, small and with random weights, and what transformers says of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import torch
import transformers

VOCAB: Final = 512
#: Greedy output may part where the two likeliest tokens are closer than this.
CLOSE: Final = 1e-3

_COMMON: Final[Mapping[str, Any]] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_WINDOW: Final = {"sliding_window": 24}
_EXPERTS: Final = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

_MAMBA: Final = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
}


@dataclass(frozen=True)
class Family:
    """How a small model of a family is made."""

    config: str
    architecture: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: The attention of transformers' own that knows all that the family needs.
    attention: str = "sdpa"


FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family("LlamaConfig", "LlamaForCausalLM"),
    "qwen2": Family("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": Family("Qwen3Config", "Qwen3ForCausalLM"),
    "qwen3-moe": Family("Qwen3MoeConfig", "Qwen3MoeForCausalLM", _EXPERTS),
    "qwen2-moe": Family(
        "Qwen2MoeConfig",
        "Qwen2MoeForCausalLM",
        {**_EXPERTS, "shared_expert_intermediate_size": 32},
    ),
    "mixtral": Family(
        "MixtralConfig", "MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}
    ),
    "smollm3": Family("SmolLM3Config", "SmolLM3ForCausalLM"),
    "granite": Family("GraniteConfig", "GraniteForCausalLM", {"attention_multiplier": 0.2}),
    "phi3": Family("Phi3Config", "Phi3ForCausalLM"),
    "cohere2": Family("Cohere2Config", "Cohere2ForCausalLM", _WINDOW),
    "olmo2": Family("Olmo2Config", "Olmo2ForCausalLM"),
    "mistral": Family("MistralConfig", "MistralForCausalLM", _WINDOW),
    "gemma2": Family("Gemma2Config", "Gemma2ForCausalLM", _WINDOW, "eager"),
    "gemma3": Family("Gemma3TextConfig", "Gemma3ForCausalLM", {**_WINDOW, "num_hidden_layers": 7}),
    "gpt-oss": Family(
        "GptOssConfig",
        "GptOssForCausalLM",
        {**_WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
        "eager",
    ),
    "olmo3": Family("Olmo3Config", "Olmo3ForCausalLM", _WINDOW),
    "mamba2": Family(
        "Mamba2Config",
        "Mamba2ForCausalLM",
        {"num_heads": 8, "state_size": 16, "n_groups": 1, "expand": 2, "chunk_size": 16},
        "eager",
    ),
    "falcon-h1": Family("FalconH1Config", "FalconH1ForCausalLM", {"mamba_d_ssm": 128, **_MAMBA}),
    "qwen3-next": Family(
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        {
            **_EXPERTS,
            "shared_expert_intermediate_size": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        },
    ),
    "granite-hybrid": Family(
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        {
            **_MAMBA,
            "layer_types": ["mamba", "attention", "mamba", "attention"],
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "shared_intermediate_size": 64,
        },
    ),
    "lfm2": Family(
        "Lfm2Config",
        "Lfm2ForCausalLM",
        {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    ),
}
#: Those with states.
WITH_STATES: Final = ("mamba2", "falcon-h1", "qwen3-next", "granite-hybrid", "lfm2")


@cache
def network(family: str) -> Any:
    """A model with large enough weights that greedy output varies; float32."""
    made = FAMILIES[family]
    config = getattr(transformers, made.config)(**{**_COMMON, **made.settings})
    config.architectures = [made.architecture]
    torch.manual_seed(5)
    model = getattr(transformers, made.architecture)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter *= 4
    return model


@cache
def stream(number: int) -> tuple[int, ...]:
    """Tokens to take prompts from: two that begin alike are of the same stream."""
    generator = torch.Generator().manual_seed(number)
    return tuple(torch.randint(3, VOCAB, (300,), generator=generator).tolist())


@dataclass(frozen=True)
class Continuation:
    """What transformers generates greedily, and how clear each choice is."""

    tokens: tuple[int, ...]
    margins: tuple[float, ...]


@cache
def continuation(family: str, prompt: tuple[int, ...], num_tokens: int) -> Continuation:
    """By `generate`, alone, with transformers' own attention and cache."""
    model = network(family)
    before = model.config._attn_implementation
    model.set_attn_implementation(FAMILIES[family].attention)
    try:
        return generated(model, prompt, num_tokens)
    finally:
        model.set_attn_implementation(before)


def generated(model: Any, prompt: tuple[int, ...], num_tokens: int) -> Continuation:
    """By `generate`, as the model is."""
    tokens = torch.tensor([prompt])
    made = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = [logits[0].topk(2).values for logits in made.logits]
    return Continuation(
        tuple(made.sequences[0, len(prompt) :].tolist()),
        tuple(float(first - second) for first, second in best),
    )


@dataclass
class Comparison:
    """How many outputs were compared, and how many parted where the choice was close."""

    num_whole: int = 0
    num_close: int = 0

    def add(self, expected: Continuation, tokens: Sequence[int]) -> None:
        """Raises: AssertionError where the tokens part though the choice was clear."""
        for place, token in enumerate(tokens):
            if token != expected.tokens[place]:
                margin = expected.margins[place]
                assert margin < CLOSE, (
                    f"token {place} is {token}, not {expected.tokens[place]}: margin {margin}"
                )
                self.num_close += 1
                return
        self.num_whole += 1

    def check_share(self) -> None:
        """Raises: AssertionError if one in twenty, and more than one, parted."""
        most = max(1, (self.num_whole + self.num_close) // 20)
        assert self.num_close <= most, f"{self.num_close} of {self.num_whole} parted"
