"""How the next token is chosen: what a request asks of the worker's sampler.

Owns:   nothing; all are frozen values.
Knows nothing of: logits, sequences; the scheduler hands them on unread.
Units:  logprobs are natural logarithms, of the model's own distribution.
Source: the names and their meaning are those of vLLM's `SamplingParams` (vllm/sampling_params.py,
        0.32).
"""

from dataclasses import dataclass, replace
from math import isfinite
from typing import Final

from kvdist.errors import InvalidRequest

#: Most alternatives that come with a token.
MAX_LOGPROBS: Final = 32

#: Least and greatest value of each number, both allowed.
_BOUNDS: Final = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, 100.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """From logits to a token. The default is greedy. Raises: InvalidRequest out of bounds.

    Penalties come first, then the temperature, min-p, top-k, and top-p last.

    >>> Sampling(temperature=0.8, top_p=0.0)
    Traceback (most recent call last):
    kvdist.errors.InvalidRequest: top_p is 0.0, not above 0
    """

    #: 0: always the likeliest token.
    temperature: float = 0.0
    #: The likeliest tokens that together have this probability.
    top_p: float = 1.0
    #: So many of the likeliest tokens; 0: all.
    top_k: int = 0
    #: Tokens at least this likely, as a share of the likeliest one's probability.
    min_p: float = 0.0
    #: The same seed, prompt and model give the same tokens, whatever else runs.
    seed: int | None = None
    #: Divides what prompt and output have had already; 1: none.
    repetition_penalty: float = 1.0
    #: Taken off what the output has had already.
    presence_penalty: float = 0.0
    #: Taken off for each time the output has had it.
    frequency_penalty: float = 0.0
    #: None: no logprobs; else that of the token, and of so many of the likeliest.
    num_logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if type(value) not in (int, float) or not isfinite(value) or not low <= value <= high:
                raise InvalidRequest(f"{name} is {value!r}, not a number within {low} .. {high}")
        for name in ("top_p", "repetition_penalty"):
            if getattr(self, name) == 0:
                raise InvalidRequest(f"{name} is {getattr(self, name)!r}, not above 0")
        self._check_whole("top_k", self.top_k, 0, (1 << 31) - 1)
        if self.seed is not None:
            self._check_whole("seed", self.seed, -(1 << 63), (1 << 63) - 1)
        if self.num_logprobs is not None:
            self._check_whole("num_logprobs", self.num_logprobs, 0, MAX_LOGPROBS)

    def _check_whole(self, name: str, value: object, low: int, high: int) -> None:
        if type(value) is not int or not low <= value <= high:
            raise InvalidRequest(f"{name} is {value!r}, not a whole number within {low} .. {high}")

    def of_sample(self, index: int) -> "Sampling":
        """The same for the `index`-th of several sequences with one prompt: a seed of its own.

        >>> Sampling(temperature=1, seed=7).of_sample(2).seed
        9
        """
        if self.seed is None or not index:
            return self
        high = (1 << 63) - 1
        return replace(self, seed=(self.seed + index + high + 1) % (2 * high + 2) - high - 1)


GREEDY: Final = Sampling()


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely a sampled token was, and which others were likely."""

    logprob: float
    #: Token and logprob, the likeliest first.
    top: tuple[tuple[int, float], ...] = ()
