"""A scheduler that does everything a scheduler may do, at random, against the naive models.

After every operation the manager is compared with `NaiveManager` block by block, and what tables
and keys lead to with `Shadow` token by token. Configurations with hits inside a block are beyond
the naive manager; there the shadow alone decides, and capacity is checked within one block.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvdist.cache import (
    BlockHasher,
    CacheHit,
    ExtraKeys,
    HoldKind,
    KVCacheConfig,
    KVCacheManager,
    LoRAKey,
    MultiModalItem,
    Request,
)
from kvdist.errors import (
    DoubleFree,
    ForeignBlock,
    IllegalAllocation,
    LocalMisuse,
    StaleHit,
    UnknownRequest,
    UnknownStep,
)
from tests.model.dictionary import Dictionary
from tests.model.listener import Listener
from tests.model.naive_groups import ceil
from tests.model.naive_manager import Hit, NaiveManager, Need
from tests.model.shadow import Shadow

MAX_LIVE, MAX_OPEN_STEPS = 5, 3
#: Prompts are beginnings of these, and a few tokens of their own.
STEMS = ([1] * 40, [1] * 9 + [2] * 31)
KEYS = (
    *[ExtraKeys()] * 6,
    ExtraKeys(cache_salt="a"),
    ExtraKeys(lora=LoRAKey("a")),
    ExtraKeys(lora=LoRAKey("a", "elsewhere")),
    ExtraKeys(mm_items=(MultiModalItem("cat", 1, 2),)),
    ExtraKeys(mm_items=(MultiModalItem("cat", 2, 2),)),
    ExtraKeys(mm_items=(MultiModalItem("dog", 1, 2),)),
)
CALLER_KINDS = [HoldKind.LEASE, HoldKind.PULL, HoldKind.QUARANTINE]

pick = st.integers(0, 1 << 10)
often_zero = st.sampled_from([0, 0, 0, 1, 2, 5])
rarely = st.sampled_from([False] * 7 + [True])


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


class ManagerMachine(RuleBasedStateMachine):
    """Subclasses say which configurations they try."""

    configs: ClassVar[st.SearchStrategy[KVCacheConfig]]
    #: The naive manager predicts every block.
    exact: ClassVar[bool] = True

    @initialize(data=st.data(), with_steps=st.booleans())
    def start(self, data: Any, with_steps: bool) -> None:
        self.config: KVCacheConfig = data.draw(self.configs)
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
            self.next_step(1)
        if self.with_steps and (not self.open_steps or self.open_steps[-1] in self.failed_steps):
            while len(self.open_steps) >= MAX_OPEN_STEPS:
                self.settle_step()
            self.next_step(1)

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

    # -- requests come and go ------------------------------------------------------------------

    @rule(
        prompts=st.lists(
            st.tuples(
                st.sampled_from(STEMS), st.integers(1, 24), st.lists(st.integers(1, 2), max_size=2)
            ),
            min_size=1,
            max_size=3,
        ),
        keys=st.sampled_from(KEYS),
        skip_read=rarely,
        num_encoder=st.integers(1, 9),
    )
    @precondition(lambda self: len(self.sequences) < MAX_LIVE)
    def arrive(
        self,
        prompts: list[tuple[list[int], int, list[int]]],
        keys: ExtraKeys,
        skip_read: bool,
        num_encoder: int,
    ) -> None:
        for stem, length, own in prompts:
            sequence = self.new_sequence(stem[:length] + own, keys, num_encoder, skip_read)
            self.sequences.append(sequence)

    @rule(number=pick)
    def finish(self, number: int) -> None:
        """Finished or aborted, at any moment; freeing it once more does nothing."""
        if sequence := self.choose(number, "loading", "running", "waiting"):
            self.sequences.remove(sequence)
            self.give_back(sequence)
            self.manager.free(sequence.request)

    @rule(number=pick)
    def preempt(self, number: int) -> None:
        if sequence := self.choose(number, "running"):
            self.send_back(sequence)

    def send_back(self, sequence: Sequence) -> None:
        self.give_back(sequence)
        request = sequence.request
        request.num_computed_tokens = request.num_in_flight_tokens = 0
        request.num_preemptions += 1
        sequence.state, sequence.flights = "waiting", []

    def give_back(self, sequence: Sequence) -> None:
        self.manager.free(sequence.request)
        self.model.free(sequence.request)

    # -- admission -----------------------------------------------------------------------------

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

    @rule(number=pick)
    def only_look_up(self, number: int) -> None:
        if sequence := self.choose(number, "waiting", "running"):
            before = self.snapshot()
            junction = sequence.request.shared_prefix_boundary
            self.look_up(sequence.request)
            assert self.snapshot() == before
            if sequence.state == "running":
                sequence.request.shared_prefix_boundary = junction

    @rule(
        number=pick,
        chunk=st.integers(1, 30),
        lookahead=often_zero,
        external=often_zero,
        loads=st.booleans(),
        full_sequence=rarely,
        reserved=often_zero,
        watermark=st.booleans(),
        bonus=st.integers(0, 2),
    )
    def admit(self, number: int, chunk: int, loads: bool, **more: Any) -> None:
        """Look up and allocate; with external tokens, computed on at once or loaded first."""
        if sequence := self.choose(number, "waiting"):
            self.admit_one(sequence, chunk, loads, **more)

    @rule(chunks=st.lists(st.integers(1, 30), min_size=1, max_size=MAX_LIVE))
    def admit_all(self, chunks: list[int]) -> None:
        for sequence, chunk in zip(self.sequences, chunks, strict=False):
            if sequence.state == "waiting":
                self.admit_one(sequence, chunk, False)

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
        if self.has_states or any(group.is_cross for group in self.groups):
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

    @rule(number=pick, chunk=st.integers(1, 30), evict=st.lists(pick, min_size=1, max_size=3))
    def admit_with_a_hit_that_is_gone(self, number: int, chunk: int, evict: list[int]) -> None:
        self.plan()
        sequence = self.choose(number, "waiting")
        if sequence is None:
            return
        request = sequence.request
        hit, before = self.look_up(request)
        self.evict(evict)
        _, after = self.look_up(request)
        if (before.tokens, before.blocks) != (after.tokens, after.blocks):
            self.refuses(StaleHit, self.manager.allocate_slots, request, chunk, hit)

    # -- running -------------------------------------------------------------------------------

    @rule(
        number=pick,
        chunk=st.integers(1, 30),
        drafts=st.lists(st.integers(0, 2), max_size=3),
        accepted=st.integers(0, 3),
        lookahead=often_zero,
        reserved=often_zero,
        bonus=st.integers(0, 2),
    )
    def run(
        self,
        number: int,
        chunk: int,
        drafts: list[int],
        accepted: int,
        lookahead: int,
        reserved: int,
        bonus: int,
    ) -> None:
        """The next chunk or token of a running sequence, perhaps with drafts behind it."""
        self.plan()
        if sequence := self.choose(number, "running"):
            self.advance(sequence, chunk, tuple(drafts), accepted, lookahead, reserved, bonus)

    @rule(times=st.integers(1, 8), bonus=st.integers(0, 2), settle=st.booleans())
    def run_all(self, times: int, bonus: int, settle: bool) -> None:
        """What a scheduler does most of the time: all that run go on, a step after the other."""
        for _ in range(times):
            self.next_step(1)
            self.plan()
            for sequence in self.sequences:
                if sequence.state == "running":
                    self.advance(sequence, 4, (), 0, 0, 0, bonus)
            if self.open_steps and (settle or len(self.open_steps) >= MAX_OPEN_STEPS):
                self.settle_step()

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

    # -- external tokens -----------------------------------------------------------------------

    @rule(number=pick, missing=often_zero)
    def load_ends(self, number: int, missing: int) -> None:
        """The bytes have arrived, perhaps not all: what has arrived is published (S15)."""
        sequence = self.choose(number, "loading")
        if sequence is None:
            return
        request, (begin, end) = sequence.request, sequence.load
        arrived = max(begin, end - missing)
        self.shadow.write(request, self.tables(request), begin, arrived)
        self.manager.cache_blocks(request, arrived)
        self.model.publish(request, arrived)
        request.num_computed_tokens = min(arrived, request.num_tokens - 1)
        sequence.state = "running"
        if arrived < end and not self.all_full:
            self.send_back(sequence)  # windows have given up what it would have to read

    # -- steps ---------------------------------------------------------------------------------

    @rule(skip=st.integers(1, 3))
    def next_step(self, skip: int) -> None:
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

    @rule()
    @precondition(lambda self: self.open_steps)
    def settle_step(self) -> None:
        step = self.open_steps.pop(0)
        self.refuses(UnknownStep, self.manager.settle_step, step + 1)
        self.manager.settle_step(step)
        self.model.settle()
        self.shadow.settle(step)
        del self.busy[step]
        for sequence in self.sequences:
            if sequence.flights and sequence.flights[0].step == step:
                self.land(sequence)

    @rule(number=pick)
    @precondition(lambda self: self.open_steps)
    def step_fails(self, number: int) -> None:
        self.fail_step(self.open_steps[number % len(self.open_steps)])

    @rule(number=pick, chunk=st.integers(1, 30), bonus=st.integers(0, 2))
    @precondition(lambda self: self.with_steps)
    def step_is_done_again(self, number: int, chunk: int, bonus: int) -> None:
        """What a failed step was to do, the next one does."""
        self.choose(number, "running")
        while self.open_steps:
            self.settle_step()
        for fails in (True, False):
            self.plan()
            for sequence in self.sequences:
                if sequence.state == "running":
                    self.advance(sequence, chunk, (), 0, 0, 0, bonus)
            if fails:
                self.fail_step(self.open_steps[-1])

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

    # -- the cache as a whole ------------------------------------------------------------------

    @rule(numbers=st.lists(pick, min_size=1, max_size=3))
    def evict(self, numbers: list[int]) -> None:
        """Mostly blocks that can be found."""
        found = sorted({block.block_id for _, _, block in self.pool.cached_blocks()})
        blocks = [int(found[number % len(found)]) if found else 0 for number in numbers]
        self.manager.evict_blocks(blocks)
        for block in blocks:
            self.model.pool.forget(block)

    @rule()
    def reset(self) -> None:
        done = self.manager.reset_prefix_cache()
        assert done == (self.manager.ledger().free == self.config.num_blocks - 1)
        if self.exact:
            assert self.model.pool.reset() == done

    @rule(numbers=st.lists(pick, min_size=1, max_size=3), kind=st.sampled_from(CALLER_KINDS))
    @precondition(lambda self: len(self.holds) < 4)
    def hold(self, numbers: list[int], kind: HoldKind) -> None:
        blocks = [number % self.config.num_blocks for number in numbers]
        self.manager.hold_blocks(blocks, kind)
        self.model.pool.hold(blocks, kind.name.lower()) if self.exact else None
        self.holds += [(block, kind) for block in blocks if block]

    @rule(number=pick, new_kind=st.sampled_from(CALLER_KINDS), change=st.booleans())
    def end_hold(self, number: int, new_kind: HoldKind, change: bool) -> None:
        mine = [hold for hold in self.holds if hold[1] in CALLER_KINDS]
        if not mine:
            return
        block, kind = mine[number % len(mine)]
        self.holds.remove((block, kind))
        if change:
            self.manager.change_hold([block], kind, new_kind)
            self.holds.append((block, new_kind))
            self.model.pool.holds.append((block, new_kind.name.lower()))
            if self.exact:
                self.model.pool.holds.remove((block, kind.name.lower()))
            return
        self.manager.end_hold([block], kind)
        if self.exact:
            self.model.pool.end_hold([block], kind.name.lower())

    @rule()
    def release_copies(self) -> None:
        self.manager.release_block_copies()
        self.holds = [hold for hold in self.holds if hold[1] is not HoldKind.COPY]

    @rule(number=pick)
    def misuse(self, number: int) -> None:
        manager, size = self.manager, self.config.num_blocks
        self.refuses(ForeignBlock, manager.evict_blocks, [0, size])
        self.refuses(ForeignBlock, manager.hold_blocks, [-1], HoldKind.LEASE)
        self.refuses(LocalMisuse, manager.hold_blocks, [1], HoldKind.COPY)
        block = number % (size - 1) + 1
        times = self.holds.count((block, HoldKind.PULL)) + 1
        self.refuses(DoubleFree, manager.end_hold, [block] * times, HoldKind.PULL)
        if sequence := self.choose(number, "waiting", "running", "loading"):
            request = sequence.request
            self.refuses(IllegalAllocation, manager.allocate_slots, request, -1)
            self.refuses(IllegalAllocation, manager.allocate_slots, request, 0)
            twin = Request(request.request_id + "'", request.all_token_ids, self.hasher)
            junction = request.shared_prefix_boundary
            hit = manager.get_computed_blocks(request)
            request.shared_prefix_boundary = junction
            self.refuses(IllegalAllocation, manager.allocate_slots, twin, 1, hit)
            self.refuses(UnknownRequest, manager.cache_blocks, twin, 1)
            if sequence.state == "waiting":
                self.refuses(UnknownRequest, manager.cache_blocks, request, 1)
                return
            too_many = request.num_tokens + 1
            self.refuses(IllegalAllocation, manager.cache_blocks, request, too_many)
            if hit.num_tokens:
                self.refuses(IllegalAllocation, manager.allocate_slots, request, 1, hit)
            named = Request(request.request_id, [7], self.hasher)
            self.refuses(IllegalAllocation, manager.allocate_slots, named, 1)

    # -- always --------------------------------------------------------------------------------

    @invariant()
    def same_as_the_model(self) -> None:
        if not hasattr(self, "manager") or not self.exact:
            return
        pool, model = self.pool, self.model.pool
        assert [block.block_id for block in pool.free_block_queue] == model.queue
        assert [block.ref_cnt for block in pool.blocks[1:]] == model.refs[1:]
        assert [block.generation for block in pool.blocks[1:]] == model.taken[1:]
        for sequence in self.sequences:
            name = sequence.request.request_id
            tables = self.model.tables.get(name, [[] for _ in self.groups])
            assert self.tables(sequence.request) == tables
        entries = sorted((g, b.block_id) for g, _, b in pool.cached_blocks())
        assert entries == sorted((g, b) for g, _, b in model.entries)
        ledger, expected = self.manager.ledger(), model.ledger()
        assert {part: getattr(ledger, part) for part in expected} == expected

    @invariant()
    def never_a_wrong_token(self) -> None:
        if not hasattr(self, "manager"):
            return
        for group_id, key, block in self.pool.cached_blocks():
            what = self.dictionary.content_of[key]
            self.shadow.check_key(self.groups[group_id], block.block_id, what)
        for sequence in self.sequences:
            if sequence.state == "running":
                request = sequence.request
                computed, pending = request.num_computed_tokens, sequence.pending
                if sequence.flights and sequence.flights[-1].num_drafts:
                    continue  # how much of it counts is decided when it lands
                self.shadow.check_readable(request, self.tables(request), computed, pending)

    @invariant()
    def events_tell_what_can_be_found(self) -> None:
        if hasattr(self, "manager") and self.config.enable_events:
            self.listener.hear(self.manager.take_events())
            found = {(int(g), key) for g, key, _ in self.pool.cached_blocks()}
            assert self.listener.known == found

    def teardown(self) -> None:
        """Everything ends, and everything is free."""
        if not hasattr(self, "manager"):
            return
        self.manager.check()
        while self.open_steps:
            self.settle_step()
        for sequence in list(self.sequences):
            self.sequences.remove(sequence)
            self.give_back(sequence)
        for block, kind in self.holds:
            if kind in CALLER_KINDS:
                self.manager.end_hold([block], kind)
        self.manager.release_block_copies()
        self.manager.check()
        assert self.manager.ledger().free == self.config.num_blocks - 1
        assert self.manager.usage == 0
        assert self.manager.reset_prefix_cache()
        assert not list(self.pool.cached_blocks())
