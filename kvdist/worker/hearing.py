"""From sound to what an encoder takes: log-mel spectra, by transformers' feature extractor.

Owns:   the extractor's settings.
Knows nothing of: weights, blocks; where the sound comes from.
Units:  samples of one channel, frames of the spectrum, tokens of the encoder.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from transformers import WhisperFeatureExtractor

from kvdist.errors import ConfigError, LocalMisuse
from kvdist.sched.audio import BYTES_PER_SAMPLE, Audio, AudioWindow

#: The encoder's second convolution makes one token of so many frames.
_FRAMES_PER_TOKEN: Final = 2
#: As all of Whisper's models have them.
_TOKENS_PER_SECOND: Final = 50
_SETTINGS: Final = "preprocessor_config.json"


@dataclass(frozen=True, slots=True)
class Hearing:
    """What a model hears at a time, and how."""

    extractor: WhisperFeatureExtractor
    window: AudioWindow

    @classmethod
    def of(cls, config: Any, folder: Path | None = None) -> "Hearing":
        """As the folder says, or else as Whisper does. Raises: ConfigError if it doesn't fit."""
        if folder is not None and (folder / _SETTINGS).exists():
            extractor = WhisperFeatureExtractor.from_pretrained(str(folder))
        else:
            extractor = WhisperFeatureExtractor(
                feature_size=config.num_mel_bins,
                chunk_length=config.max_source_positions // _TOKENS_PER_SECOND,
            )
        num_tokens = extractor.n_samples // extractor.hop_length // _FRAMES_PER_TOKEN
        if (extractor.feature_size, num_tokens) != (
            config.num_mel_bins,
            config.max_source_positions,
        ):
            raise ConfigError(
                f"{_SETTINGS} says {extractor.feature_size} mel bins and {num_tokens} tokens, "
                f"config.json {config.num_mel_bins} and {config.max_source_positions}"
            )
        window = AudioWindow(extractor.sampling_rate, extractor.n_samples, num_tokens)
        return cls(extractor, window)

    def features(self, audio: Audio) -> torch.Tensor:
        """`[1, mel bins, frames]`, filled up with silence. Raises: LocalMisuse for other sizes."""
        most = self.window.num_samples * BYTES_PER_SAMPLE
        if (
            not 0 < len(audio.samples) <= most
            or len(audio.samples) % BYTES_PER_SAMPLE
            or audio.num_tokens != self.window.num_tokens
        ):
            raise LocalMisuse(
                f"{len(audio.samples)} bytes of sound for {audio.num_tokens} tokens of the "
                f"encoder; at most {most} are for {self.window.num_tokens}"
            )
        samples = np.frombuffer(audio.samples, "<f4")
        found: torch.Tensor = self.extractor(
            samples, sampling_rate=self.window.sample_rate, return_tensors="pt"
        ).input_features
        return found
