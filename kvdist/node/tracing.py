"""Trace lines: what each step does for each sequence, in the document's format.

Owns:   where the lines go.
Knows nothing of: why a step does what it does.
Source: `kvdist.trace`.
"""

from typing import TextIO

from kvdist.node.admissions import Admissions
from kvdist.sched.plan import ScheduledSequence, StepPlan
from kvdist.sched.scheduler import Scheduler
from kvdist.trace import step_line


class Tracer:
    """Writes to `out`; nothing without it."""

    def __init__(self, admissions: Admissions, out: TextIO | None = None) -> None:
        self._admissions = admissions
        self._out = out

    def note(self, plan: StepPlan, scheduler: Scheduler) -> None:
        """A line for each sequence of a step that was just planned."""
        if self._out is None:
            return
        introduced = {new.request_id for new in plan.new_sequences}
        for scheduled in plan.scheduled:
            is_new = scheduled.request_id in introduced
            self._out.write(self._line(plan.step, scheduled, scheduler, is_new=is_new) + "\n")

    def _line(
        self, step: int, scheduled: ScheduledSequence, scheduler: Scheduler, *, is_new: bool
    ) -> str:
        manager = scheduler.manager
        request_id, hit = scheduled.request_id, self._admissions.hit_tokens
        tables = manager.get_blocks(request_id).blocks
        hit_tokens = hit.get(request_id, 0)
        owned: list[list[int]] = [[block.block_id for block in table] for table in tables]
        new: list[list[int]] = [list(added) for added in scheduled.new_block_ids]
        ref_hit: list[int] = []
        for i, (group, table) in enumerate(
            zip(manager.config.kv_cache_groups, tables, strict=True)
        ):
            num_hit = -(-hit_tokens // group.kv_cache_spec.block_size)
            if is_new:
                new[i] = owned[i][num_hit:]
            ref_hit += [block.ref_cnt for block in table[:num_hit] if block.block_id]
        return step_line(
            step,
            request_id,
            hit_tokens,
            scheduled.num_tokens + len(scheduled.draft_token_ids),
            owned,
            new,
            manager.block_pool.get_num_free_blocks(),
            ref_hit,
        )
