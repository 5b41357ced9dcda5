"""What goes down to the worker and comes back: deltas of its tables, sampled tokens (S26).

Owns:   nothing; all are frozen values.
Knows nothing of: why a sequence runs, tensors, sockets.
Units:  tokens; block ids are nested `[group][block]`, 0 where a group skips a position.
Source: vLLM's `SchedulerOutput` (vllm/v1/core/sched/output.py, 0.32) and the document's delta
        protocol.

A worker carries a plan out in this order: drop the rows of finished and preempted sequences, run
the block copies, add new rows and extend the others, compute, sample. Dropping a row that it
doesn't have is nothing to it: after a failed step the ids are sent once more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from kvdist.cache import BlockCopy
from kvdist.ids import BlockId, RequestId
from kvdist.sched.audio import Audio
from kvdist.sched.sampling import GREEDY, Sampling, TokenLogprobs

BlockIds: TypeAlias = tuple[tuple[BlockId, ...], ...]


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence that the worker has no row for: its first step, or its first after a reset."""

    request_id: RequestId
    #: All known tokens.
    token_ids: tuple[int, ...]
    #: The whole tables.
    block_ids: BlockIds
    encoder_token_ids: tuple[int, ...] = ()
    #: So many of `token_ids` are the prompt's, the others were sampled before.
    num_prompt_tokens: int = 0
    sampling: Sampling = GREEDY
    #: Input of an encoder that hears; it is run anew after a reset.
    audio: Audio | None = None
    #: Tokens of that encoder whose K/V are in the blocks, since they were loaded: it isn't run.
    num_loaded_encoder_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """What one step computes of one sequence."""

    request_id: RequestId
    #: The first position; all before it are in its blocks.
    num_computed_tokens: int
    #: So many known tokens from there on, drafts not counted.
    num_tokens: int
    #: The token after the last is sampled, and joins the known ones on the worker too.
    samples: bool
    #: Appended to its tables; empty for a new sequence, whose tables come whole.
    new_block_ids: BlockIds
    #: Guesses at the tokens after that, to be computed too, and kept as far as they are right.
    draft_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step."""

    step: int
    new_sequences: tuple[NewSequence, ...]
    #: In the order of planning: later ones may read what earlier ones write.
    scheduled: tuple[ScheduledSequence, ...]
    finished_request_ids: tuple[RequestId, ...]
    preempted_request_ids: tuple[RequestId, ...]
    #: To be run before anything is computed.
    block_copies: tuple[BlockCopy, ...]
    #: So many tokens behind the last of each sequence have slots for a drafter to write.
    num_lookahead_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """What came out for one sequence: the drafts that were right, and one more token."""

    token_ids: tuple[int, ...]
    #: Guesses for its next step.
    draft_token_ids: tuple[int, ...] = ()
    #: One for each token, if its sampling asks for them.
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step is over, and all its writes are done."""

    step: int
    sampled: Mapping[RequestId, SampledTokens] = field(default_factory=dict)
    #: Of the table entries that were read or written (I5); None: the worker doesn't say.
    table_checksum: int | None = None
