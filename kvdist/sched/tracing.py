"""What a plan does for each of its sequences, as events; for traces.

Owns:   nothing.
Knows nothing of: who listens, why a step does what it does.
Source: the document's debugging line; see `kvdist.trace.line`.
"""

from kvdist.cache import KVCacheConfig, KVCacheManager
from kvdist.sched.plan import ScheduledSequence, StepPlan
from kvdist.trace.events import Began, Planned
from kvdist.trace.recorder import Recorder


def began(run: str, config: KVCacheConfig) -> Began:
    """What readers have to know of a node with this block manager."""
    specs = [group.kv_cache_spec for group in config.kv_cache_groups]
    return Began(
        run,
        config.num_blocks,
        tuple(spec.block_size for spec in specs),
        tuple(type(spec).__name__.removesuffix("Spec") for spec in specs),
        config.enable_caching,
    )


def note_plan(recorder: Recorder, plan: StepPlan, manager: KVCacheManager) -> None:
    """An event for each sequence of a step that was just planned."""
    introduced = {new.request_id for new in plan.new_sequences}
    for scheduled in plan.scheduled:
        whole = scheduled.request_id in introduced
        hit_tokens = recorder.hit_tokens.get(scheduled.request_id, 0)
        recorder.note(_planned(plan.step, scheduled, manager, hit_tokens, whole=whole))


def _planned(
    step: int,
    scheduled: ScheduledSequence,
    manager: KVCacheManager,
    hit_tokens: int,
    *,
    whole: bool,
) -> Planned:
    tables = manager.get_blocks(scheduled.request_id).blocks
    owned = tuple(tuple(block.block_id for block in table) for table in tables)
    new = list(scheduled.new_block_ids)
    ref_hit: list[int] = []
    for i, (group, table) in enumerate(zip(manager.config.kv_cache_groups, tables, strict=True)):
        num_hit = -(-hit_tokens // group.kv_cache_spec.block_size)
        if whole:
            new[i] = owned[i][num_hit:]
        ref_hit += [block.ref_cnt for block in table[:num_hit] if block.block_id]
    return Planned(
        step,
        scheduled.request_id,
        hit_tokens,
        scheduled.num_computed_tokens,
        scheduled.num_tokens + len(scheduled.draft_token_ids),
        scheduled.samples,
        whole,
        owned,
        tuple(new),
        manager.block_pool.get_num_free_blocks(),
        tuple(ref_hit),
    )
