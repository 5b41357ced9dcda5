"""Carries out step plans: the worker's side of the delta protocol (S26).

Owns:   the pool, and what it knows of sequences.
Knows nothing of: the scheduler; who asks, and over what.
Source: vLLM's `GPUModelRunner.execute_model` (vllm/v1/worker/gpu_model_runner.py, 0.32).
"""

from collections.abc import Sequence

import torch

from kvdist.cache import SlidingWindowSpec
from kvdist.cache.grouping import KVCacheLayout
from kvdist.errors import LocalMisuse
from kvdist.ids import GroupId
from kvdist.sched.plan import StepPlan, StepResult
from kvdist.worker.attention import LayerMemory
from kvdist.worker.batch import CallBuilder, GroupGeometry, Packing, Piece
from kvdist.worker.model import Model
from kvdist.worker.pool import KVPool
from kvdist.worker.rows import Rows
from kvdist.worker.sampling import sample


class ModelRunner:
    """One rank of a node. A plan is executed as a whole, one after the other, in one thread."""

    def __init__(self, model: Model, layout: KVCacheLayout, num_blocks: int) -> None:
        self.model = model
        self.pool = KVPool(layout, num_blocks, model.device)
        self.rows = Rows(len(layout.kv_cache_groups), model.vocab_size)
        self._calls = _call_builder(model, self.pool)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. Raises: LocalMisuse for a plan that doesn't fit what came before."""
        self.rows.drop(plan.finished_request_ids)
        self.rows.drop(plan.preempted_request_ids)
        self.pool.copy(plan.block_copies)
        for new in plan.new_sequences:
            self.rows.add(new)
        pieces = []
        for part in plan.scheduled:
            if part.draft_token_ids:
                raise LocalMisuse("no drafter here: num_lookahead_tokens has to be 0")
            row = self.rows.extend(part)
            pieces.append(Piece(row, part.num_computed_tokens, part.num_tokens, part.samples))
        if not pieces:
            return StepResult(plan.step)
        sampling = [
            (part.request_id, piece)
            for part, piece in zip(plan.scheduled, pieces, strict=True)
            if piece.samples
        ]
        logits = self._compute(pieces)
        answers = sample(logits, [piece.row for _, piece in sampling])
        for (_, piece), answer in zip(sampling, answers, strict=True):
            piece.row.append(answer.token_ids[0])
        names = (request_id for request_id, _ in sampling)
        return StepResult(plan.step, dict(zip(names, answers, strict=True)))

    def _compute(self, pieces: Sequence[Piece]) -> torch.Tensor:
        """Logits after the last token of each piece that samples, in their order."""
        packing = Packing(pieces, self.model.device)
        call = self._calls.build(packing, self.rows.tables.commit(self.model.device))
        output = self.model.network(
            input_ids=packing.tokens[None],
            position_ids=packing.positions[None],
            use_cache=False,
            logits_to_keep=packing.samples,
            kvdist_call=call,
        )
        logits: torch.Tensor = output.logits[0]
        return logits


def _call_builder(model: Model, pool: KVPool) -> CallBuilder:
    layout = pool.layout
    memories: dict[int, LayerMemory] = {}
    groups: dict[GroupId, GroupGeometry] = {}
    for layer in model.layers:
        group_id = pool.pages[layer.name].group_id
        spec = layout.kv_cache_groups[group_id].kv_cache_spec
        width = 2 * layer.head_dim
        line = spec.block_size * width
        flat = pool.elements(layer.name, model.dtype)
        memories[layer.index] = LayerMemory(
            group_id, layer.num_kv_heads, flat.view(-1, width), flat.view(-1, line)
        )
        groups[group_id] = GroupGeometry(
            spec.block_size,
            spec.sliding_window if isinstance(spec, SlidingWindowSpec) else None,
            layer.num_kv_heads,
            pool.block_stride(model.dtype) // line,
        )
    return CallBuilder(memories, groups, model.dtype)
