"""From logits to tokens, for all sequences of a step at once.

Owns:   nothing; chance comes from each row's seed and place, so that it repeats.
Knows nothing of: models, plans, blocks.
Units:  N rows, V tokens of the vocabulary; float32.
Source: the order of the filters is vLLM's (vllm/v1/sample/sampler.py, 0.32). One number a token and
        the cumulated probabilities, instead of noise for the whole vocabulary, are a textbook's.

What the same seed gives doesn't depend on what else runs, nor on a preemption: the number for a
token is a hash of the seed and the token's place in its sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import pack
from typing import Final

import numpy as np
import torch

from kvdist.sched.plan import SampledTokens
from kvdist.sched.sampling import Sampling, TokenLogprobs
from kvdist.worker.rows import Row

#: What float32 can divide by.
_COLDEST: Final = 1e-30


def sample(logits: torch.Tensor, rows: Sequence[Row]) -> list[SampledTokens]:
    """The next token of each row; `logits` is `[N, V]`, and may be changed."""
    asked = [row.sampling for row in rows]
    logits = logits.float()
    if all(_is_plain(sampling) for sampling in asked):
        return [SampledTokens((token,)) for token in logits.argmax(-1).tolist()]
    logprobs = _Logprobs.of(logits, asked)
    _penalize(logits, rows)
    tokens = logits.argmax(-1)
    chosen = [i for i, sampling in enumerate(asked) if sampling.temperature > 0]
    if chosen:
        index = torch.tensor(chosen, device=logits.device)
        some = [rows[i] for i in chosen]
        tokens[index] = _draw(_filter(logits[index], [asked[i] for i in chosen]), some)
    return [
        SampledTokens((token,), logprobs=logprobs.told(i, token))
        for i, token in enumerate(tokens.tolist())
    ]


def _is_plain(sampling: Sampling) -> bool:
    """True if the likeliest token is all that is asked for."""
    return not (sampling.temperature or sampling.num_logprobs is not None or _penalizes(sampling))


def _penalizes(sampling: Sampling) -> bool:
    return bool(
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty
        or sampling.frequency_penalty
    )


# -- penalties ---------------------------------------------------------------------------------


def _penalize(logits: torch.Tensor, rows: Sequence[Row]) -> None:
    """Make less likely, in place, what a row has had already."""
    for scores, row in zip(logits, rows, strict=True):
        sampling = row.sampling
        if not _penalizes(sampling):
            continue
        if sampling.repetition_penalty != 1.0:
            known = torch.from_numpy(np.unique(row.tokens)).to(scores.device)
            factor = sampling.repetition_penalty
            before = scores[known]
            scores[known] = torch.where(before > 0, before / factor, before * factor)
        had, counts = np.unique(row.tokens[row.num_prompt_tokens :], return_counts=True)
        penalty = sampling.frequency_penalty * counts + sampling.presence_penalty
        scores[torch.from_numpy(had).to(scores.device)] -= torch.from_numpy(penalty).to(scores)


# -- which tokens can come ---------------------------------------------------------------------


def _filter(logits: torch.Tensor, asked: Sequence[Sampling]) -> torch.Tensor:
    """Temperature, min-p, top-k, top-p: minus infinity for what can't come."""
    temperature = _column(asked, "temperature", logits.device).clamp(min=_COLDEST)
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature
    if any(sampling.min_p for sampling in asked):
        least = _column(asked, "min_p", logits.device).log()  # the likeliest one's is 0
        logits = logits.masked_fill(logits < least, float("-inf"))
    cut = [i for i, sampling in enumerate(asked) if sampling.top_k > 0 or sampling.top_p < 1]
    if cut:
        index = torch.tensor(cut, device=logits.device)
        logits[index] = _cut(logits[index], [asked[i] for i in cut])
    return logits


def _cut(logits: torch.Tensor, asked: Sequence[Sampling]) -> torch.Tensor:
    """Top-k, then top-p of what is left; of equally likely tokens all stay, or none."""
    size = logits.shape[-1]
    ordered = logits.sort(-1, descending=True).values
    counts = torch.tensor([min(sampling.top_k or size, size) for sampling in asked])
    places = torch.arange(size, device=logits.device)
    out = places >= counts.to(logits.device).unsqueeze(-1)
    probabilities = ordered.masked_fill(out, float("-inf")).softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    out |= before >= _column(asked, "top_p", logits.device)
    out[:, 0] = False
    least = ordered.masked_fill(out, float("inf")).amin(-1, keepdim=True)
    return logits.masked_fill(logits < least, float("-inf"))


def _column(asked: Sequence[Sampling], name: str, device: torch.device) -> torch.Tensor:
    """One field of all rows, `[N, 1]`."""
    values = [getattr(sampling, name) for sampling in asked]
    return torch.tensor(values, dtype=torch.float32, device=device).unsqueeze(-1)


# -- chance ------------------------------------------------------------------------------------


def _draw(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """One token a row, as likely as its logits say."""
    sums = logits.softmax(-1).cumsum(-1, dtype=torch.float64)
    shares = torch.tensor([_share(row) for row in rows], dtype=torch.float64, device=logits.device)
    wanted = shares.unsqueeze(-1) * sums[:, -1:]
    return torch.searchsorted(sums, wanted, right=True).clamp(max=logits.shape[-1] - 1).squeeze(-1)


def _share(row: Row) -> float:
    """A number of 0 .. 1, 1 excluded, for the row's next token."""
    digest = blake2b(pack("<qq", row.seed, row.num_tokens), digest_size=4).digest()
    return int.from_bytes(digest, "little") / (1 << 32)


# -- how likely it was -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Logprobs:
    """Of the model itself, before penalties and temperature."""

    asked: Sequence[Sampling]
    #: `[N, V]`; None if no row asks.
    all: torch.Tensor | None

    @classmethod
    def of(cls, logits: torch.Tensor, asked: Sequence[Sampling]) -> "_Logprobs":
        """Taken before anything is changed."""
        wanted = any(sampling.num_logprobs is not None for sampling in asked)
        return cls(asked, logits.log_softmax(-1) if wanted else None)

    def told(self, i: int, token: int) -> tuple[TokenLogprobs, ...]:
        """What row `i` is told beside its token."""
        count = self.asked[i].num_logprobs
        if count is None or self.all is None:
            return ()
        best = self.all[i].topk(min(count, self.all.shape[-1]))
        top = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return (TokenLogprobs(float(self.all[i, token]), tuple(top)),)
