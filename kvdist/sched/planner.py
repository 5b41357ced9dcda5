"""Whose turn it is: the running in order of importance, then block owners, then the others.

Owns:   nothing beyond the settings; queues are the roster's, blocks the block manager's.
Knows nothing of: results, what becomes of a plan.
Cost:   O(1) a running decode; an admission costs a lookup.
Source: vLLM's `Scheduler.schedule` (vllm/v1/core/sched/scheduler.py, 0.32).

Whoever runs and needs a block takes it, if need be, from the last of those that run, which the plan
in the making can't name yet.
"""

from collections.abc import Iterator

from kvdist.cache import CacheHit, FullAttentionSpec, KVCacheBlocks
from kvdist.sched.admission import Admission
from kvdist.sched.budget import Chunks, SchedulerConfig
from kvdist.sched.planning import Planning
from kvdist.sched.roles import NoRemoteCache
from kvdist.sched.roster import Roster
from kvdist.sched.sequence import Sequence, SequenceEvent, SequenceStatus
from kvdist.sched.steps import Turn
from kvdist.trace.events import Waits, Why

_WORTHLESS = "what it had was worthless, and no peer reads it any more"


class Planner:
    """Fills the plan of one step."""

    def __init__(self, roster: Roster, settings: SchedulerConfig) -> None:
        config = roster.manager.config
        self.admission = Admission(roster.manager, settings)
        self._chunks = Chunks(config, settings)
        #: Most drafts that a step can verify of one sequence.
        self.max_drafts = min(settings.num_lookahead_tokens, self._chunks.max_drafts)
        self._roster = roster
        self._waiting = roster.waiting
        #: Nothing is ever loaded, so without a place nobody's turn can come.
        self._alone = isinstance(roster.remote_cache, NoRemoteCache)
        self._manager = roster.manager
        self._remote_cache = roster.remote_cache
        self._num_lookahead_tokens = settings.num_lookahead_tokens
        self._max_num_seqs = settings.max_num_seqs
        #: A prompt may be loaded whole: its last token, computed anew, finds all that it reads.
        self._loads_whole = all(
            isinstance(group.kv_cache_spec, FullAttentionSpec) for group in config.kv_cache_groups
        )

    def fill(self, planning: Planning) -> None:
        """All that can run now is in `planning`, and in flight from now on.

        With whom steps fail again and again runs by itself: so only whose fault it is ends with it.
        """
        for request_id in self._remote_cache.take_answered():
            self._waiting.ask_again(request_id)
        if any(self._plan_alone(sequence, planning) for sequence in self._roster.suspects()):
            return
        all_fit = self._plan_running(planning)
        if (all_fit or not planning.scheduled) and self._plan_owners(planning):
            self._plan_others(planning)

    def _plan_alone(self, sequence: Sequence, planning: Planning) -> bool:
        """True if the step is this one's; else it can't run just now, and nothing has changed."""
        if sequence.status is SequenceStatus.RUNNING:
            self._go_on(sequence, planning)
        elif sequence in self._waiting.owners:
            if self._has_place(planning):
                self._run(sequence, planning, None)
        elif sequence in self._waiting.others:
            self._enter(sequence, planning)
        return bool(planning.step.turns)

    # -- the running ---------------------------------------------------------------------------

    def _plan_running(self, planning: Planning) -> bool:
        """True if all got the blocks that they need."""
        all_fit = True
        for sequence in self._roster.running:
            if not planning.num_tokens_left:
                break
            if not sequence.suspect:
                all_fit &= self._go_on(sequence, planning)
        return all_fit

    def _go_on(self, sequence: Sequence, planning: Planning) -> bool:
        """The next turn of one that runs; False if it lacks blocks for it."""
        if sequence.worthless and self._remote_cache.may_preempt(sequence.request):
            self._roster.give_up(sequence, SequenceEvent.RECOMPUTE, reason=_WORTHLESS)
        if sequence.worthless or sequence.status is not SequenceStatus.RUNNING:
            return True
        start = sequence.request.num_computed_tokens
        turn = self._next_turn(sequence, start, planning.num_tokens_left)
        if turn is None or not turn.num_tokens:
            return True
        new_blocks = self._make_room(turn)
        if new_blocks is None:
            return False
        planning.add(turn, new_blocks)
        return True

    def _next_turn(self, sequence: Sequence, start: int, num_tokens: int) -> Turn | None:
        """What the next step computes of it; None if its turn has not come.

        A turn of no tokens is a prefill of which all is there.
        """
        target, drafts = sequence.num_target_tokens, sequence.draft_token_ids
        if not sequence.prefill_only:
            if target >= sequence.max_len:
                return None  # all it may have is on its way
            if sequence.num_pending_tokens and self.max_drafts:
                return None  # drafts come with the result
        end = self._chunks.end(sequence.request, start, target, num_tokens)
        if end == start < target:
            return None
        samples = end == target and not sequence.prefill_only
        if drafts:  # they came with the last known token, which alone is left to compute
            drafts = drafts[: min(num_tokens - 1, sequence.max_len - target - 1)]
        num_tokens = max(0, end - start) + len(drafts)
        return Turn(sequence, sequence.attempt, start, num_tokens, samples, drafts)

    def _allocate(self, turn: Turn, hit: CacheHit | None = None) -> KVCacheBlocks | None:
        sequence = turn.sequence
        lookahead = self._num_lookahead_tokens if turn.samples else 0
        if sequence.hold_whole_prompt and hit is not None:
            lookahead = sequence.num_target_tokens - turn.start - turn.num_tokens
        return self._manager.allocate_slots(
            sequence.request,
            turn.num_tokens,
            hit,
            num_lookahead_tokens=lookahead,
            num_encoder_tokens=sequence.num_encoder_tokens if hit is not None else 0,
        )

    def _make_room(self, turn: Turn) -> KVCacheBlocks | None:
        """Blocks for a running sequence, if need be from the last of those that run."""
        sequence = turn.sequence
        while (new_blocks := self._allocate(turn)) is None:
            self._remote_cache.short_of_blocks()
            victim = self._roster.running.last()
            if self._manager.block_pool.steps.waiting_blocks():
                self._note_wait(sequence, "fence")
                return None  # blocks are on their way: they come when a step is over
            if victim is sequence and sequence.num_turns_in_flight:
                self._note_wait(sequence, "fence")
                return None  # so may its own
            if not self._remote_cache.may_preempt(victim.request):
                self._note_wait(sequence, "reader")
                return None
            self._roster.give_up(victim, SequenceEvent.PREEMPT, by=sequence.request_id)
            if victim is sequence:
                return None
        return new_blocks

    # -- those that wait -----------------------------------------------------------------------

    def _plan_owners(self, planning: Planning) -> bool:
        """Whose load is done goes first. False if one of them lacks blocks: nobody passes it."""
        for sequence in self._waiting.owners:
            if not self._has_place(planning):
                break
            if sequence.suspect:
                continue
            if not self._run(sequence, planning, None):
                return False
        return True

    def _plan_others(self, planning: Planning) -> None:
        """In order; only who waits for a remote cache, or for a place among loads, is passed."""
        for sequence in self._waiting.others:
            if self._alone and not self._has_place(planning):
                return
            if sequence.suspect or not self._enter(sequence, planning):
                return

    def _enter(self, sequence: Sequence, planning: Planning) -> bool:
        """One of the others runs, or loads; False if it lacks room, so that nobody passes it."""
        hit = self._manager.get_computed_blocks(sequence.request)
        num_external_tokens = self._match(sequence, hit)
        if num_external_tokens is None:
            self._note_wait(sequence, "remote")
            return True
        if num_external_tokens:
            if len(self._roster.loads) + len(self._waiting.owners) >= self._max_num_seqs:
                return True
            return self._load(sequence, hit, num_external_tokens)
        return self._has_place(planning) and self._run(sequence, planning, hit)

    def _has_place(self, planning: Planning) -> bool:
        return planning.num_tokens_left > 0 and len(self._roster.running) < self._max_num_seqs

    def _match(self, sequence: Sequence, hit: CacheHit) -> int | None:
        """External tokens to be loaded; None: not known yet, or it has ended for want of them."""
        request, num_local_tokens = sequence.request, hit.num_tokens
        match = self._remote_cache.match(request, num_local_tokens)
        if match.refused:
            event, is_busy = SequenceEvent.ERROR, match.is_busy
            self._roster.end(sequence, event, reason=match.refused, is_busy=is_busy)
            return None
        if num_local_tokens % self._manager.config.scheduler_block_size:
            return 0  # a block can't be copied from here and loaded from there
        if match.pending:
            self._waiting.wait_for_answer(sequence)
            return None
        most = request.num_tokens - (not self._loads_whole) - num_local_tokens
        return max(0, min(match.num_tokens, most))

    def _run(self, sequence: Sequence, planning: Planning, hit: CacheHit | None) -> bool:
        """Let a waiting one run; False, and nothing has changed, if there is no room for it."""
        start = sequence.request.num_computed_tokens if hit is None else hit.num_tokens
        turn = self._next_turn(sequence, start, planning.num_tokens_left)
        if turn is None or not (hit is None or self._may_enter(sequence, hit)):
            return False
        if hit is not None and not planning.may_encode(sequence):
            return False
        new_blocks = None
        if turn.num_tokens or hit is not None:
            new_blocks = self._allocate(turn, hit)
            if new_blocks is None:
                return False
        self._roster.run(sequence)
        planning.add(turn, new_blocks)
        if hit is not None:
            tables = self._roster.tables(sequence)
            self._remote_cache.admitted(sequence.request, tables, hit.num_tokens, 0)
        return True

    def _load(self, sequence: Sequence, hit: CacheHit, num_external_tokens: int) -> bool:
        """Let its K/V come; False, and nothing has changed, if there is no room for it."""
        if not self._may_enter(sequence, hit):
            return False
        new_blocks = self._manager.allocate_slots(
            sequence.request,
            0,
            hit,
            num_external_computed_tokens=num_external_tokens,
            delay_cache_blocks=True,
            num_encoder_tokens=sequence.num_encoder_tokens,
        )
        if new_blocks is None:
            return False
        self._roster.load(sequence)
        self._roster.loads.begin(sequence, hit, num_external_tokens)
        self._roster.stats.num_external_tokens += num_external_tokens
        tables = self._roster.tables(sequence)
        self._remote_cache.admitted(sequence.request, tables, hit.num_tokens, num_external_tokens)
        return True

    def _may_enter(self, sequence: Sequence, hit: CacheHit) -> bool:
        others_own = self._roster.running or self._roster.loads or self._waiting.owners
        watermark = self._manager.config.watermark_blocks if others_own else 0
        fits = self.admission.fits(sequence, hit, self._admitted(), watermark)
        if not fits:
            self._remote_cache.short_of_blocks()
            if self._roster.recorder is not None:
                needed, kept = self.admission.needed(sequence), watermark + self.num_reserved()
                self._note_wait(sequence, "room", needed, kept)
        return fits

    def _note_wait(self, sequence: Sequence, why: Why, needed: int = 0, kept: int = 0) -> None:
        if self._roster.recorder is not None:
            free = self._manager.block_pool.get_num_free_blocks()
            self._roster.recorder.note(Waits(sequence.request_id, why, needed, free, kept))

    def num_reserved(self) -> int:
        """Blocks that those who are admitted still need."""
        return sum(map(self.admission.missing, self._admitted()))

    def _admitted(self) -> Iterator[Sequence]:
        """Those for which blocks are reserved: they have begun, and don't decode yet."""
        yield from self._roster.loads.sequences()
        yield from self._waiting.owners
        for sequence in self._roster.running:
            if sequence.request.num_computed_tokens < sequence.num_target_tokens - 1:
                yield sequence
