"""A scheduler in the hands of a state machine: it plans steps and tells two naive models.

After every allocation the manager's answer is compared with that of `NaiveManager`, block by block,
and what tables lead to with `Shadow`, token by token. Configurations with hits inside a block are
beyond the naive manager (`exact` is False); there the shadow decides alone.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis.stateful import RuleBasedStateMachine

from kvdist.cache import (
    BlockHasher,
    CacheHit,
    ExtraKeys,
    HoldKind,
    KVCacheConfig,
    KVCacheManager,
    Request,
)
from kvdist.errors import UnknownStep
from tests.model.dictionary import Dictionary
from tests.model.listener import Listener
from tests.model.naive_groups import ceil
from tests.model.naive_manager import Hit, NaiveManager, Need
from tests.model.shadow import Shadow

MAX_LIVE, MAX_OPEN_STEPS = 5, 3
#: Prompts are beginnings of these, and a few tokens of their own.
STEMS = ([1] * 40, [1] * 9 + [2] * 31)


@dataclass
class Flight:
    """One planned step of one sequence, until its outcome is known."""

    step: int | None
    start: int
    new: int
    #: Tokens that join the known ones when it ends.
    outputs: tuple[int, ...]
    num_drafts: int
    num_rejected: int


@dataclass
class Sequence:
    request: Request
    state: str = "waiting"  #: waiting, loading, running
    flights: list[Flight] = field(default_factory=list)
    #: (end of the hit, end of what is loaded), while loading.
    load: tuple[int, int] = (0, 0)
    num_encoder: int = 0
    #: The step in which it got its first blocks.
    admitted_in: int = 0

    @property
    def pending(self) -> tuple[int, ...]:
        """Tokens that are sampled, but that the scheduler hasn't seen."""
        return tuple(token for flight in self.flights for token in flight.outputs)


class Scheduler(RuleBasedStateMachine):
    """What it can do; `ManagerMachine` says when."""

    #: The naive manager predicts every block.
    exact: ClassVar[bool] = True

    def begin(self, config: KVCacheConfig, with_steps: bool) -> None:
        self.config = config
        self.manager = KVCacheManager(self.config)
        self.pool = self.manager.block_pool
        self.model = NaiveManager(self.config)
        self.groups = self.model.groups
        self.shadow = Shadow(self.groups)
        self.dictionary = Dictionary(self.config.hash_block_size)
        self.listener = Listener()
        caching = self.config.enable_caching
        self.hasher = BlockHasher(self.config.hash_block_size) if caching else None
        self.sequences: list[Sequence] = []
        self.num_sequences = 0
        self.with_steps = with_steps
        self.step = self.num_plans = 0
        self.open_steps: list[int] = []
        self.failed_steps: set[int] = set()
        #: Blocks that open steps read or write.
        self.busy: dict[int, set[int]] = {}
        self.holds: list[tuple[int, HoldKind]] = []
        self.has_states = any(group.is_state for group in self.groups)
        # vLLM, and so we, may give up an aligned unit too many where a window's run begins at the
        # start, has to drop a block, and hits end at multiples of several blocks.
        self.may_hit_less = bool(self.config.eagle_group_ids) and any(
            group.drops and not group.is_full and group.size < self.config.scheduler_block_size
            for group in self.groups
        )
        self.all_full = all(group.is_full for group in self.groups)

    # -- helpers -------------------------------------------------------------------------------

    def choose(self, number: int, *states: str) -> Sequence | None:
        """One of the sequences in such a state; if there is none one comes, if it fits."""
        among = [s for s in self.sequences if s.state in states]
        if not among and len(self.sequences) < MAX_LIVE:
            stem, length = STEMS[number % 2], 1 + number // 2 % 24
            self.sequences.append(self.new_sequence(stem[:length], ExtraKeys(), number % 9 + 1))
            if "waiting" not in states:
                loads = 4 * (states == ("loading",))
                self.admit_one(self.sequences[-1], number % 30 + 1, loads > 0, external=loads)
            among = [s for s in self.sequences if s.state in states]
        return among[number % len(among)] if among else None

    def new_sequence(
        self, prompt: list[int], keys: ExtraKeys, num_encoder: int, skip_read: bool = False
    ) -> Sequence:
        self.num_sequences += 1
        request = Request(
            f"r{self.num_sequences}",
            prompt[: self.config.max_model_len - 1],
            self.hasher,
            extra_keys=keys if keys.last_position <= len(prompt) else ExtraKeys(),
            skip_reading_prefix_cache=skip_read,
        )
        if self.hasher:
            self.dictionary.learn(request)
        has_encoder = any(group.is_cross for group in self.groups)
        return Sequence(request, num_encoder=num_encoder * has_encoder)

    def tables(self, request: Request) -> list[list[int]]:
        return [list(map(int, table)) for table in self.manager.get_block_ids(request.request_id)]

    @property
    def current_step(self) -> int | None:
        return self.open_steps[-1] if self.open_steps else None

    def plan(self) -> None:
        """Make sure that a step is being planned; two of three are new ones."""
        self.num_plans += 1
        if not self.with_steps and self.num_plans % 3:
            self.open_step(1)
        if self.with_steps and (not self.open_steps or self.open_steps[-1] in self.failed_steps):
            while len(self.open_steps) >= MAX_OPEN_STEPS:
                self.settle_oldest_step()
            self.open_step(1)

    def snapshot(self) -> object:
        """Everything that a refused or illegal call must leave alone."""
        pool = self.pool
        return (
            [(b.ref_cnt, b.block_hash, b.generation, b.group_id, b.step) for b in pool.blocks],
            [block.block_id for block in pool.free_block_queue],
            [(g, key, block.block_id) for g, key, block in pool.cached_blocks()],
            [self.tables(s.request) for s in self.sequences],
            self.manager.ledger(),
            vars(self.manager.stats) if hasattr(self.manager.stats, "__dict__") else None,
            pool.events.next_seq if pool.events is not None else None,
        )

    def refuses(self, error: type[Exception], call: Any, *arguments: Any, **named: Any) -> None:
        before = self.snapshot()
        with pytest.raises(error):
            call(*arguments, **named)
        assert self.snapshot() == before, "a call that raised has changed something"

    def send_back(self, sequence: Sequence) -> None:
        self.give_back(sequence)
        request = sequence.request
        request.num_computed_tokens = request.num_in_flight_tokens = 0
        request.num_preemptions += 1
        sequence.state, sequence.flights = "waiting", []

    def give_back(self, sequence: Sequence) -> None:
        self.manager.free(sequence.request)
        self.model.free(sequence.request)

    # -- admission ------------------------------------------------------------------------------

    def look_up(self, request: Request) -> tuple[CacheHit, Hit]:
        hit = self.manager.get_computed_blocks(request)
        assert 0 <= hit.num_tokens < request.num_tokens, "S9"
        blocks = [list(map(int, ids)) for ids in hit.blocks.get_block_ids()]
        if hit.num_tokens:
            self.shadow.check_readable(request, blocks, hit.num_tokens)
        expected = Hit(hit.num_tokens, blocks)
        if self.exact:
            expected = self.model.lookup(request)
            if self.may_hit_less and hit.num_tokens < expected.tokens:
                assert not hit.num_tokens or self.model.can_resume(request, hit.num_tokens)
                expected = self.model.hit_at(request, hit.num_tokens)
            assert (hit.num_tokens, blocks) == (expected.tokens, expected.blocks)
            assert hit.junction == 0 or hit.junction > hit.num_tokens
        return hit, expected

    def admit_one(
        self,
        sequence: Sequence,
        chunk: int,
        loads: bool,
        *,
        lookahead: int = 0,
        external: int = 0,
        full_sequence: bool = False,
        reserved: int = 0,
        watermark: bool = False,
        bonus: int = 1,
    ) -> None:
        self.plan()
        request = sequence.request
        hit, expected = self.look_up(request)
        known = request.num_tokens
        if any(group.is_cross for group in self.groups):
            external = 0
        loads = loads and external > 0
        external = min(external, known - hit.num_tokens - (0 if loads and self.all_full else 1))
        loads = loads and external > 0
        begin = hit.num_tokens + external
        new = 0 if loads else self.cut(request, begin, min(known, begin + chunk)) - begin
        need = Need(
            new=new,
            hit=expected,
            lookahead=0 if loads else lookahead,
            external=external,
            delay=loads,
            encoder=sequence.num_encoder,
            full_sequence=full_sequence,
            reserved=reserved,
            watermark=watermark,
        )
        if not self.allocate(sequence, need, hit):
            return
        sequence.admitted_in = self.step
        if loads:
            sequence.state, sequence.load = "loading", (hit.num_tokens, begin)
            return
        sequence.state = "running"
        self.shadow.write(
            request, self.tables(request), hit.num_tokens, begin, step=self.current_step
        )
        request.num_computed_tokens = begin
        self.fly(sequence, need, (), bonus)

    # -- running --------------------------------------------------------------------------------

    def advance(
        self,
        sequence: Sequence,
        chunk: int,
        drafts: tuple[int, ...],
        accepted: int,
        lookahead: int,
        reserved: int,
        bonus: int,
    ) -> None:
        request = sequence.request
        begin = request.num_computed_tokens
        available = request.num_tokens + len(sequence.pending)
        if available >= self.config.max_model_len:
            return
        if sequence.flights and (sequence.flights[-1].num_drafts or self.busy_now(sequence)):
            return  # how far it gets is not known yet; or it is in this step already
        end = self.cut(request, begin, min(available, begin + chunk))
        most = self.config.max_model_len - available - 1
        for group in self.groups:
            if group.is_state:  # one scratch state a draft; and no draft beyond the next block
                most = min(most, group.scratch, group.size - 1)
        decodes = end == available == begin + 1 and not sequence.flights
        guesses = drafts[: max(0, most)] if decodes else ()
        need = Need(
            new=end - begin + len(guesses),
            hit=Hit(0, [[] for _ in self.groups]),
            lookahead=lookahead,
            reserved=reserved,
        )
        if self.allocate(sequence, need, None):
            self.fly(sequence, need, guesses, bonus, accepted=accepted)

    def busy_now(self, sequence: Sequence) -> bool:
        return self.with_steps and sequence.flights[-1].step == self.current_step

    def cut(self, request: Request, begin: int, end: int) -> int:
        """Where a chunk ends so that states lie at block ends and at the prompt's reusable end."""
        for group in self.groups:
            if group.is_aligned_state and end - begin > 1:
                last = request.num_tokens // group.size * group.size
                if begin % group.size:
                    end = min(end, ceil(begin, group.size) * group.size)
                elif end >= request.num_tokens:
                    end = last if last > begin else end
                else:
                    end = max(end // group.size * group.size, begin + group.size)
                    end = min(end, request.num_tokens)
                unit = self.config.hash_block_size
                tail = (request.num_prompt_tokens - 1) // unit * unit
                if self.config.use_eagle:
                    tail = request.num_prompt_tokens // unit * unit - unit
                if self.config.enable_partial_hits and begin < tail < end:
                    end = tail
        return end

    def allocate(self, sequence: Sequence, need: Need, hit: CacheHit | None) -> bool:
        """Allocate in the manager and in the model; True if it fitted."""
        request = sequence.request
        if not self.exact:
            total = request.num_computed_tokens + need.hit.tokens + need.external
            processed = max(0, total - request.num_in_flight_tokens)
            self.manager.remove_skipped_blocks(request, processed)
        before, generations = self.snapshot(), [b.generation for b in self.pool.blocks]
        free = self.pool.get_num_free_blocks()
        self.tables_before = self.tables(request) if request.num_computed_tokens else None
        self.idle_before = {block.block_id for block in self.pool.free_block_queue}
        new = self.manager.allocate_slots(
            request,
            need.new,
            hit,
            num_lookahead_tokens=need.lookahead,
            num_external_computed_tokens=need.external,
            delay_cache_blocks=need.delay,
            num_encoder_tokens=need.encoder,
            full_sequence_must_fit=need.full_sequence,
            reserved_blocks=need.reserved,
            apply_watermark=need.watermark,
        )
        if self.exact:
            expected = self.model.allocate(request, need)
            got = None if new is None else [list(map(int, ids)) for ids in new.get_block_ids()]
            assert got == expected
        else:
            self.check_capacity(request, need, free, new is not None)
        if new is None:
            assert self.exact or self.snapshot() == before, "a refusal has changed something"
            return False
        taken = {i for i, b in enumerate(self.pool.blocks) if b.generation > generations[i]}
        in_use = set().union(*self.busy.values(), (block for block, _ in self.holds))
        assert not taken & in_use, "I4: handed out while a step or a hold needs it"
        for copy in self.manager.take_block_copies():
            self.shadow.copy(copy.source, copy.target, self.current_step)
            self.holds += [(copy.source, HoldKind.COPY), (copy.target, HoldKind.COPY)]
        return True

    def check_capacity(self, request: Request, need: Need, free: int, fitted: bool) -> None:
        """Where hits may end inside a block: S12 to within the copies that may be due."""

    def fly(
        self,
        sequence: Sequence,
        need: Need,
        drafts: tuple[int, ...],
        bonus: int,
        *,
        accepted: int = 0,
    ) -> None:
        """Carry the step out in the shadow; without open steps it is over at once."""
        request, tables, step = sequence.request, self.tables(sequence.request), self.current_step
        begin = request.num_computed_tokens
        end = begin + need.new
        guesses = sequence.pending + drafts
        self.shadow.check_readable(request, tables, begin, sequence.pending)
        self.shadow.write(request, tables, begin, end, guesses, step, unverified=len(drafts))
        slots = min(end + need.lookahead, self.config.max_model_len)
        self.shadow.write_garbage(tables, end, slots, step)
        outputs: tuple[int, ...] = ()
        accepted = min(accepted, len(drafts))
        available = request.num_tokens + len(sequence.pending)
        if end - len(drafts) == available < self.config.max_model_len:
            outputs = (*drafts[:accepted], bonus)
        flight = Flight(step, begin, need.new, outputs, len(drafts), len(drafts) - accepted)
        sequence.flights.append(flight)
        request.num_computed_tokens = end
        if self.with_steps:
            assert step is not None
            request.num_in_flight_tokens += need.new
            self.busy[step] |= self.shadow.blocks_of_step(tables, begin, slots)
        else:
            self.land(sequence)

    def land(self, sequence: Sequence) -> None:
        """The oldest step of a sequence is over."""
        request, flight = sequence.request, sequence.flights.pop(0)
        if self.with_steps:
            request.num_in_flight_tokens -= flight.new
        request.append_output_token_ids(list(flight.outputs))
        request.num_computed_tokens -= flight.num_rejected
        if flight.num_drafts:
            self.shadow.accept(
                request, self.tables(request), flight.start, request.num_computed_tokens
            )
        if self.hasher:
            self.dictionary.learn(request)

    # -- steps ----------------------------------------------------------------------------------

    def open_step(self, skip: int) -> None:
        if not self.with_steps:
            self.manager.new_step_starts()
            self.model.start_step(None)
        elif len(self.open_steps) < MAX_OPEN_STEPS:
            self.step += skip
            self.manager.new_step_starts(self.step)
            self.model.start_step(self.step)
            self.open_steps.append(self.step)
            self.busy[self.step] = set()
            self.refuses(UnknownStep, self.manager.new_step_starts, self.step)

    def settle_oldest_step(self) -> None:
        step = self.open_steps.pop(0)
        self.refuses(UnknownStep, self.manager.settle_step, step + 1)
        self.manager.settle_step(step)
        self.model.settle()
        self.shadow.settle(step)
        del self.busy[step]
        for sequence in self.sequences:
            if sequence.flights and sequence.flights[0].step == step:
                self.land(sequence)

    def fail_step(self, step: int) -> None:
        """It and all after it fail: nothing they published may be found (T1)."""
        self.manager.withdraw_step(step)
        self.model.withdraw(step)
        self.shadow.spoil(step)
        self.failed_steps.update(s for s in self.open_steps if s >= step)
        for sequence in self.sequences:
            request = sequence.request
            lost = [f for f in sequence.flights if f.step is not None and f.step >= step]
            if (lost and self.has_states) or (
                sequence.state != "waiting" and sequence.admitted_in >= step
            ):
                self.send_back(sequence)  # its hits, or the state it went on from, are lost too
            elif lost:
                request.num_computed_tokens = lost[0].start
                request.num_in_flight_tokens -= sum(flight.new for flight in lost)
                sequence.flights = sequence.flights[: -len(lost)]
