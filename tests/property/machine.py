"""Everything that a scheduler may do, at random; after each move, all that must be true."""

from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kvdist.cache import ExtraKeys, HoldKind, KVCacheConfig, LoRAKey, MultiModalItem, Request
from kvdist.errors import (
    DoubleFree,
    ForeignBlock,
    IllegalAllocation,
    LocalMisuse,
    StaleHit,
    UnknownRequest,
)
from tests.property.scheduler import MAX_LIVE, MAX_OPEN_STEPS, STEMS, Scheduler

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


class ManagerMachine(Scheduler):
    """Subclasses say which configurations they try."""

    configs: ClassVar[st.SearchStrategy[KVCacheConfig]]

    @initialize(data=st.data(), with_steps=st.booleans())
    def start(self, data: Any, with_steps: bool) -> None:
        self.begin(data.draw(self.configs), with_steps)

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

    # -- admission ------------------------------------------------------------------------------

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
            self.open_step(1)
            self.plan()
            for sequence in self.sequences:
                if sequence.state == "running":
                    self.advance(sequence, 4, (), 0, 0, 0, bonus)
            if self.open_steps and (settle or len(self.open_steps) >= MAX_OPEN_STEPS):
                self.settle_oldest_step()

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
        if self.exact:
            self.model.publish(request, arrived)
        request.num_computed_tokens = min(arrived, request.num_tokens - 1)
        sequence.state = "running"
        if arrived < end and not self.all_full:
            self.send_back(sequence)  # windows have given up what it would have to read

    # -- steps ---------------------------------------------------------------------------------

    @rule(skip=st.integers(1, 3))
    def next_step(self, skip: int) -> None:
        self.open_step(skip)

    @rule()
    @precondition(lambda self: self.open_steps)
    def settle_step(self) -> None:
        self.settle_oldest_step()

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
            self.settle_oldest_step()
        for fails in (True, False):
            self.plan()
            for sequence in self.sequences:
                if sequence.state == "running":
                    self.advance(sequence, chunk, (), 0, 0, 0, bonus)
            if fails:
                self.fail_step(self.open_steps[-1])

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
            self.settle_oldest_step()
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
