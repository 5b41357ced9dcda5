"""Which sequences there are, in which queue, and how they leave it.

Owns:   all sequences that have not ended, the queues, what clients are told.
Knows nothing of: budgets, plans, whose turn it is.
Source: the queues of vLLM's scheduler (vllm/v1/core/sched/scheduler.py, 0.32).

    waiting.others --> running --> ended
        ^  |  ^           |
        |  v  +-----------+ preempted, or to be computed anew
     loading --> waiting.owners --> running
"""

from dataclasses import dataclass
from typing import Final, Literal

from kvdist.cache import KVCacheManager, MambaSpec
from kvdist.ids import BlockId, RequestId
from kvdist.sched.loads import Loads
from kvdist.sched.output import Outputs
from kvdist.sched.planning import WorkerRows
from kvdist.sched.roles import RemoteCache
from kvdist.sched.sampling import TokenLogprobs
from kvdist.sched.sequence import Sequence, SequenceEvent, SequenceStatus
from kvdist.sched.waiting import InOrder, WaitingQueue
from kvdist.trace.events import Arrived, Ended, GaveUp, Loaded, LoadFailed
from kvdist.trace.recorder import Recorder

_SPOILT: Final = "what it had found here was withdrawn while the rest was on its way"


@dataclass(slots=True)
class SchedulerStats:
    """Counts since the start."""

    num_preemptions: int = 0
    #: Sequences computed anew, since a step failed or its output broke the worker's contract.
    num_recomputed: int = 0
    num_failed_steps: int = 0
    #: Tokens that loads were admitted for, each admission once.
    num_external_tokens: int = 0
    #: Sampled tokens of steps that were overtaken, dropped.
    num_stale_outputs: int = 0
    #: Answers that were none to their question.
    num_malformed_outputs: int = 0
    #: Results and events that are late, doubled, or for nobody, dropped.
    num_unknown_messages: int = 0


class Roster:
    """Every move of a sequence from one queue to another, with all that goes with it."""

    def __init__(
        self,
        manager: KVCacheManager,
        remote_cache: RemoteCache,
        max_failed_steps: int,
        recorder: Recorder | None = None,
    ) -> None:
        self.manager = manager
        self.remote_cache = remote_cache
        #: All that have not ended, by id.
        self.sequences: dict[RequestId, Sequence] = {}
        self.running = InOrder()
        self.waiting = WaitingQueue()
        self.loads = Loads(manager)
        self.rows = WorkerRows()
        self.outputs = Outputs()
        self.stats = SchedulerStats()
        #: Who hears what happens, if anybody.
        self.recorder = recorder
        self._max_failed_steps = max_failed_steps
        #: With whom steps have failed again; some of them may not be suspect any more.
        self._suspects: list[Sequence] = []
        self._has_states = any(
            isinstance(group.kv_cache_spec, MambaSpec) for group in manager.config.kv_cache_groups
        )

    def suspects(self) -> list[Sequence]:
        """Those to be run by themselves, in order of arrival."""
        if not self._suspects:
            return []
        self._suspects = [s for s in self._suspects if s.suspect and not s.status.finished]
        return list(self._suspects)

    # -- in ------------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """A new one waits."""
        if self.recorder is not None:
            self.recorder.note(
                Arrived(
                    sequence.request_id,
                    sequence.request.num_prompt_tokens,
                    sequence.max_len,
                    sequence.priority,
                    len(self.running),
                    len(self.waiting),
                )
            )
        self.sequences[sequence.request_id] = sequence
        self.waiting.others.add(sequence)

    def run(self, sequence: Sequence) -> None:
        """A waiting one has its first slots."""
        self.waiting.remove(sequence)
        sequence.on(SequenceEvent.RUN)
        self.running.add(sequence)

    def load(self, sequence: Sequence) -> None:
        """A waiting one has its blocks, bytes will land in them."""
        self.waiting.remove(sequence)
        sequence.on(SequenceEvent.LOAD)

    # -- bytes have moved ----------------------------------------------------------------------

    def loaded(self, request_id: RequestId) -> bool:
        """Its bytes are there: it waits as a block owner. False for an unknown load."""
        load = self.loads.loaded(request_id)
        if load is None:
            return False
        sequence = load.sequence
        if self.recorder is not None:
            self.recorder.note(Loaded(request_id, load.num_tokens))
        if sequence.status.finished:
            self._free(sequence)
        elif load.spoilt:
            self._note_given_up(sequence, SequenceEvent.RECOMPUTE, reason=_SPOILT)
            self._wait_again(sequence, SequenceEvent.RECOMPUTE)
        else:
            sequence.request.num_computed_tokens = load.num_tokens
            sequence.on(SequenceEvent.LOADED)
            self.waiting.owners.add(sequence)
        return True

    def load_failed(
        self, request_id: RequestId, reason: str, *, again: bool, is_busy: bool = False
    ) -> bool:
        """Its bytes are worthless: it waits again, or ends. False for an unknown load."""
        load = self.loads.failed(request_id)
        if load is None:
            return False
        sequence = load.sequence
        if self.recorder is not None:
            self.recorder.note(LoadFailed(request_id, reason, again))
        if sequence.status.finished:
            self._free(sequence)
        elif again:
            self._wait_again(sequence, SequenceEvent.LOAD_FAILED)
        else:
            self.end(sequence, SequenceEvent.ERROR, reason=reason, is_busy=is_busy)
        return True

    # -- out -----------------------------------------------------------------------------------

    def recompute(self, sequence: Sequence, why: str) -> None:
        """What it has is worthless: anew, unless that has happened too often."""
        if sequence.suspect and sequence not in self._suspects:
            self._suspects.append(sequence)
        if sequence.num_failures > self._max_failed_steps:
            self.end(sequence, SequenceEvent.ERROR, reason="its steps failed again and again")
        elif sequence.status is SequenceStatus.RUNNING and not self.remote_cache.may_preempt(
            sequence.request
        ):
            sequence.worthless = True
            sequence.num_settled_tokens = 0
            sequence.attempt += 1  # what is in flight is stale, whoever still reads its blocks
        else:
            self.give_up(sequence, SequenceEvent.RECOMPUTE, reason=why)

    def give_up(
        self, sequence: Sequence, event: SequenceEvent, *, by: RequestId = "", reason: str = ""
    ) -> None:
        """Its blocks go, it waits in its old place to be computed anew."""
        self._note_given_up(sequence, event, by, reason)
        running = sequence.status is SequenceStatus.RUNNING
        (self.running if running else self.waiting.owners).remove(sequence)
        self._wait_again(sequence, event)
        sequence.request.num_preemptions += 1
        if event is SequenceEvent.PREEMPT:
            self.stats.num_preemptions += 1
        else:
            self.stats.num_recomputed += 1

    def end(
        self,
        sequence: Sequence,
        event: SequenceEvent,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprobs, ...] = (),
        reason: str = "",
        *,
        is_busy: bool = False,
    ) -> None:
        """The remote cache hears it first, then its blocks go, unless bytes still land there."""
        before = sequence.status
        sequence.on(event)
        if self.recorder is not None:
            num_output = sequence.request.num_tokens - sequence.request.num_prompt_tokens
            status = sequence.status.name.removeprefix("FINISHED_").lower()
            self.recorder.note(Ended(sequence.request_id, status, num_output, reason))
        del self.sequences[sequence.request_id]
        if before is SequenceStatus.RUNNING:
            self.running.remove(sequence)
        elif before is not SequenceStatus.LOADING:
            self.waiting.remove(sequence)
        tables = self.tables(sequence)
        lent = self.remote_cache.finished(
            sequence.request,
            tables,
            self._num_lendable(sequence),
            is_usable=sequence.status is SequenceStatus.FINISHED_PREFILLED,
        )
        self.loads.lend(lent)
        if sequence.request_id not in self.loads:
            self._free(sequence)
        self.outputs.add(sequence, token_ids, logprobs, reason, is_busy=is_busy)

    def _num_lendable(self, sequence: Sequence) -> int:
        """Tokens whose K/V are in its blocks and stay so.

        A state moves on: with steps in flight, and with drafts that were right but come after the
        end.
        """
        num_settled = sequence.num_settled_tokens
        overtaken = self._has_states and sequence.request.num_computed_tokens != num_settled
        return 0 if overtaken else num_settled

    def _note_given_up(
        self, sequence: Sequence, event: SequenceEvent, by: RequestId = "", reason: str = ""
    ) -> None:
        if self.recorder is not None:
            preempted = event is SequenceEvent.PREEMPT
            how: Literal["preempt", "recompute"] = "preempt" if preempted else "recompute"
            self.recorder.note(GaveUp(sequence.request_id, how, by, reason))

    def _wait_again(self, sequence: Sequence, event: SequenceEvent) -> None:
        sequence.on(event)
        self._free(sequence)
        self.waiting.others.add(sequence)

    def _free(self, sequence: Sequence) -> None:
        self.manager.free(sequence.request)
        self.rows.drop(sequence)
        sequence.forget_progress()

    def tables(self, sequence: Sequence) -> tuple[list[BlockId], ...]:
        """Its block ids, `[group][block]`; empty if it owns none."""
        return self.manager.get_block_ids(sequence.request_id)
