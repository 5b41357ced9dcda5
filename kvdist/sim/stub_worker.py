"""A worker without tensors: runs plans against memory whose contents are numbers.

Owns:   its block tables and tokens, kept from the plans alone (S24, S26).
Knows nothing of: the scheduler, the block manager; it believes what plans say.
Source: the order of work is that of vLLM's model runner (vllm/v1/worker/gpu_model_runner.py, 0.32).

Of each chunk it reads all that the chunk's tokens may read, compares that with what should be
there, and lets every difference spoil what it writes: so an error in a chunk that samples nothing
is seen in the tokens that come later.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvdist.cache import KVCacheConfig
from kvdist.ids import RequestId
from kvdist.sched.plan import NewSequence, SampledTokens, ScheduledSequence, StepPlan, StepResult
from kvdist.sim.contents import VOCABULARY_SIZE, GroupModel, ModelContents, chain
from kvdist.sim.memory import POISON, Memory


@dataclass(slots=True)
class _Row:
    """What the worker knows of one sequence."""

    tokens: list[int]
    #: The chain's last link.
    link: int
    #: For each column, what should be in the cells of all tokens; for cross attention, of the
    #: encoder's.
    cells: list[list[int]]
    tables: list[list[int]]


class StubWorker:
    """All ranks of a node: each memory has some of the heads, and all run the same plan."""

    def __init__(
        self,
        config: KVCacheConfig,
        memories: Sequence[Memory],
        num_drafts: int = 0,
        vocabulary_size: int = VOCABULARY_SIZE,
    ) -> None:
        heads = sorted({head for memory in memories for head in memory.heads})
        self.model = ModelContents(config, len(heads), vocabulary_size)
        self.rows: dict[RequestId, _Row] = {}
        self.memories = tuple(memories)
        self._num_drafts = num_drafts
        #: The order of `ModelContents`: group by group, head by head; and every copy of a head.
        self._columns: list[tuple[GroupModel, Memory, int]] = []
        #: Where the copies of each group's heads are among the columns.
        self._copies: list[list[int]] = []
        for group in self.model.groups:
            for head in heads:
                found = [(group, memory, head) for memory in memories if head in memory.heads]
                first = len(self._columns)
                self._copies.append(list(range(first, first + len(found))))
                self._columns += found

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step."""
        for request_id in (*plan.finished_request_ids, *plan.preempted_request_ids):
            self.rows.pop(request_id, None)
        for copy in plan.block_copies:
            for memory in self.memories:
                memory.copy(copy.source, copy.target)
        for new in plan.new_sequences:
            self._introduce(new)
        sampled: dict[RequestId, SampledTokens] = {}
        for scheduled in plan.scheduled:
            answer = self._compute(scheduled, plan.num_lookahead_tokens)
            if answer is not None:
                sampled[scheduled.request_id] = answer
        return StepResult(plan.step, sampled)

    # -- rows ----------------------------------------------------------------------------------

    def _introduce(self, new: NewSequence) -> None:
        links, encoder_links = chain(new.token_ids), chain(new.encoder_token_ids)
        tables: list[list[int]] = [list(table) for table in new.block_ids]
        columns = [
            group.cells(encoder_links if group.is_cross else links, head)
            for group, _, head in self._columns
        ]
        self.rows[new.request_id] = _Row(list(new.token_ids), links[-1], columns, tables)
        for (group, memory, head), cells in zip(self._columns, columns, strict=True):
            if group.is_cross:
                _write(memory, head, tables[group.group_id], group.block_size, 0, cells)

    def _append(self, row: _Row, token: int) -> None:
        row.tokens.append(token)
        (row.link,) = links = chain((token,), row.link)
        for (group, _, head), cells in zip(self._columns, row.cells, strict=True):
            if not group.is_cross:
                cells += group.cells(links, head)

    # -- computing -----------------------------------------------------------------------------

    def _compute(
        self, scheduled: ScheduledSequence, num_lookahead_tokens: int
    ) -> SampledTokens | None:
        row, start = self.rows[scheduled.request_id], scheduled.num_computed_tokens
        for table, added in zip(row.tables, scheduled.new_block_ids, strict=True):
            table += added
        end = start + scheduled.num_tokens
        tokens = [self._run(row, start, end)]
        if not scheduled.samples:
            return None
        planned_end = end + len(scheduled.draft_token_ids)
        self._append(row, tokens[0])
        for draft in scheduled.draft_token_ids:
            if draft != tokens[-1]:
                break
            tokens.append(self._run(row, end, end + 1))
            self._append(row, tokens[-1])
            end += 1
        if num_lookahead_tokens:
            self._write_drafts(row, end, planned_end, num_lookahead_tokens)
        return SampledTokens(tuple(tokens), self._guess(row))

    def _run(self, row: _Row, start: int, end: int) -> int:
        """Compute tokens [start, end); returns the token that follows."""
        reads: list[list[int]] = []
        spoil = 0
        for (group, memory, head), wanted in zip(self._columns, row.cells, strict=True):
            table, size = row.tables[group.group_id], group.block_size
            if group.is_cross:
                found = _read(memory, head, table, size, 0, len(wanted))
                wrong = found != wanted
            elif group.is_state:
                found = [memory.cells(table[(start - 1) // size], head)[0]] if start else []
                wrong = found != wanted[start - 1 : start] if start else False
            else:
                first = group.first_read(start)
                found = _read(memory, head, table, size, first, start)
                wrong = found != wanted[first:start]
            if wrong:
                spoil = hash((spoil, *found))
            reads.append(found)
        self._write_chunk(row, start, end, spoil, reads)
        return self.model.sample(self._one_copy(reads))

    def _one_copy(self, reads: list[list[int]]) -> list[list[int]]:
        """Of each head what one rank has read: the first that isn't like the others, if any is."""
        return [
            next((reads[i] for i in copies if reads[i] != reads[copies[0]]), reads[copies[0]])
            for copies in self._copies
        ]

    def _write_chunk(
        self, row: _Row, start: int, end: int, spoil: int, reads: list[list[int]]
    ) -> None:
        """Write what was computed; `reads` become those of the last token."""
        for i, (group, memory, head) in enumerate(self._columns):
            if group.is_cross:
                continue
            table, size = row.tables[group.group_id], group.block_size
            cells = row.cells[i][start:end]
            if spoil:
                cells = [cell ^ spoil for cell in cells]
            if group.is_state:
                if block_id := table[(end - 1) // size]:
                    memory.cells(block_id, head)[0] = cells[-1]
                reads[i] = cells[-1:]
                continue
            _write(memory, head, table, size, start, cells)
            first = group.first_read(end - 1)
            reads[i] = (reads[i] + cells)[first - end :]

    # -- drafts --------------------------------------------------------------------------------

    def _guess(self, row: _Row) -> tuple[int, ...]:
        """Drafts for the next step; how many of them are right depends on the tokens."""
        if not self._num_drafts:
            return ()
        known, link = len(row.tokens), row.link
        num_right = hash((link, 0)) % (self._num_drafts + 1)
        for _ in range(num_right):
            last = len(row.tokens) - 1
            reads = [
                cells if group.is_cross else cells[group.first_read(last) :]
                for (group, _, _), cells in zip(self._columns, row.cells, strict=True)
            ]
            self._append(row, self.model.sample(self._one_copy(reads)))
        drafts = row.tokens[known:] + [0] * (self._num_drafts - num_right)
        del row.tokens[known:]
        row.link = link
        for (group, _, _), cells in zip(self._columns, row.cells, strict=True):
            if not group.is_cross:
                del cells[known:]
        return tuple(drafts)

    def _write_drafts(self, row: _Row, end: int, planned_end: int, num_lookahead: int) -> None:
        """Behind what counts: drafts that were wrong, a drafter's own tokens, scratch states."""
        for group, memory, head in self._columns:
            table, size = row.tables[group.group_id], group.block_size
            if group.is_cross:
                continue
            if group.is_state:
                for block_id in table[(planned_end - 1) // size + 1 :]:
                    memory.poison([block_id] if block_id else [])
                continue
            slots = min(planned_end + num_lookahead, len(table) * size)
            _write(memory, head, table, size, end, [POISON] * (slots - end))


def _read(
    memory: Memory, head: int, table: list[int], size: int, start: int, end: int
) -> list[int]:
    """The cells of positions [start, end)."""
    if start >= end:
        return []
    first = start // size
    found: list[int] = []
    for block_id in table[first : (end - 1) // size + 1]:
        found += memory.cells(block_id, head)[:size]
    return found[start - first * size : end - first * size]


def _write(
    memory: Memory, head: int, table: list[int], size: int, start: int, cells: list[int]
) -> None:
    """Put cells at positions from `start` on; null blocks keep nothing."""
    position, end = start, start + len(cells)
    while position < end:
        block_id, slot = table[position // size], position % size
        upto = min(end, position - slot + size)
        if block_id:
            memory.cells(block_id, head)[slot : slot + upto - position] = cells[
                position - start : upto - start
            ]
        position = upto
