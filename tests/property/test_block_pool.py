"""The block pool against lists of numbers (S18-S23, I1, I2, I7, T1)."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvdist.cache import BlockHasher, BlockPool, HoldKind, KVCacheBlock, Request
from kvdist.errors import DoubleFree, ForeignBlock, LocalMisuse, UnknownStep
from kvdist.ids import BlockId, GroupId
from tests.model.listener import Listener
from tests.model.naive_pool import NaivePool
from tests.property.effort import effort

UNIT, BLOCK = 2, 8
GROUPS = 2
HASHER = BlockHasher(UNIT)
#: Some sequences that share prefixes, so that the same content is published again and again.
REQUESTS = [
    Request(f"r{i}", tokens, HASHER)
    for i, tokens in enumerate(([0] * 32, [0] * 12 + [1] * 20, [0] * 12 + [1] * 8 + [2] * 12))
]
UNITS = 32 // UNIT
HELD_BY_CALLERS = [kind for kind in HoldKind if kind is not HoldKind.REQUEST]

picks = st.lists(st.integers(0, 1 << 10), min_size=1, max_size=5)
pick = st.integers(0, 1 << 10)
groups = st.integers(0, GROUPS - 1).map(GroupId)
requests = st.sampled_from(REQUESTS)


class PoolMachine(RuleBasedStateMachine):
    """`mine` are references this machine has taken, once for each: what tables would hold."""

    @initialize(
        size=st.integers(2, 14),
        enable_events=st.booleans(),
        enable_caching=st.sampled_from([1, 1, 0]),
    )
    def start(self, size: int, enable_events: bool, enable_caching: int) -> None:
        self.pool = BlockPool(
            size, GROUPS, UNIT, enable_caching=bool(enable_caching), enable_events=enable_events
        )
        self.model = NaivePool(size, bool(enable_caching))
        self.mine: list[int] = []
        self.listener = Listener()
        #: What each cached block holds: which block of which request, and how much is named.
        self.named: dict[int, tuple[Request, int, int]] = {}

    def blocks(self, ids: Sequence[int]) -> list[KVCacheBlock]:
        return [self.pool.blocks[i] for i in ids]

    def choose(self, numbers: Sequence[int], among: Sequence[int]) -> list[int]:
        """As many of `among`, each entry at most once."""
        left = list(among)
        return [left.pop(number % len(left)) for number in numbers[: len(left)]]

    def refuses(self, error: type[Exception], call: Callable[..., Any], *arguments: Any) -> None:
        with pytest.raises(error):
            call(*arguments)

    # -- taking and giving back ----------------------------------------------------------------

    @rule(count=st.integers(0, 5), group=groups)
    def take(self, count: int, group: GroupId) -> None:
        if count > len(self.model.queue):
            self.refuses(LocalMisuse, self.pool.get_new_blocks, count, group)
            return
        expected = self.model.take(count)
        assert [block.block_id for block in self.pool.get_new_blocks(count, group)] == expected
        self.mine += expected

    @rule(numbers=picks)
    def touch(self, numbers: list[int]) -> None:
        """Any blocks that hold something, in use or free; the null block comes along unharmed."""
        cached = sorted({block for _, _, block in self.model.entries})
        chosen = self.choose(numbers, cached)
        self.pool.touch(self.blocks([0, *chosen]))
        self.model.touch(chosen)
        self.mine += chosen

    @rule(numbers=picks)
    def free(self, numbers: list[int]) -> None:
        chosen = self.choose(numbers, self.mine)
        for block in chosen:
            self.mine.remove(block)
        self.pool.free_blocks(iter(self.blocks(chosen)))
        self.model.free(chosen)

    @rule(number=pick)
    def free_too_often(self, number: int) -> None:
        block = number % (self.pool.num_blocks - 1) + 1
        times = self.mine.count(block) + 1
        self.refuses(DoubleFree, self.pool.free_blocks, self.blocks([block] * times))
        self.refuses(ForeignBlock, self.pool.free_blocks, [KVCacheBlock(BlockId(block))])

    # -- publishing ----------------------------------------------------------------------------

    def owned(self, group: GroupId) -> list[int]:
        if not self.model.enable_caching:
            return []
        return [b for b in sorted(set(self.mine)) if self.pool.blocks[b].group_id == group]

    @rule(
        request=requests, numbers=picks, first=st.integers(0, 3), group=groups, same=st.booleans()
    )
    def publish(
        self, request: Request, numbers: list[int], first: int, group: GroupId, same: bool
    ) -> None:
        """Full blocks, without a key or with one that ends inside; `same`: all of one content."""
        if not self.model.enable_caching:
            return
        count = len(numbers) if same else min(len(numbers), UNITS * UNIT // BLOCK - first)
        fit = [b for b in self.owned(group) if self.named.get(b, (0, 0, 0))[2] < BLOCK]
        if len(fit) < count:
            self.take(min(count - len(fit), len(self.model.queue)), group)
            fit = [b for b in self.owned(group) if self.named.get(b, (0, 0, 0))[2] < BLOCK]
        chosen = self.choose(numbers, fit)[:count]
        for run in [[block] for block in chosen] if same else [chosen]:
            self.pool.cache_full_blocks(request, self.blocks(run), first, BLOCK, group)
            for block in run:
                self.model.forget(block)
            for i, block in enumerate(run, first):
                self.named[block] = (request, i, BLOCK)
                self.model.publish(group, request.block_hashes[(i + 1) * BLOCK // UNIT - 1], block)

    @rule(request=requests, number=pick, length=st.integers(1, UNITS), group=groups)
    def publish_tail(self, request: Request, number: int, length: int, group: GroupId) -> None:
        """A prefix that ends inside a block, or at its end: shorter ones go, longer ones stay."""
        index, named = (length - 1) * UNIT // BLOCK, (length * UNIT - 1) % BLOCK + 1
        key = request.block_hashes[length - 1]
        fit = [
            b
            for b in self.owned(group)
            if b not in self.named
            or (self.named[b][:2] == (request, index) and (group, key, b) not in self.model.entries)
        ]
        if not fit:
            return
        block = fit[number % len(fit)]
        for _ in range(2):  # the second time nothing happens
            found = self.pool.cache_partial_block(
                request, self.pool.blocks[block], length * UNIT, BLOCK, group
            )
            assert found == key
        longest = self.named.get(block, (0, 0, 0))[2]
        if longest < named:
            self.model.forget(block)
        self.named[block] = (request, index, max(longest, named))
        self.model.publish(group, key, block)

    @rule(number=pick)
    def move_keys(self, number: int) -> None:
        """All keys of a block go to a fresh copy; among copies of its content it is the last."""
        sources = [b for b in sorted(set(self.mine)) if self.model.is_cached(b)]
        if not sources or not self.model.queue:
            return
        source = sources[number % len(sources)]
        (copy,) = self.model.take(1)
        self.mine.append(copy)
        assert self.pool.get_new_blocks(1, GroupId(0))[0].block_id == copy
        self.pool.move_block_hashes(self.pool.blocks[source], self.pool.blocks[copy])
        keys = [(g, key) for g, key, block in self.model.entries if block == source]
        self.model.forget(source)
        for group, key in keys:
            self.model.publish(group, key, copy)
        self.named[copy] = self.named.pop(source)

    @rule(numbers=picks)
    def evict(self, numbers: list[int]) -> None:
        chosen = [number % self.pool.num_blocks for number in numbers]
        self.pool.evict_blocks(chosen)
        for block in chosen:
            self.model.forget(block)
        self.refuses(ForeignBlock, self.pool.evict_blocks, [*chosen, self.pool.num_blocks])

    @rule()
    def reset(self) -> None:
        assert self.pool.reset_prefix_cache() == self.model.reset()

    # -- holds ---------------------------------------------------------------------------------

    @rule(numbers=picks, kind=st.sampled_from(HELD_BY_CALLERS))
    def hold(self, numbers: list[int], kind: HoldKind) -> None:
        chosen = [number % self.pool.num_blocks for number in numbers]  # also twice, also null
        self.pool.hold(self.blocks(chosen), kind)
        self.model.hold(chosen, kind.name.lower())
        self.refuses(LocalMisuse, self.pool.hold, self.blocks(chosen), HoldKind.REQUEST)

    @rule(numbers=picks, kind=st.sampled_from(HELD_BY_CALLERS))
    def end_hold(self, numbers: list[int], kind: HoldKind) -> None:
        held = [block for block, held_for in self.model.holds if held_for == kind.name.lower()]
        chosen = self.choose(numbers, held)
        self.pool.end_hold(self.blocks(chosen), kind)
        self.model.end_hold(chosen, kind.name.lower())

    @rule(number=pick, kind=st.sampled_from(HELD_BY_CALLERS))
    def end_hold_too_often(self, number: int, kind: HoldKind) -> None:
        block = number % (self.pool.num_blocks - 1) + 1
        times = self.model.holds.count((block, kind.name.lower())) + 1
        self.refuses(DoubleFree, self.pool.end_hold, self.blocks([block] * times), kind)
        self.refuses(
            DoubleFree, self.pool.change_hold, self.blocks([block] * times), kind, HoldKind.LEASE
        )

    @rule(numbers=picks, old=st.sampled_from(HELD_BY_CALLERS), new=st.sampled_from(HELD_BY_CALLERS))
    def change_hold(self, numbers: list[int], old: HoldKind, new: HoldKind) -> None:
        held = [block for block, held_for in self.model.holds if held_for == old.name.lower()]
        chosen = self.choose(numbers, held)
        self.pool.change_hold(self.blocks(chosen), old, new)
        for block in chosen:
            self.model.holds.remove((block, old.name.lower()))
            self.model.holds.append((block, new.name.lower()))

    # -- steps ---------------------------------------------------------------------------------

    @rule(skip=st.integers(1, 3))
    def open_step(self, skip: int) -> None:
        step = self.model.step + skip
        self.pool.steps.open(step)
        self.model.open(step)
        self.refuses(UnknownStep, self.pool.steps.open, step)

    @rule()
    @precondition(lambda self: self.model.open_steps)
    def settle_step(self) -> None:
        step = self.model.open_steps[0]
        self.refuses(UnknownStep, self.pool.steps.settle, step + 1)
        assert self.pool.steps.settle(step) == []
        self.model.settle()

    @rule(number=pick)
    @precondition(lambda self: self.model.open_steps)
    def withdraw_step(self, number: int) -> None:
        step = self.model.open_steps[number % len(self.model.open_steps)]
        self.pool.withdraw(step)
        self.model.withdraw(step)
        self.refuses(UnknownStep, self.pool.withdraw, self.model.open_steps[-1] + 1)

    # -- always --------------------------------------------------------------------------------

    @invariant()
    def same_as_the_model(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool, model = self.pool, self.model
        self.named = {b: named for b, named in self.named.items() if model.is_cached(b)}
        assert [block.block_id for block in pool.free_block_queue] == model.queue
        assert pool.get_num_free_blocks() == len(model.queue)
        usable = pool.num_blocks - 1
        assert pool.get_usage() == pytest.approx(1 - len(model.queue) / usable)
        assert [block.ref_cnt for block in pool.blocks[1:]] == model.refs[1:]
        assert [block.generation for block in pool.blocks[1:]] == model.taken[1:]
        cached = [block.block_hash is not None for block in pool.blocks]
        assert cached == [model.is_cached(i) for i in range(pool.num_blocks)]
        assert [pool.is_settled(block) for block in pool.blocks[1:]] == [
            model.is_settled(i) for i in range(1, pool.num_blocks)
        ]

    @invariant()
    def same_ledger(self) -> None:
        if hasattr(self, "pool"):
            ledger, expected = self.pool.ledger(), self.model.ledger()
            assert {part: getattr(ledger, part) for part in expected} == expected
            assert ledger.total == self.pool.num_blocks - 1

    @invariant()
    def same_keys(self) -> None:
        if not hasattr(self, "pool"):
            return
        entries = sorted((g, key, block.block_id) for g, key, block in self.pool.cached_blocks())
        assert entries == sorted(self.model.entries)
        for group, key, _ in entries:
            found = self.pool.cached_block_hash_to_block[group].get_longest_prefix([key])
            assert [block.block_id for block in found] == [self.model.lookup(group, key)]
        if self.pool.events is not None:
            self.listener.hear(self.pool.events.take())
            assert self.listener.known == {(group, key) for group, key, _ in entries}


TestPool = PoolMachine.TestCase
TestPool.settings = effort(examples=250, steps=50)
