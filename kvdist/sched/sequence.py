"""One sequence of a request: its tokens, its limits, and its life as a table.

Owns:   what the scheduler has to know of a sequence beside the block manager's `Request`.
Knows nothing of: queues, budgets, blocks.
Units:  tokens.
Source: the statuses are those of vLLM's `RequestStatus` (vllm/v1/request.py, 0.32); that every pair
        of state and event is a row or an impossibility with its reason is h11's habit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from kvdist.cache import Request
from kvdist.errors import InvalidRequest, InvariantViolation
from kvdist.ids import RequestId
from kvdist.sched.audio import Audio
from kvdist.sched.sampling import GREEDY, Sampling


class SequenceStatus(Enum):
    """Where a sequence stands."""

    WAITING = auto()  #: owns nothing, or what was loaded for it
    LOADING = auto()  #: K/V from elsewhere are landing in its blocks
    RUNNING = auto()
    PREEMPTED = auto()  #: waits to be computed anew
    FINISHED_STOPPED = auto()  #: a stop token
    FINISHED_LENGTH = auto()  #: as many tokens as it may have
    FINISHED_ABORTED = auto()
    FINISHED_ERROR = auto()
    FINISHED_PREFILLED = auto()  #: its prompt's K/V are there, but for the last token

    @property
    def finished(self) -> bool:
        """True in the five last ones."""
        return self in FINISHED


class SequenceEvent(Enum):
    """What can happen to a sequence."""

    LOAD = auto()  #: got blocks that have to be filled from elsewhere
    LOADED = auto()
    LOAD_FAILED = auto()  #: and it may try again
    RUN = auto()  #: got its first slots to compute
    PREEMPT = auto()  #: gives its blocks to others
    RECOMPUTE = auto()  #: what it has computed or adopted is worth nothing
    STOP = auto()
    LENGTH = auto()
    PREFILLED = auto()
    ABORT = auto()
    ERROR = auto()


_S, _E = SequenceStatus, SequenceEvent

FINISHED: Final = frozenset(
    (
        _S.FINISHED_STOPPED,
        _S.FINISHED_LENGTH,
        _S.FINISHED_ABORTED,
        _S.FINISHED_ERROR,
        _S.FINISHED_PREFILLED,
    )
)

#: So many failed steps can't be chance: whose fault they are has to be found out.
_SUSPECT: Final = 2

TABLE: Final[Mapping[tuple[SequenceStatus, SequenceEvent], SequenceStatus]] = {
    (_S.WAITING, _E.LOAD): _S.LOADING,
    (_S.WAITING, _E.RUN): _S.RUNNING,
    (_S.WAITING, _E.RECOMPUTE): _S.WAITING,
    (_S.WAITING, _E.PREFILLED): _S.FINISHED_PREFILLED,
    (_S.WAITING, _E.ABORT): _S.FINISHED_ABORTED,
    (_S.WAITING, _E.ERROR): _S.FINISHED_ERROR,
    (_S.LOADING, _E.LOADED): _S.WAITING,
    (_S.LOADING, _E.LOAD_FAILED): _S.WAITING,
    (_S.LOADING, _E.RECOMPUTE): _S.WAITING,
    (_S.LOADING, _E.ABORT): _S.FINISHED_ABORTED,
    (_S.LOADING, _E.ERROR): _S.FINISHED_ERROR,
    (_S.RUNNING, _E.PREEMPT): _S.PREEMPTED,
    (_S.RUNNING, _E.RECOMPUTE): _S.PREEMPTED,
    (_S.RUNNING, _E.STOP): _S.FINISHED_STOPPED,
    (_S.RUNNING, _E.LENGTH): _S.FINISHED_LENGTH,
    (_S.RUNNING, _E.PREFILLED): _S.FINISHED_PREFILLED,
    (_S.RUNNING, _E.ABORT): _S.FINISHED_ABORTED,
    (_S.RUNNING, _E.ERROR): _S.FINISHED_ERROR,
    (_S.PREEMPTED, _E.LOAD): _S.LOADING,
    (_S.PREEMPTED, _E.RUN): _S.RUNNING,
    (_S.PREEMPTED, _E.ABORT): _S.FINISHED_ABORTED,
    (_S.PREEMPTED, _E.ERROR): _S.FINISHED_ERROR,
}

_NO_LOAD: Final = "nothing is being loaded for it"
_NO_OUTPUT: Final = "no step computes it, and what steps before computed is stale"

IMPOSSIBLE: Final[Mapping[tuple[SequenceStatus, SequenceEvent], str]] = {
    (_S.WAITING, _E.LOADED): _NO_LOAD,
    (_S.WAITING, _E.LOAD_FAILED): _NO_LOAD,
    (_S.WAITING, _E.PREEMPT): "what was loaded for it is never given up for others",
    (_S.WAITING, _E.STOP): _NO_OUTPUT,
    (_S.WAITING, _E.LENGTH): _NO_OUTPUT,
    (_S.LOADING, _E.LOAD): "a load is under way",
    (_S.LOADING, _E.RUN): "its K/V aren't there yet",
    (_S.LOADING, _E.PREEMPT): "bytes are landing in its blocks",
    (_S.LOADING, _E.STOP): _NO_OUTPUT,
    (_S.LOADING, _E.LENGTH): _NO_OUTPUT,
    (_S.LOADING, _E.PREFILLED): "its K/V aren't there yet",
    (_S.RUNNING, _E.LOAD): "it owns blocks and can't adopt others",
    (_S.RUNNING, _E.LOADED): _NO_LOAD,
    (_S.RUNNING, _E.LOAD_FAILED): _NO_LOAD,
    (_S.RUNNING, _E.RUN): "it runs already",
    (_S.PREEMPTED, _E.LOADED): _NO_LOAD,
    (_S.PREEMPTED, _E.LOAD_FAILED): _NO_LOAD,
    (_S.PREEMPTED, _E.PREEMPT): "it owns nothing to give up",
    (_S.PREEMPTED, _E.RECOMPUTE): "it owns nothing that could be worthless",
    (_S.PREEMPTED, _E.STOP): _NO_OUTPUT,
    (_S.PREEMPTED, _E.LENGTH): _NO_OUTPUT,
    (_S.PREEMPTED, _E.PREFILLED): "it owns nothing",
    **{(status, event): "it has ended" for status in FINISHED for event in _E},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What ends a sequence, how its tokens are chosen, and how many of them a request wants."""

    max_new_tokens: int = 16
    stop_token_ids: frozenset[int] = frozenset()
    #: Sequences with the same prompt.
    n: int = 1
    sampling: Sampling = GREEDY

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "n"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise InvalidRequest(f"{name} is {value!r}, not a whole number from 1")


class Sequence:
    """Written by the scheduler alone; others read it."""

    __slots__ = (
        "arrival",
        "attempt",
        "audio",
        "draft_token_ids",
        "encoder_token_ids",
        "hold_whole_prompt",
        "max_len",
        "num_failed_tokens",
        "num_failures",
        "num_pending_tokens",
        "num_settled_tokens",
        "num_turns_in_flight",
        "on_worker",
        "order",
        "prefill_only",
        "priority",
        "request",
        "sampling",
        "status",
        "stop_token_ids",
        "worthless",
    )

    def __init__(
        self,
        request: Request,
        *,
        max_len: int,
        arrival: int,
        stop_token_ids: frozenset[int] = frozenset(),
        priority: int = 0,
        order: tuple[int, int] | None = None,
        prefill_only: bool = False,
        hold_whole_prompt: bool = False,
        encoder_token_ids: tuple[int, ...] = (),
        audio: Audio | None = None,
        sampling: Sampling = GREEDY,
    ) -> None:
        self.request = request
        #: The worker's; opaque here.
        self.sampling = sampling
        self.status = SequenceStatus.WAITING
        #: Prompt and output together, at most.
        self.max_len = max_len
        self.stop_token_ids = stop_token_ids
        #: The lower, the sooner.
        self.priority = priority
        self.arrival = arrival
        #: What queues are sorted by; no two sequences have the same.
        self.order = order or (0, arrival)
        #: A prefill node's: all but the prompt's last token are computed, nothing is sampled.
        self.prefill_only = prefill_only
        #: Somebody reads along: it is admitted only with blocks for its whole prompt (T11).
        self.hold_whole_prompt = hold_whole_prompt
        #: Input of the encoder, where groups attend to one: tokens, or sound.
        self.encoder_token_ids = encoder_token_ids
        self.audio = audio
        #: Counts up when all in flight becomes stale.
        self.attempt = 0
        #: Steps of this attempt that compute it and are not over.
        self.num_turns_in_flight = 0
        #: Tokens that those steps sample.
        self.num_pending_tokens = 0
        #: Guesses for the next step to verify.
        self.draft_token_ids: tuple[int, ...] = ()
        #: Tokens whose K/V are in its blocks, written by steps that are over.
        self.num_settled_tokens = 0
        #: The worker has a row for it.
        self.on_worker = False
        #: It has to be computed anew as soon as nobody reads its blocks.
        self.worthless = False
        #: Steps that failed with it, and it has not come past where they were since.
        self.num_failures = 0
        #: Where the furthest of them would have ended.
        self.num_failed_tokens = 0

    @property
    def request_id(self) -> RequestId:
        """Unique among all sequences of a scheduler."""
        return self.request.request_id

    @property
    def num_encoder_tokens(self) -> int:
        """Tokens of the encoder, which its blocks hold from the first step on."""
        heard = self.audio.num_tokens if self.audio is not None else 0
        return len(self.encoder_token_ids) + heard

    @property
    def num_target_tokens(self) -> int:
        """So many tokens have to be computed, as far as they are known or on their way."""
        if self.prefill_only:
            return self.request.num_prompt_tokens - 1
        return self.request.num_tokens + self.num_pending_tokens

    def on(self, event: SequenceEvent) -> None:
        """Move on. Raises: InvariantViolation, with the reason, where the table has no row."""
        try:
            self.status = TABLE[self.status, event]
        except KeyError:
            reason = IMPOSSIBLE[self.status, event]
            raise InvariantViolation(
                f"sequence {self.request_id}: {event.name} while {self.status.name}: {reason}"
            ) from None

    @property
    def suspect(self) -> bool:
        """More than one step has failed with it: from now on it runs by itself."""
        return self.num_failures >= _SUSPECT

    def note_failure(self, end: int) -> None:
        """A step that was to compute it up to `end` has failed."""
        self.num_failures += 1
        self.num_failed_tokens = max(self.num_failed_tokens, end)

    def note_success(self, end: int) -> None:
        """A step has computed it up to `end`; what failed further on may fail again."""
        if end >= self.num_failed_tokens:
            self.num_failures = self.num_failed_tokens = 0

    def forget_progress(self) -> None:
        """What was computed is gone, and what is in flight is stale."""
        request = self.request
        request.num_computed_tokens = request.num_in_flight_tokens = 0
        self.attempt += 1
        self.num_turns_in_flight = self.num_pending_tokens = self.num_settled_tokens = 0
        self.draft_token_ids = ()
        self.worthless = False

    def __repr__(self) -> str:
        return f"Sequence({self.request_id!r}, {self.status.name}, {self.request!r})"
