"""A worker whose tables are not the node's is found out (I5)."""

from dataclasses import replace

import pytest

from kvdist.cache import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheManager,
    KVCacheSpec,
    MambaSpec,
)
from kvdist.errors import InvariantViolation
from kvdist.sched.plan import SampledTokens, ScheduledSequence, StepResult
from kvdist.sched.scheduler import Scheduler
from kvdist.sched.table_checksum import table_checksum, used_entries

PART = ScheduledSequence("r", 40, 8, True, ((),))


@pytest.mark.parametrize(
    ("spec", "entries"),
    [
        (FullAttentionSpec(block_size=4), slice(0, 12)),
        (ChunkedLocalAttentionSpec(block_size=4, attention_chunk_size=32), slice(8, 12)),
        (MambaSpec(block_size=4), slice(9, 12)),
        (CrossAttentionSpec(block_size=4), slice(None)),
    ],
)
def test_what_a_step_uses(spec: KVCacheSpec, entries: slice) -> None:
    assert used_entries(spec, PART) == entries


def test_drafts_are_computed_too() -> None:
    assert (
        used_entries(FullAttentionSpec(block_size=4), replace(PART, draft_token_ids=(1,))).stop
        == 13
    )


@pytest.mark.parametrize("wrong", [False, True])
def test_a_wrong_block_is_found_out(wrong: bool) -> None:
    config = KVCacheConfig.single(FullAttentionSpec(block_size=4), num_blocks=11)
    scheduler = Scheduler(KVCacheManager(config))
    (sequence,) = scheduler.add("r", [1] * 6)
    plan = scheduler.schedule()
    assert plan is not None
    (table,) = plan.new_sequences[0].block_ids
    used = table[::-1] if wrong else table
    specs = [config.kv_cache_groups[0].kv_cache_spec]
    checksum = table_checksum(specs, plan.scheduled, lambda _: (used,))
    result = StepResult(plan.step, {sequence.request_id: SampledTokens((7,))}, checksum)
    if wrong:
        with pytest.raises(InvariantViolation, match="I5"):
            scheduler.settle(result)
    else:
        assert scheduler.settle(result)
