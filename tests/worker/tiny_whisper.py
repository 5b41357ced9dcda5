"""A Whisper with random weights, a second of sound at a time, and what transformers says of it."""

from functools import cache
from typing import Any, Final

import numpy as np
import torch
from transformers import GenerationMixin, WhisperConfig, WhisperForConditionalGeneration

from kvdist.sched.audio import Audio
from kvdist.worker.hearing import Hearing
from tests.worker.tiny import VOCAB, Continuation

NUM_TOKENS: Final = 14
#: Tokens of the encoder: no multiple of any block size that tests use.
NUM_HEARD: Final = 50
RATE: Final = 16000


@cache
def whisper() -> Any:
    """Its weights are large enough that greedy output varies with what is heard; float32."""
    config = WhisperConfig(
        vocab_size=VOCAB,
        d_model=64,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=2,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        max_source_positions=NUM_HEARD,
        max_target_positions=128,
        num_mel_bins=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
    )
    config.architectures = ["WhisperForConditionalGeneration"]
    torch.manual_seed(5)
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter *= 4 if "embed" in name else 16
    model.generation_config.suppress_tokens = [367, VOCAB + 5]
    model.generation_config.begin_suppress_tokens = [13, 2]
    return model


@cache
def sound(number: int) -> Audio:
    """A chord of its own in some noise, half a second to a second long."""
    chance = np.random.default_rng(number)
    times = np.arange(RATE // 2 + number * 997 % (RATE // 2)) / RATE
    waves = [np.sin(2 * np.pi * pitch * times) for pitch in chance.uniform(100, 4000, 3)]
    samples = sum(waves) / 4 + chance.normal(0, 0.05, len(times))
    return Audio(samples.astype("<f4").tobytes(), NUM_HEARD)


@cache
def transcript(number: int, prompt: tuple[int, ...], num_tokens: int = NUM_TOKENS) -> Continuation:
    """By `generate`, alone, with transformers' own attention and cache."""
    model = whisper()
    before = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    try:
        made = GenerationMixin.generate(
            model,
            input_features=Hearing.of(model.config).features(sound(number)),
            decoder_input_ids=torch.tensor([prompt]),
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
            output_scores=True,
            return_dict_in_generate=True,
        )
    finally:
        model.set_attn_implementation(before)
    best = [scores[0].topk(2).values for scores in made.scores]
    return Continuation(
        tuple(made.sequences[0, len(prompt) :].tolist()),
        tuple(float(first - second) for first, second in best),
    )
