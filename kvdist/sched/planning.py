"""A step while it is planned: what is left of its budget, and what the worker will be told.

Owns:   the entries of one plan; which rows the worker has, and which it has to drop.
Knows nothing of: who should run, what fits.
Units:  tokens.
Source: the document's delta protocol (S26).
"""

from kvdist.cache import BlockCopy, KVCacheBlocks, KVCacheManager
from kvdist.ids import RequestId
from kvdist.sched.plan import BlockIds, NewSequence, ScheduledSequence, StepPlan
from kvdist.sched.sequence import Sequence
from kvdist.sched.steps import StepInFlight, Turn


class WorkerRows:
    """Rows of the worker's tables that the next plan has to drop."""

    __slots__ = ("_finished", "_preempted")

    def __init__(self) -> None:
        self._finished: list[RequestId] = []
        self._preempted: list[RequestId] = []

    def drop(self, sequence: Sequence) -> None:
        """It owns no blocks any more."""
        if sequence.on_worker:
            sequence.on_worker = False
            ids = self._finished if sequence.status.finished else self._preempted
            ids.append(sequence.request_id)

    def drop_again(self, step: StepInFlight) -> None:
        """Perhaps the worker never read what this step said."""
        finished, preempted = step.dropped_rows
        self._finished += finished
        self._preempted += preempted

    def take(self) -> tuple[tuple[RequestId, ...], tuple[RequestId, ...]]:
        """Ids of the finished and of the preempted, for the plan that is being made."""
        taken = tuple(self._finished), tuple(self._preempted)
        self._finished.clear()
        self._preempted.clear()
        return taken


class Planning:
    """One step until its plan is made."""

    __slots__ = (
        "_manager",
        "_most_encoder_tokens",
        "_new",
        "_no_blocks",
        "_num_encoder_tokens",
        "num_tokens_left",
        "scheduled",
        "step",
    )

    def __init__(self, step: StepInFlight, manager: KVCacheManager, num_tokens: int) -> None:
        self.step = step
        self.num_tokens_left = num_tokens
        #: Encoders have as many tokens again, all that are run together.
        self._most_encoder_tokens = num_tokens
        self._num_encoder_tokens = 0
        self.scheduled: list[ScheduledSequence] = []
        self._manager = manager
        self._new: list[NewSequence] = []
        self._no_blocks: BlockIds = ((),) * len(manager.config.kv_cache_groups)

    def may_encode(self, sequence: Sequence) -> bool:
        """True if its encoder can be run in this step too; one can always."""
        after = self._num_encoder_tokens + sequence.num_encoder_tokens
        return not self._num_encoder_tokens or after <= self._most_encoder_tokens

    def add(self, turn: Turn, new_blocks: KVCacheBlocks | None) -> None:
        """`turn` has its slots: it is in flight from now on."""
        sequence, request = turn.sequence, turn.sequence.request
        request.num_computed_tokens = turn.start + turn.num_tokens
        request.num_in_flight_tokens += turn.num_tokens
        sequence.num_turns_in_flight += 1
        sequence.num_pending_tokens += turn.samples
        sequence.draft_token_ids = ()
        self.step.turns.append(turn)
        if not turn.num_tokens:
            return  # all is there already: it only has to see that the steps before it end
        self.num_tokens_left -= turn.num_tokens
        new_block_ids = self._no_blocks
        if not sequence.on_worker:
            self._introduce(turn)
        elif new_blocks is not None and any(new_blocks.blocks):
            new_block_ids = _as_tuples(new_blocks)
        self.scheduled.append(
            ScheduledSequence(
                request.request_id,
                turn.start,
                turn.num_tokens - len(turn.draft_token_ids),
                turn.samples,
                new_block_ids,
                turn.draft_token_ids,
            )
        )

    def _introduce(self, turn: Turn) -> None:
        sequence, request = turn.sequence, turn.sequence.request
        sequence.on_worker = True
        audio, loaded = sequence.audio, 0
        if audio is not None and turn.start:
            # What is heard is never shared here, so that only a load can come before a first turn.
            loaded, audio = audio.num_tokens, None
        self._num_encoder_tokens += sequence.num_encoder_tokens - loaded
        tables = _as_tuples(self._manager.get_blocks(request.request_id))
        tokens = tuple(request.all_token_ids)
        self._new.append(
            NewSequence(
                request.request_id,
                tokens,
                tables,
                sequence.encoder_token_ids,
                request.num_prompt_tokens,
                sequence.sampling,
                audio,
                loaded,
            )
        )

    def plan(
        self, copies: tuple[BlockCopy, ...], rows: WorkerRows, num_lookahead_tokens: int
    ) -> StepPlan:
        """What the worker is told."""
        step = self.step
        step.block_copies = copies
        step.dropped_rows = finished, preempted = rows.take()
        return StepPlan(
            step.number,
            tuple(self._new),
            tuple(self.scheduled),
            finished,
            preempted,
            copies,
            num_lookahead_tokens,
        )


def _as_tuples(blocks: KVCacheBlocks) -> BlockIds:
    return tuple(tuple(block.block_id for block in group) for group in blocks.blocks)
