"""A scheduler, a stub worker and memory, and what must be true of the three after each move."""

from collections.abc import Sequence as Listing
from typing import Any

from kvdist.cache import KVCacheManager, KVCacheSpec
from kvdist.cache.traced import TracedKVCacheManager
from kvdist.connector.host import Moved
from kvdist.ids import RequestId
from kvdist.sched.budget import SchedulerConfig
from kvdist.sched.output import Output
from kvdist.sched.plan import StepPlan
from kvdist.sched.roles import RemoteCache
from kvdist.sched.scheduler import Scheduler
from kvdist.sched.sequence import SamplingParams, Sequence, SequenceStatus
from kvdist.sched.tracing import began
from kvdist.sim.memory import POISON, Memory, Poisoner
from kvdist.sim.stub_worker import StubWorker
from kvdist.trace.events import Entry, Event
from kvdist.trace.recorder import Recorder
from tests.make import make_config

#: The most moves that a run may need; far more than any does.
_MANY = 3_000


class Rig:
    """A node without a network. Two ranks, with one head each."""

    def __init__(
        self,
        *specs: KVCacheSpec,
        settings: SchedulerConfig | None = None,
        remote_cache: RemoteCache | None = None,
        num_blocks: int = 30,
        max_model_len: int = 64,
        traced: bool = False,
        **more: Any,
    ) -> None:
        config = make_config(*specs, num_blocks=num_blocks, max_model_len=max_model_len, **more)
        settings = settings or SchedulerConfig(max_num_batched_tokens=16)
        #: What was told of requests and blocks, if it is traced; stamped with its number.
        self.entries: list[Entry] = []
        self.recorder = Recorder(self._listen) if traced else None
        self.manager = (
            TracedKVCacheManager(config, self.recorder) if self.recorder else KVCacheManager(config)
        )
        self.scheduler = Scheduler(self.manager, settings, remote_cache, recorder=self.recorder)
        if self.recorder:
            self.recorder.note(began("run", config))
        num_slots = max(group.kv_cache_spec.block_size for group in config.kv_cache_groups)
        self.memories = [Memory(num_blocks, num_slots, [head]) for head in (0, 1)]
        self.worker = StubWorker(config, self.memories, settings.num_lookahead_tokens)
        self.poison = Poisoner(self.manager.block_pool, self.memories)
        #: Plans that the worker has and hasn't run.
        self.plans: list[StepPlan] = []
        self.sequences: dict[RequestId, Sequence] = {}
        self.perfect: dict[RequestId, list[int]] = {}
        self.heard: dict[RequestId, list[int]] = {}
        self.ended: dict[RequestId, SequenceStatus] = {}
        #: Of those that ended with an error: why.
        self.reasons: dict[RequestId, str] = {}

    def add(
        self,
        prompt: Listing[int],
        *,
        max_new_tokens: int = 8,
        n: int = 1,
        stop_at: int | None = None,
        encoder_token_ids: tuple[int, ...] = (),
        **more: Any,
    ) -> tuple[Sequence, ...]:
        """New sequences; `stop_at`: the token of that number is a stop token."""
        perfect = self.worker.model.perfect_tokens(prompt, max_new_tokens, encoder_token_ids)
        stops = frozenset(perfect[stop_at : stop_at + 1] if stop_at is not None else ())
        params = SamplingParams(max_new_tokens=max_new_tokens, n=n, stop_token_ids=stops)
        added = self.scheduler.add(
            "client", prompt, params, encoder_token_ids=encoder_token_ids, **more
        )
        room = self.manager.config.max_model_len - len(prompt)
        perfect = perfect[: min(room, len(perfect) if stop_at is None else stop_at + 1)]
        for sequence in added:
            self.sequences[sequence.request_id] = sequence
            self.perfect[sequence.request_id] = [] if sequence.prefill_only else perfect
            self.heard[sequence.request_id] = []
        self.hear(self.scheduler.take_outputs())
        return added

    def _listen(self, event: Event) -> None:
        self.entries.append(Entry(float(len(self.entries)), event))

    # -- moves ---------------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """Plan a step, which the worker will run some time."""
        plan = self.scheduler.schedule()
        self.hear(self.scheduler.take_outputs())
        if plan is not None:
            self.plans.append(plan)
        return plan

    def execute(self, plan: StepPlan) -> None:
        """Run a step and settle it."""
        self.poison()
        result = self.worker.execute(plan)
        self.hear(self.scheduler.settle(result))

    def run_oldest(self) -> None:
        """Run and settle the oldest step that hasn't."""
        self.execute(self.plans.pop(0))

    def fail_oldest(self, *, lost: bool = False) -> None:
        """The oldest step fails: half done, or it and all after it never begun."""
        if lost:
            for plan in self.plans:
                self.hear(self.scheduler.fail_step(plan.step))
            self.plans.clear()
            return
        plan = self.plans.pop(0)
        self.poison()
        self.worker.execute(plan)
        self._spoil(plan)
        self.hear(self.scheduler.fail_step(plan.step))

    def _spoil(self, plan: StepPlan) -> None:
        """What a step wrote is garbage."""
        for scheduled in plan.scheduled:
            row, start = self.worker.rows[scheduled.request_id], scheduled.num_computed_tokens
            end = start + scheduled.num_tokens + len(scheduled.draft_token_ids)
            for group, table in zip(self.worker.model.groups, row.tables, strict=True):
                if group.is_cross:
                    continue
                for position in range(end - 1 if group.is_state else start, end):
                    slot = 0 if group.is_state else position % group.block_size
                    for memory in self.memories:
                        for head in memory.heads:
                            memory.cells(table[position // group.block_size], head)[slot] = POISON

    def moved(self, event: Moved) -> None:
        self.hear(self.scheduler.moved(event))

    def abort(self, sequence: Sequence) -> bool:
        known = self.scheduler.abort(sequence.request_id)
        self.hear(self.scheduler.take_outputs())
        return known

    def hear(self, outputs: list[Output]) -> None:
        """What clients hear: each token once, in order, the right ones, nothing after the end."""
        self.poison()
        for output in outputs:
            name, heard = output.request_id, self.heard[output.request_id]
            assert name not in self.ended, "something came after the end"
            heard += output.token_ids
            assert output.num_output_tokens == len(heard), "a token was lost or came twice"
            assert heard == self.perfect[name][: len(heard)], "a wrong token"
            if output.status.finished:
                self.ended[name] = output.status
                if output.reason:
                    self.reasons[name] = output.reason
                whole = heard == self.perfect[name]
                assert whole or output.status in (
                    SequenceStatus.FINISHED_ABORTED,
                    SequenceStatus.FINISHED_ERROR,
                ), "it ended before its end"

    def step(self) -> bool:
        """What a node does: plan if it can, else run what is planned. False if there is nothing."""
        if self.plan() is not None:
            return True
        if self.plans:
            self.run_oldest()
            return True
        return False

    # -- what must be true ---------------------------------------------------------------------

    def check(self) -> None:
        """At any moment."""
        self.manager.check()
        for request_id, row in self.worker.rows.items():
            sequence = self.scheduler.roster.sequences.get(request_id)
            if self.plans or sequence is None or sequence.worthless or not sequence.on_worker:
                continue
            for mine, theirs in zip(
                self.manager.get_block_ids(request_id), row.tables, strict=True
            ):
                for i, block_id in enumerate(mine):
                    assert not block_id or theirs[i] == block_id, "I5: tables differ"

    def run_to_the_end(self) -> None:
        """All end, and all is free."""
        for _ in range(_MANY):
            if not self.step():
                break
            self.check()
        self.check_end()

    def check_end(self) -> None:
        """Nothing is left."""
        assert self.scheduler.idle, self.scheduler.roster.sequences
        assert self.ended.keys() == self.sequences.keys()
        self.manager.check()
        assert self.manager.ledger().free == self.manager.config.num_blocks - 1
