"""What a worker's answer for one sequence amounts to.

Owns:   nothing.
Knows nothing of: steps, blocks, queues.
Units:  tokens.

The worker is another process: what it says is checked, never asserted.
"""

from dataclasses import dataclass

from kvdist.sched.plan import SampledTokens
from kvdist.sched.sampling import TokenLogprobs
from kvdist.sched.sequence import Sequence, SequenceEvent
from kvdist.sched.steps import Turn

#: Above any vocabulary; the block hash frames tokens in 32 bits.
_TOO_LARGE = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became known."""

    #: Up to the sequence's end, if this is it.
    token_ids: tuple[int, ...] = ()
    #: Drafts of the step that were wrong.
    num_rejected: int = 0
    #: How it ended.
    event: SequenceEvent | None = None
    draft_token_ids: tuple[int, ...] = ()
    #: One for each token, or none.
    logprobs: tuple[TokenLogprobs, ...] = ()


def read_outcome(turn: Turn, sampled: SampledTokens | None, max_drafts: int) -> Outcome | None:
    """What one turn came to; None if the answer is not one to its question."""
    sequence = turn.sequence
    if not turn.samples:
        done = sequence.prefill_only and turn.start + turn.num_tokens == sequence.num_target_tokens
        return Outcome(event=SequenceEvent.PREFILLED if done else None)
    if sampled is None or not _are_tokens(sampled.token_ids):
        return None
    if len(sampled.logprobs) not in (0, len(sampled.token_ids)):
        return None
    tokens, drafts = sampled.token_ids, turn.draft_token_ids
    num_right = len(tokens) - 1
    if not 0 <= num_right <= len(drafts) or tokens[:num_right] != drafts[:num_right]:
        return None
    kept, event = _until_the_end(sequence, tokens)
    next_drafts = _usable_drafts(sampled, max_drafts)
    logprobs = sampled.logprobs[: len(kept)]
    return Outcome(kept, len(drafts) - num_right, event, next_drafts, logprobs)


def _are_tokens(token_ids: object) -> bool:
    return isinstance(token_ids, tuple) and all(
        type(token) is int and 0 <= token < _TOO_LARGE for token in token_ids
    )


def _usable_drafts(sampled: SampledTokens, max_drafts: int) -> tuple[int, ...]:
    """Drafts are guesses: bad ones are worth as much as none."""
    drafts = sampled.draft_token_ids
    return drafts[:max_drafts] if drafts and max_drafts and _are_tokens(drafts) else ()


def _until_the_end(
    sequence: Sequence, tokens: tuple[int, ...]
) -> tuple[tuple[int, ...], SequenceEvent | None]:
    left = sequence.max_len - sequence.request.num_tokens
    for i, token in enumerate(tokens[:left]):
        if token in sequence.stop_token_ids:
            return tokens[: i + 1], SequenceEvent.STOP
    if len(tokens) >= left:
        return tokens[:left], SequenceEvent.LENGTH
    return tokens, None
