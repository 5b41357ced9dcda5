"""A stub in place of a model, for whoever has a node and no weights: its words are few.

Owns:   which sequences want logprobs.
Knows nothing of: letters; whoever has the tokenizer gives the size of the vocabulary.

Its tokens depend on all that it reads, as the stub worker's do, and on nothing else: sampling is
for models, so every temperature is as good as 0.
"""

from dataclasses import replace

from kvdist.cache import KVCacheConfig
from kvdist.ids import RequestId
from kvdist.sched.plan import SampledTokens, StepPlan, StepResult
from kvdist.sched.sampling import TokenLogprobs
from kvdist.sim.memory import Memory
from kvdist.sim.stub_worker import StubWorker


class StubRunner:
    """Says tokens below `vocabulary_size`; its K/V are the numbers in `memory`."""

    def __init__(
        self, config: KVCacheConfig, vocabulary_size: int, memory: Memory | None = None
    ) -> None:
        if memory is None:
            num_slots = max(group.kv_cache_spec.block_size for group in config.kv_cache_groups)
            memory = Memory(config.num_blocks, num_slots)
        self.worker = StubWorker(config, [memory], vocabulary_size=vocabulary_size)
        self._num_logprobs: dict[RequestId, int] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step."""
        for request_id in (*plan.finished_request_ids, *plan.preempted_request_ids):
            self._num_logprobs.pop(request_id, None)
        for new in plan.new_sequences:
            if new.sampling.num_logprobs is not None:
                self._num_logprobs[new.request_id] = new.sampling.num_logprobs
        result = self.worker.execute(plan)
        return replace(
            result,
            sampled={name: self._likely(name, said) for name, said in result.sampled.items()},
        )

    def _likely(self, request_id: RequestId, said: SampledTokens) -> SampledTokens:
        """With logprobs, if they are wanted: the token, then its neighbours, ever less likely."""
        wanted = self._num_logprobs.get(request_id)
        if wanted is None:
            return said
        size = self.worker.model.vocabulary_size
        logprobs = tuple(
            TokenLogprobs(-0.5, tuple(((token + i) % size, -0.5 - i) for i in range(wanted)))
            for token in said.token_ids
        )
        return replace(said, logprobs=logprobs)
