"""Sound for a model's encoder: what a request brings, and what the model takes.

Owns:   nothing; all are frozen values.
Knows nothing of: files, spectra, what is said.
Units:  samples of one channel, float32, little-endian, -1 .. 1; tokens of the encoder.
"""

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from kvdist.cache import ExtraKeys, MultiModalItem

BYTES_PER_SAMPLE: Final = 4


@dataclass(frozen=True, slots=True)
class AudioWindow:
    """What a model's encoder takes at a time."""

    #: Samples a second.
    sample_rate: int
    #: At most; what is shorter is filled up with silence.
    num_samples: int
    #: Tokens that the encoder makes of it, however short it is.
    num_tokens: int

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.num_samples / self.sample_rate


@dataclass(frozen=True, slots=True)
class Audio:
    """One request's sound, at the model's rate."""

    samples: bytes
    #: Tokens that the encoder makes of it; their K/V need blocks.
    num_tokens: int

    def keys(self, others: ExtraKeys) -> ExtraKeys:
        """And those of the sound: it decides the K/V of all tokens, from the first one on."""
        item = MultiModalItem(sha256(self.samples).hexdigest(), 0, 1)
        return replace(others, mm_items=(item, *others.mm_items))
