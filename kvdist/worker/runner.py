"""Carries out step plans: the worker's side of the delta protocol (S26).

Owns:   the pool, and what it knows of sequences.
Knows nothing of: the scheduler; who asks, and over what.
Source: vLLM's `GPUModelRunner.execute_model` (vllm/v1/worker/gpu_model_runner.py, 0.32).
"""

from collections.abc import Sequence

import torch
from transformers.cache_utils import Cache

from kvdist import check
from kvdist.cache import SlidingWindowSpec
from kvdist.cache.grouping import KVCacheLayout
from kvdist.errors import LocalMisuse
from kvdist.ids import GroupId
from kvdist.sched.plan import NewSequence, StepPlan, StepResult
from kvdist.worker.attention import LayerMemory
from kvdist.worker.batch import CallBuilder, GroupGeometry, Packing, Piece
from kvdist.worker.encoder import EncoderDecoder
from kvdist.worker.model import Model
from kvdist.worker.poison import Poison
from kvdist.worker.pool import KVPool
from kvdist.worker.rows import Rows
from kvdist.worker.sampling import sample
from kvdist.worker.states import States


class ModelRunner:
    """One rank of a node. A plan is executed as a whole, one after the other, in one thread."""

    def __init__(
        self,
        model: Model,
        layout: KVCacheLayout,
        num_blocks: int,
        memory: memoryview | None = None,
    ) -> None:
        self.model = model
        self.pool = KVPool(layout, num_blocks, model.device, memory)
        self.rows = Rows(len(layout.kv_cache_groups), model.vocab_size)
        self._specs = [group.kv_cache_spec for group in layout.kv_cache_groups]
        self._builder = _call_builder(model, self.pool)
        self._encoder = EncoderDecoder(model, self._builder) if model.hearing else None
        self._states: States | None = None
        if model.state_layers:
            num_layers = model.network.config.num_hidden_layers
            self._states = States(model.state_layers, num_layers, self.pool)
        self._poison = Poison(self.pool, self._builder) if check.level == 2 else None

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step.

        Raises: LocalMisuse for a plan that doesn't fit what came before; InvariantViolation, at
        check level 2, if something was read that nobody has written.
        """
        self.rows.drop(plan.finished_request_ids)
        self.rows.drop(plan.preempted_request_ids)
        if self._poison is not None:
            self._poison.spread(plan)
        self.pool.copy(plan.block_copies)
        for new in plan.new_sequences:
            self._add(new)
        pieces = []
        for turn in plan.scheduled:
            if turn.draft_token_ids:
                raise LocalMisuse("no drafter here: num_lookahead_tokens has to be 0")
            row = self.rows.extend(turn)
            pieces.append(Piece(row, turn.num_computed_tokens, turn.num_tokens, turn.samples))
        if not pieces:
            return StepResult(plan.step)
        sampling = [
            (turn.request_id, piece)
            for turn, piece in zip(plan.scheduled, pieces, strict=True)
            if piece.samples
        ]
        logits = self._compute(pieces, self.rows.tables.commit(self.model.device))
        answers = sample(logits, [piece.row for _, piece in sampling])
        for (_, piece), answer in zip(sampling, answers, strict=True):
            piece.row.append(answer.token_ids[0])
        names = (request_id for request_id, _ in sampling)
        checksum = self.rows.checksum(self._specs, plan.scheduled)
        return StepResult(plan.step, dict(zip(names, answers, strict=True)), checksum)

    def _add(self, new: NewSequence) -> None:
        """A row for it; an encoder has run when this returns, unless what it makes was loaded."""
        num_loaded = new.num_loaded_encoder_tokens
        if (new.audio is not None or num_loaded > 0) != (self._encoder is not None):
            raise LocalMisuse(f"sequence {new.request_id} has sound, or the model hears: not both")
        if self._encoder is not None and num_loaded not in (0, self._encoder.num_tokens):
            raise LocalMisuse(f"sequence {new.request_id} has no sound, but {num_loaded} tokens")
        row = self.rows.add(new)
        if self._encoder is not None and new.audio is not None:
            self._encoder.run(row, new.audio, self.rows.tables)

    def _compute(self, pieces: Sequence[Piece], tables: Sequence[torch.Tensor]) -> torch.Tensor:
        """Logits after the last token of each piece that samples, in their order."""
        logits = self._run(pieces, tables)
        if self._poison is not None:
            self._poison.check(pieces, tables)
        return logits

    def _run(self, pieces: Sequence[Piece], tables: Sequence[torch.Tensor]) -> torch.Tensor:
        states = self._states
        if states is None:
            return self._call(Packing(pieces, self.model.device), tables)
        self.pool.clear(self._builder.begun_blocks(pieces, self.rows.tables))
        logits = []
        for some in states.calls(pieces, self.rows.tables):
            if self._poison is not None:
                self._poison.check_states(states.sources(some, self.rows.tables))
            cache = states.load(some, self.rows.tables)
            logits.append(self._call(Packing(some, self.model.device), tables, cache))
            states.store(cache, some, self.rows.tables)
        return torch.cat(logits)

    def _call(
        self, packing: Packing, tables: Sequence[torch.Tensor], cache: Cache | None = None
    ) -> torch.Tensor:
        """Tokens are one long row for a model without states, and a column for those that go on."""
        shape = (-1, 1) if cache is not None and packing.all_single else (1, -1)
        call = self._builder.build(packing, tables)
        if self._encoder is not None:
            return self._encoder.decode(packing, call)
        states = {} if cache is None else {self.model.cache_keyword: cache}
        output = self.model.network(
            input_ids=packing.tokens.view(shape),
            position_ids=packing.positions.view(shape),
            use_cache=cache is not None,
            logits_to_keep=packing.samples if shape == (1, -1) else 1,
            kvdist_call=call,
            **states,
        )
        logits: torch.Tensor = output.logits
        return logits[0] if shape == (1, -1) else logits[packing.samples, 0]


def _call_builder(model: Model, pool: KVPool) -> CallBuilder:
    layout = pool.layout
    memories: dict[int, LayerMemory] = {}
    cross: dict[int, LayerMemory] = {}
    groups: dict[GroupId, GroupGeometry] = {}
    for layer in model.attention_layers:
        group_id = pool.pages[layer.name].group_id
        spec = layout.kv_cache_groups[group_id].kv_cache_spec
        width = 2 * layer.head_dim
        line = spec.block_size * width
        flat = pool.elements(layer.name, model.dtype)
        (cross if layer.is_cross else memories)[layer.index] = LayerMemory(
            group_id, layer.num_kv_heads, flat.view(-1, width), flat.view(-1, line)
        )
        groups[group_id] = GroupGeometry(
            spec.block_size,
            spec.sliding_window if isinstance(spec, SlidingWindowSpec) else None,
            layer.num_kv_heads,
            pool.block_stride(model.dtype) // line,
            layer.is_cross,
        )
    return CallBuilder(memories, groups, model.dtype, cross)
