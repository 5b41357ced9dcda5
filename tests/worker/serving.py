"""A scheduler and a runner in one thread: the smallest engine."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from kvdist.cache import KVCacheConfig, KVCacheManager
from kvdist.ids import RequestId
from kvdist.sched.audio import Audio
from kvdist.sched.budget import SchedulerConfig
from kvdist.sched.output import Output
from kvdist.sched.plan import StepPlan
from kvdist.sched.scheduler import Scheduler
from kvdist.sched.sequence import SamplingParams
from kvdist.worker.model import Model
from kvdist.worker.runner import ModelRunner


class Engine:
    """Plans as far ahead as it may, and executes one step a turn."""

    def __init__(
        self,
        model: Model,
        *,
        block_size: int = 8,
        num_blocks: int = 400,
        max_model_len: int = 320,
        cache: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        layout = model.layout(block_size)
        self.runner = ModelRunner(model, layout, num_blocks)
        self.config = KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_groups=layout.kv_cache_groups,
            max_model_len=max_model_len,
            **(cache or {}),
        )
        self.manager = KVCacheManager(self.config)
        self.scheduler = Scheduler(self.manager, SchedulerConfig(**settings))
        self.tokens: dict[RequestId, list[int]] = {}
        self.outputs: list[Output] = []
        self._plans: deque[StepPlan] = deque()

    def add(
        self, prompt: tuple[int, ...], num_tokens: int, audio: Audio | None = None, **params: Any
    ) -> RequestId:
        """A request with this prompt; returns its id."""
        wanted = SamplingParams(max_new_tokens=num_tokens, **params)
        (sequence,) = self.scheduler.add("r", prompt, wanted, audio=audio)
        self.tokens[sequence.request_id] = []
        return sequence.request_id

    def turn(self) -> None:
        """Plan what can be planned, then execute the oldest plan."""
        while (plan := self.scheduler.schedule()) is not None:
            self._plans.append(plan)
        if self._plans:
            self._hear(self.scheduler.settle(self.runner.execute(self._plans.popleft())))

    def run(self) -> None:
        """Until nothing is left."""
        while not self.scheduler.idle:
            self.turn()

    def abort(self, request_id: RequestId) -> None:
        """It ends, and what it had is forgotten."""
        self.scheduler.abort(request_id)
        self._hear(self.scheduler.take_outputs())

    def _hear(self, outputs: list[Output]) -> None:
        self.outputs += outputs
        for output in outputs:
            self.tokens[output.request_id] += output.token_ids
