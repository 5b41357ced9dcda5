"""A node in the hands of a state machine: work comes and goes, steps and loads end as they like.

At its end everything ends: each sequence has its perfect tokens, each position was heard once, and
all blocks are free. See `tests.rig` for what is looked at after each move.
"""

from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from kvdist.cache import KVCacheSpec
from kvdist.connector.host import BlocksReturned, Loaded, LoadFailed, LoadQuiet
from kvdist.errors import RequestTooLarge
from kvdist.ids import BlockId
from kvdist.sched.budget import SchedulerConfig
from kvdist.sched.plan import SampledTokens, StepResult
from tests.model.fake_remote import FakeRemote
from tests.rig import Rig

STEMS = ([1] * 40, [1] * 9 + [2] * 31)
MAX_LIVE = 6

pick = st.integers(0, 1 << 10)
rarely = st.sampled_from([False] * 7 + [True])


class SchedulingMachine(RuleBasedStateMachine):
    """Subclasses say which groups and pools they try."""

    pools: ClassVar[st.SearchStrategy[tuple[list[KVCacheSpec], int, dict[str, Any]]]]
    num_lookahead: ClassVar[st.SearchStrategy[int]] = st.just(0)

    @initialize(data=st.data())
    def start(self, data: Any) -> None:
        specs, num_blocks, more = data.draw(self.pools)
        settings = SchedulerConfig(
            max_num_batched_tokens=data.draw(st.sampled_from([3, 8, 16, 40])),
            max_num_seqs=data.draw(st.sampled_from([1, 2, 4, 8])),
            max_steps_in_flight=data.draw(st.sampled_from([2, 2, 1])),
            num_lookahead_tokens=data.draw(self.num_lookahead),
            policy=data.draw(st.sampled_from(["fcfs", "priority"])),
        )
        self.remote = FakeRemote()
        self.rig = Rig(
            *specs,
            settings=settings,
            remote_cache=self.remote,
            num_blocks=num_blocks,
            max_model_len=40,
            **more,
        )
        self.remote.model, self.remote.memories = self.rig.worker.model, self.rig.memories
        #: Blocks in quarantine, a load each.
        self.landing: list[list[int]] = []
        self.num_added = 0

    @property
    def live(self) -> list[str]:
        return list(self.rig.scheduler.roster.sequences)

    def encoder(self, length: int) -> tuple[int, ...]:
        """Input for the encoder, where there is one."""
        has_encoder = any(group.is_cross for group in self.rig.worker.model.groups)
        return tuple(range(1, 1 + length % 9)) if has_encoder else ()

    # -- work comes and goes -------------------------------------------------------------------

    @rule(
        stem=st.sampled_from(STEMS),
        length=st.integers(1, 24),
        own=st.lists(st.integers(1, 2), max_size=2),
        max_new_tokens=st.integers(1, 14),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        priority=st.integers(0, 2),
        stop_at=st.sampled_from([None, None, 0, 3]),
        prefill_only=rarely,
        hold_whole_prompt=rarely,
        offer=st.sampled_from([0, 0, 0, 5, 8, 16, 99, None]),
        lends=rarely,
    )
    @precondition(lambda self: len(self.live) < MAX_LIVE)
    def arrive(
        self,
        stem: list[int],
        length: int,
        own: list[int],
        n: int,
        offer: int | None,
        lends: bool,
        prefill_only: bool = False,
        **more: Any,
    ) -> None:
        n = 1 if prefill_only else n
        more["prefill_only"] = prefill_only
        for i in range(1, n + 1):
            name = f"client-{self.num_added + i}"
            self.remote.offers[name] = offer
            self.remote.lends |= {name} if lends else set()
        try:
            self.rig.add(stem[:length] + own, n=n, encoder_token_ids=self.encoder(length), **more)
        except RequestTooLarge:
            return
        self.num_added += n

    @rule(
        lengths=st.lists(st.integers(1, 12), min_size=2, max_size=4),
        max_new_tokens=st.integers(8, 24),
        times=st.integers(1, 20),
    )
    @precondition(lambda self: len(self.live) < MAX_LIVE)
    def storm(self, lengths: list[int], max_new_tokens: int, times: int) -> None:
        """More than fits: prompts are short, what comes out is long."""
        for i, length in enumerate(lengths):
            prompt = STEMS[i % 2][:length]
            self.arrive(prompt, length, [], 1, 0, False, max_new_tokens=max_new_tokens)
        self.go_on(times)

    @rule(number=pick)
    @precondition(lambda self: self.live)
    def abort(self, number: int) -> None:
        name = self.live[number % len(self.live)]
        sequence = self.rig.sequences[name]
        assert self.rig.abort(sequence)
        assert not self.rig.abort(sequence)

    # -- steps ---------------------------------------------------------------------------------

    @rule()
    def plan(self) -> None:
        self.rig.plan()

    @rule(times=st.integers(1, 12))
    def go_on(self, times: int) -> None:
        for _ in range(times):
            self.rig.step()

    @rule()
    @precondition(lambda self: self.rig.plans)
    def run(self) -> None:
        self.rig.run_oldest()

    @rule(lost=st.booleans())
    @precondition(lambda self: self.rig.plans)
    def fail(self, lost: bool) -> None:
        self.rig.fail_oldest(lost=lost)

    @rule(plan_between=st.booleans())
    @precondition(lambda self: len(self.rig.plans) > 1)
    def fail_one_after_the_other(self, plan_between: bool) -> None:
        """Each failure is told by itself, and a new step may be planned between."""
        plans = self.rig.plans.copy()
        self.rig.plans.clear()
        for plan in plans:
            self.rig.hear(self.rig.scheduler.fail_step(plan.step))
            if plan_between:
                self.rig.plan()

    @rule(what=st.sampled_from(["nothing", "twice", "no token", "too many"]), late=st.booleans())
    @precondition(lambda self: self.rig.plans)
    def answer_badly(self, what: str, late: bool) -> None:
        """A worker that breaks its contract costs work, never the node."""
        plan = self.rig.plans.pop(0)
        result = self.rig.worker.execute(plan)
        bad = {
            "nothing": {},
            "twice": {k: SampledTokens(v.token_ids * 9) for k, v in result.sampled.items()},
            "no token": {k: SampledTokens((-1,)) for k in result.sampled},
            "too many": {**result.sampled, "nobody-1": SampledTokens((1,))},
        }[what]
        self.rig.hear(self.rig.scheduler.settle(StepResult(plan.step, bad)))
        if late:
            self.rig.hear(self.rig.scheduler.settle(result))
            self.rig.hear(self.rig.scheduler.fail_step(plan.step))

    # -- the remote cache ----------------------------------------------------------------------

    @rule(number=pick, offer=st.sampled_from([0, 5, 16, 99]))
    def becomes_known(self, number: int, offer: int) -> None:
        pending = [name for name in self.live if self.remote.offers[name] is None]
        if pending:
            self.remote.offers[pending[number % len(pending)]] = offer

    @rule(number=pick, twice=rarely)
    @precondition(lambda self: self.remote.loads)
    def load_ends(self, number: int, twice: bool) -> None:
        name = list(self.remote.loads)[number % len(self.remote.loads)]
        self.remote.land(self.remote.loads.pop(name))
        for _ in range(1 + twice):
            self.rig.moved(Loaded(name))

    @rule(number=pick, again=st.booleans(), offer=st.sampled_from([0, 5, 99, None]))
    @precondition(lambda self: self.remote.loads)
    def load_fails(self, number: int, again: bool, offer: int | None) -> None:
        name = list(self.remote.loads)[number % len(self.remote.loads)]
        load = self.remote.loads.pop(name)
        self.remote.offers[name] = offer
        blocks = load.block_ids(self.rig.worker.model)
        self.remote.scribble(blocks)
        self.rig.moved(LoadFailed(name, "lost", again))
        self.landing.append(blocks)

    @rule(number=pick, more=st.booleans())
    @precondition(lambda self: self.landing)
    def bytes_still_land(self, number: int, more: bool) -> None:
        blocks = self.landing[number % len(self.landing)]
        self.remote.scribble(blocks)
        if not more:
            self.landing.remove(blocks)
            self.rig.moved(LoadQuiet("r", [BlockId(block) for block in blocks]))

    @rule(number=pick)
    @precondition(lambda self: self.remote.loans)
    def blocks_come_back(self, number: int) -> None:
        self.remote.check_loans()
        loan = self.remote.loans.pop(number % len(self.remote.loans))
        self.rig.moved(BlocksReturned(None, [BlockId(block) for block in loan.blocks]))

    @rule(number=pick)
    def somebody_reads_along(self, number: int) -> None:
        if self.remote.reading:
            self.remote.reading.clear()
        elif self.live:
            self.remote.reading.add(self.live[number % len(self.live)])

    @rule(number=pick)
    def nonsense(self, number: int) -> None:
        """Late, doubled, or for nobody: counted and dropped."""
        before = self.rig.scheduler.stats.num_unknown_messages
        self.rig.moved(Loaded("nobody"))
        self.rig.moved(LoadFailed("nobody", "", again=True))
        self.rig.moved(LoadQuiet("r", [BlockId(10**6)]))
        free = {block.block_id for block in self.rig.manager.block_pool.free_block_queue}
        if free:
            block = sorted(free)[number % len(free)]
            self.rig.moved(BlocksReturned(None, [block]))
            self.rig.moved(LoadQuiet("r", [block]))
        self.rig.hear(self.rig.scheduler.settle(StepResult(10**6)))
        counted = self.rig.scheduler.stats.num_unknown_messages - before
        assert counted == (6 if free else 4)

    # -- always --------------------------------------------------------------------------------

    @invariant()
    def all_agrees(self) -> None:
        if hasattr(self, "rig"):
            self.rig.check()
            self.remote.check_loans()

    @invariant()
    def no_load_waits_for_another(self) -> None:
        """Were all that run preempted, those that can't be would have all they still need."""
        if not hasattr(self, "rig"):
            return
        roster, manager = self.rig.scheduler.roster, self.rig.manager
        admission = self.rig.scheduler._planner.admission
        admitted = [*roster.loads.sequences(), *roster.waiting.owners]
        owned = {
            block
            for sequence in admitted
            for table in manager.get_block_ids(sequence.request_id)
            for block in table
            if block
        }
        needed = sum(admission.missing(sequence) for sequence in admitted)
        assert len(owned) + needed <= manager.config.num_blocks - 1

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.remote.reading.clear()
        for _ in range(1_000):
            for name, offer in self.remote.offers.items():
                self.remote.offers[name] = offer or 0
            busy = self.rig.step()
            if self.remote.loads:
                self.load_ends(0, twice=False)
            elif self.landing:
                self.bytes_still_land(0, more=False)
            elif self.remote.loans:
                self.blocks_come_back(0)
            elif not busy:
                break
        self.rig.check_end()
