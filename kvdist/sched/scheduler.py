"""Continuous batching: who runs in the next step, and what is true after it.

Owns:   the steps in flight, and which part of the scheduler does what.
Knows nothing of: bytes, devices, clocks; who the remote cache is.
Cost:   O(1) a running decode and step; an admission costs a lookup.
Source: vLLM's scheduler (vllm/v1/core/sched/scheduler.py, 0.32): running ones first, then waiting
        ones in order, block owners before others; preemption by recompute.

    add --> waiting --> running --> ended        schedule() plans a step, or says None
             ^   |        |                      settle(result) when it is over
             |   v        | preempted            moved(event) when bytes have moved
             +- loading <-+
"""

from collections.abc import Mapping, Sequence as Listing

from kvdist import check
from kvdist.cache import (
    BlockHasher,
    CrossAttentionSpec,
    ExtraKeys,
    KVCacheManager,
    Request,
)
from kvdist.connector.host import BlocksReturned, Loaded, LoadFailed, LoadQuiet, Moved
from kvdist.errors import InvalidRequest, InvariantViolation, RequestTooLarge
from kvdist.ids import RequestId
from kvdist.sched.audio import Audio
from kvdist.sched.budget import SchedulerConfig
from kvdist.sched.outcome import read_outcome
from kvdist.sched.output import Output
from kvdist.sched.plan import SampledTokens, StepPlan, StepResult
from kvdist.sched.planner import Planner
from kvdist.sched.planning import Planning
from kvdist.sched.roles import NoRemoteCache, RemoteCache
from kvdist.sched.roster import Roster
from kvdist.sched.sequence import SamplingParams, Sequence, SequenceEvent
from kvdist.sched.steps import StepInFlight, StepsInFlight, Turn
from kvdist.sched.table_checksum import table_checksum
from kvdist.sched.tracing import note_plan
from kvdist.trace.events import Told
from kvdist.trace.recorder import Recorder

_DEFAULT_PARAMS = SamplingParams()
_NO_KEYS = ExtraKeys()


class Scheduler:
    """Scheduler of one node. Client names may repeat; the ids of sequences never do.

    >>> from kvdist.cache import FullAttentionSpec, KVCacheConfig
    >>> config = KVCacheConfig.single(FullAttentionSpec(block_size=4), num_blocks=11)
    >>> scheduler = Scheduler(KVCacheManager(config))
    >>> (sequence,) = scheduler.add("mine", [7] * 6, SamplingParams(max_new_tokens=1))
    >>> plan = scheduler.schedule()
    >>> plan.new_sequences[0].block_ids, plan.scheduled[0].num_tokens
    (((1, 2),), 6)
    >>> (output,) = scheduler.settle(StepResult(1, {sequence.request_id: SampledTokens((8,))}))
    >>> output.token_ids, output.status.name
    ((8,), 'FINISHED_LENGTH')
    """

    def __init__(
        self,
        manager: KVCacheManager,
        settings: SchedulerConfig | None = None,
        remote_cache: RemoteCache | None = None,
        hasher: BlockHasher | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        config = manager.config
        self.manager = manager
        self.settings = settings or SchedulerConfig()
        self.remote_cache = remote_cache or NoRemoteCache()
        self.roster = Roster(manager, self.remote_cache, self.settings.max_failed_steps, recorder)
        self.stats = self.roster.stats
        self.steps = StepsInFlight()
        self._planner = Planner(self.roster, self.settings)
        self._hasher = hasher or (
            BlockHasher(config.hash_block_size) if config.enable_caching else None
        )
        #: Of encoders that make as many of any input: their tokens.
        self._encoders = [
            spec.num_encoder_tokens
            for group in config.kv_cache_groups
            if isinstance(spec := group.kv_cache_spec, CrossAttentionSpec)
            and spec.num_encoder_tokens
        ]
        self._num_sequences = 0
        self._recorder = recorder

    # -- sequences come and go -----------------------------------------------------------------

    def add(
        self,
        name: str,
        prompt_token_ids: Listing[int],
        params: SamplingParams = _DEFAULT_PARAMS,
        *,
        priority: int = 0,
        prefill_only: bool = False,
        hold_whole_prompt: bool = False,
        extra_keys: ExtraKeys = _NO_KEYS,
        encoder_token_ids: tuple[int, ...] = (),
        audio: Audio | None = None,
        kv_transfer_params: Mapping[str, object] | None = None,
        skip_reading_prefix_cache: bool = False,
    ) -> tuple[Sequence, ...]:
        """`params.n` sequences with this prompt wait. `name` is part of their ids, no more.

        Raises: InvalidRequest; RequestTooLarge if it could never end; WrongRole. Nothing has
        changed then.
        """
        if type(priority) is not int:
            raise InvalidRequest(f"priority {priority!r} is not a whole number")
        if prefill_only and params.n > 1:
            raise InvalidRequest(f"request {name}: a prefill samples nothing, and is for one")
        if audio is not None:
            extra_keys = audio.keys(extra_keys)
        sequences = []
        for i in range(1, params.n + 1):
            number = self._num_sequences + i
            request = Request(
                f"{name}-{number}",
                prompt_token_ids,
                self._hasher,
                extra_keys=extra_keys,
                skip_reading_prefix_cache=skip_reading_prefix_cache,
            )
            sequence = Sequence(
                request,
                max_len=self._max_len(request, params, prefill_only),
                arrival=number,
                stop_token_ids=params.stop_token_ids,
                priority=priority,
                order=(priority if self.settings.policy == "priority" else 0, number),
                prefill_only=prefill_only,
                hold_whole_prompt=hold_whole_prompt,
                encoder_token_ids=encoder_token_ids,
                audio=audio,
                sampling=params.sampling.of_sample(i - 1),
            )
            self._check_size(sequence)
            sequences.append(sequence)
        self._num_sequences += params.n
        for sequence in sequences:
            self.remote_cache.arrived(
                sequence.request, kv_transfer_params, prefill_only=prefill_only
            )
            self.roster.add(sequence)
            if prefill_only and not sequence.num_target_tokens:
                self.roster.end(sequence, SequenceEvent.PREFILLED)
        return tuple(sequences)

    def abort(self, request_id: RequestId, why: str = "") -> bool:
        """It ends now, whatever it was doing. False if there is none of that id, or not any more.

        Blocks in which bytes are landing stay held until they have; those of a running step too.
        """
        sequence = self.roster.sequences.get(request_id)
        if sequence is None:
            return False
        self.roster.end(sequence, SequenceEvent.ABORT, reason=why)
        return True

    def take_outputs(self) -> list[Output]:
        """All news since the last call of this or of `settle`, `fail_step`, `moved`."""
        return self.roster.outputs.take()

    @property
    def longest_blocks(self) -> int:
        """Blocks that one longest sequence can need."""
        return self._planner.admission.longest

    @property
    def reserved_blocks(self) -> int:
        """Blocks that those who are admitted still need."""
        return self._planner.num_reserved()

    @property
    def idle(self) -> bool:
        """True if nothing is left: no sequence, no step, no load."""
        return not (self.roster.sequences or self.steps or self.roster.loads)

    def _max_len(self, request: Request, params: SamplingParams, prefill_only: bool) -> int:
        longest, num_prompt = self.manager.config.max_model_len, request.num_prompt_tokens
        if num_prompt + (not prefill_only) > longest:
            raise RequestTooLarge(
                f"request {request.request_id}: {num_prompt} tokens, sequences have {longest}"
            )
        return num_prompt if prefill_only else min(num_prompt + params.max_new_tokens, longest)

    def _check_size(self, sequence: Sequence) -> None:
        settings, name = self.settings, sequence.request_id
        if any(made != sequence.num_encoder_tokens for made in self._encoders):
            raise InvalidRequest(
                f"request {name}: {sequence.num_encoder_tokens} tokens of an encoder, and the "
                f"model's makes {self._encoders[0]}"
            )
        if not self._planner.admission.fits_alone(sequence):
            raise RequestTooLarge(f"request {name}: {sequence.max_len} tokens don't fit the pool")
        most = settings.max_num_batched_tokens
        if not settings.enable_chunked_prefill and sequence.max_len > most:
            raise RequestTooLarge(
                f"request {name}: {sequence.max_len} tokens, a step without chunks has {most}"
            )

    # -- planning ------------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """The next step; None if all that could run waits for a step or for bytes."""
        roster = self.roster
        while roster.running or roster.waiting:
            if self.steps.num_running >= self.settings.max_steps_in_flight:
                return None
            step = self.steps.open()
            self.manager.new_step_starts(step.number)
            planning = Planning(step, self.manager, self.settings.max_num_batched_tokens)
            self._planner.fill(planning)
            copies = tuple(self.manager.take_block_copies())
            if check.level == 2:
                step.table_checksum = self._table_checksum(planning)
            if planning.scheduled or copies:
                plan = planning.plan(copies, roster.rows, self.settings.num_lookahead_tokens)
                if self._recorder is not None:
                    note_plan(self._recorder, plan, self.manager)
                return plan
            step.result = StepResult(step.number)
            self._settle_what_is_over()
            if self.steps or not step.turns:
                return None
            # Some ended with nothing to compute, and left their place to others.
        return None

    def _table_checksum(self, planning: Planning) -> int:
        specs = [group.kv_cache_spec for group in self.manager.config.kv_cache_groups]
        return table_checksum(specs, planning.scheduled, self.manager.get_block_ids)

    # -- a step is over ------------------------------------------------------------------------

    def settle(self, result: StepResult) -> list[Output]:
        """Step `result.step` is over, all its writes are done; returns the news.

        Raises: InvariantViolation if the worker used other blocks than it was told (check level 2).
        """
        step = self.steps.find(result.step)
        if step is None:
            self.stats.num_unknown_messages += 1
        else:
            said, planned = result.table_checksum, step.table_checksum
            if said is not None and planned is not None and said != planned:
                raise InvariantViolation(
                    f"step {result.step}: the worker's block tables are not the node's (I5)"
                )
            step.result = result
            self._settle_what_is_over()
        return self.roster.outputs.take()

    def fail_step(self, number: int) -> list[Output]:
        """Step `number` is over and did not do what it was to do; returns the news.

        What it and all after it published is withdrawn, and whoever took part or adopted something
        of it is computed anew. Steps after it have to be settled, or fail, as well.
        """
        step = self.steps.find(number)
        if step is None:
            self.stats.num_unknown_messages += 1
            return self.roster.outputs.take()
        step.result = StepResult(number)
        if not step.failed:  # else a step before it has failed, and all is done
            self._withdraw(step)
        self._settle_what_is_over()
        return self.roster.outputs.take()

    def _withdraw(self, failed: StepInFlight) -> None:
        self.stats.num_failed_steps += 1
        withdrawn = set(self.manager.withdraw_step(failed.number))
        self.roster.loads.spoil(withdrawn)
        concerned = {turn.sequence: None for turn in failed.turns if not turn.stale}
        for turn in failed.turns:
            if not turn.stale:
                turn.sequence.note_failure(turn.start + turn.num_tokens)
        for step in self.steps.since(failed.number):
            if not step.failed:
                step.failed = True
                self.roster.rows.drop_again(step)
                concerned |= {turn.sequence: None for turn in step.turns if not turn.stale}
        for sequence in self.roster.waiting.owners:  # those that run were admitted by such a step
            if any(not withdrawn.isdisjoint(table) for table in self.roster.tables(sequence)):
                concerned[sequence] = None
        for sequence in concerned:
            self.roster.recompute(sequence, f"step {failed.number} failed")

    def _settle_what_is_over(self) -> None:
        while step := self.steps.pop_over():
            assert step.result is not None
            self.manager.settle_step(step.number)
            if step.block_copies:
                self.manager.release_block_copies(step.block_copies)
            if step.failed:
                continue
            for turn in step.turns:
                self._settle_turn(turn, step.result.sampled.get(turn.sequence.request_id))

    def _settle_turn(self, turn: Turn, sampled: SampledTokens | None) -> None:
        sequence, request = turn.sequence, turn.sequence.request
        if turn.stale:
            self.stats.num_stale_outputs += turn.samples
            return
        sequence.num_turns_in_flight -= 1
        sequence.num_pending_tokens -= turn.samples
        request.num_in_flight_tokens -= turn.num_tokens
        outcome = read_outcome(turn, sampled, self._planner.max_drafts)
        if outcome is None:
            self.stats.num_malformed_outputs += 1
            sequence.note_failure(turn.start + turn.num_tokens)
            self.roster.recompute(sequence, "the worker's answer was none to its question")
            return
        sequence.note_success(turn.start + turn.num_tokens - outcome.num_rejected)
        request.num_computed_tokens -= outcome.num_rejected
        if outcome.token_ids:
            if self._recorder is not None and request.num_tokens == request.num_prompt_tokens:
                self._recorder.note(Told(request.request_id))
            request.append_output_token_ids(outcome.token_ids)
        sequence.draft_token_ids = outcome.draft_token_ids
        num_written = turn.start + turn.num_tokens - outcome.num_rejected
        sequence.num_settled_tokens = min(num_written, request.num_tokens)
        self.remote_cache.settled(request, sequence.num_settled_tokens)
        if outcome.event is not None:
            self.roster.end(sequence, outcome.event, outcome.token_ids, outcome.logprobs)
        elif outcome.token_ids:
            self.roster.outputs.add(sequence, outcome.token_ids, outcome.logprobs)

    # -- bytes have moved ----------------------------------------------------------------------

    def moved(self, event: Moved) -> list[Output]:
        """What the remote cache has to tell; returns the news."""
        match event:
            case Loaded(request_id):
                known = self.roster.loaded(request_id)
            case LoadFailed(request_id, reason, again, is_busy):
                known = self.roster.load_failed(request_id, reason, again=again, is_busy=is_busy)
            case LoadQuiet(_, block_ids):
                known = self.roster.loads.quiet(block_ids)
            case BlocksReturned(_, block_ids):
                known = self.roster.loads.returned(block_ids)
        self.stats.num_unknown_messages += not known
        return self.roster.outputs.take()
