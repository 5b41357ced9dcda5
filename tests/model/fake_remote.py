"""A remote cache that does as it is told: it offers, loads, fails, is late, lends, reads along.

Owns:   what it was asked for and has not answered.
Knows nothing of: the scheduler's state; it sees what the role shows.

It looks whether what it is told is there: the K/V that a sequence has, when a step is settled and
when it ends, and all the time while blocks are lent.
"""

from collections.abc import Mapping, Sequence as Listing
from dataclasses import dataclass, field

from kvdist.cache import Request
from kvdist.connector.host import NOTHING, PENDING, BlockTables, Match
from kvdist.ids import BlockId
from kvdist.sim.contents import ModelContents, chain
from kvdist.sim.memory import Memory


@dataclass
class Load:
    request: Request
    tables: list[list[int]]
    start: int
    end: int
    tokens: list[int]

    def block_ids(self, model: ModelContents) -> list[int]:
        """Where bytes may land."""
        return sorted(
            {
                block
                for group, table in zip(model.groups, self.tables, strict=True)
                for block in table[self.start // group.block_size :]
                if block
            }
        )


@dataclass
class Loan:
    blocks: list[int]
    cells: list[list[int]]


@dataclass
class FakeRemote:
    """The fields are what it has been told to do; by default nothing is anywhere else."""

    model: ModelContents | None = None
    memories: Listing[Memory] = ()
    #: What can be loaded, by id; None: not known yet.
    offers: dict[str, int | None] = field(default_factory=dict)
    #: Sequences whose blocks are kept when they end.
    lends: set[str] = field(default_factory=set)
    #: Sequences that a peer reads along.
    reading: set[str] = field(default_factory=set)
    loads: dict[str, Load] = field(default_factory=dict)
    #: Who was told to wait; and who may not compute what it lacks, and why.
    waiting: dict[str, None] = field(default_factory=dict)
    #: Names whoever waits at each step, news or none.
    is_restless: bool = False
    refusals: dict[str, str] = field(default_factory=dict)
    loans: list[Loan] = field(default_factory=list)
    #: (call, id, number), in order.
    calls: list[tuple[str, str, int]] = field(default_factory=list)

    # -- the role ------------------------------------------------------------------------------

    def match(self, request: Request, num_local_tokens: int) -> Match:
        self.calls.append(("match", request.request_id, num_local_tokens))
        total = self.offers.get(request.request_id, 0)
        if total is None:
            self.waiting[request.request_id] = None
            return PENDING
        if request.request_id in self.refusals:
            return Match(refused=self.refusals[request.request_id])
        return Match(total - num_local_tokens) if total > num_local_tokens else NOTHING

    def take_answered(self) -> list[str]:
        answered = [
            name
            for name in self.waiting
            if self.is_restless or self.offers.get(name, 0) is not None
        ]
        for name in answered:
            del self.waiting[name]
        return answered

    def admitted(
        self,
        request: Request,
        block_ids: BlockTables,
        num_local_tokens: int,
        num_external_tokens: int,
    ) -> None:
        name, end = request.request_id, num_local_tokens + num_external_tokens
        self.calls.append(("admitted", name, num_external_tokens))
        if num_external_tokens:
            assert name not in self.loads
            tables = [list(map(int, table)) for table in block_ids]
            tokens = list(request.all_token_ids[:end])
            self.loads[name] = Load(request, tables, num_local_tokens, end, tokens)

    def settled(self, request: Request, num_tokens: int) -> None:
        self.calls.append(("settled", request.request_id, num_tokens))

    def may_preempt(self, request: Request) -> bool:
        self.calls.append(("may_preempt", request.request_id, 0))
        return request.request_id not in self.reading

    def arrived(
        self,
        request: Request,
        kv_transfer_params: Mapping[str, object] | None,
        *,
        prefill_only: bool,
    ) -> None:
        self.calls.append(("arrived", request.request_id, 0))

    def short_of_blocks(self) -> None:
        """Nothing is lent without need."""

    def finished(
        self, request: Request, block_ids: BlockTables, num_tokens: int, *, is_usable: bool
    ) -> list[BlockId]:
        name = request.request_id
        assert ("finished", name) not in [call[:2] for call in self.calls], "told twice"
        self.calls.append(("finished", name, num_tokens))
        tables = [list(map(int, table)) for table in block_ids]
        self.check_cells(request, tables, num_tokens)
        if name not in self.lends:
            return []
        blocks = [BlockId(block) for table in tables for block in table if block]
        self.loans.append(Loan(list(blocks), self._lent_cells(tables, num_tokens)))
        return blocks

    # -- what becomes of it --------------------------------------------------------------------

    def land(self, load: Load) -> None:
        """All bytes of a load arrive."""
        assert self.model is not None
        links = chain(load.tokens)
        for group, table in zip(self.model.groups, load.tables, strict=True):
            if group.is_cross:
                continue
            size = group.block_size
            first = load.end - 1 if group.is_state else load.start
            for memory in self.memories:
                for head in memory.heads:
                    cells = group.cells(links[first : load.end], head)
                    for position, cell in enumerate(cells, first):
                        if block := table[position // size]:
                            slot = 0 if group.is_state else position % size
                            memory.cells(block, head)[slot] = cell

    def scribble(self, blocks: Listing[int]) -> None:
        """Bytes of a load that is over still arrive."""
        for memory in self.memories:
            memory.poison(blocks)

    def check_cells(self, request: Request, tables: list[list[int]], num_tokens: int) -> None:
        """All that a peer could resume with after so many tokens is there."""
        if not num_tokens or self.model is None:
            return
        links = chain(request.all_token_ids[:num_tokens])
        for group, table in zip(self.model.groups, tables, strict=True):
            if group.is_cross:
                continue
            size, first = group.block_size, group.first_read(num_tokens)
            if group.is_state:
                first = num_tokens - 1
            for memory in self.memories:
                for head in memory.heads:
                    wanted = group.cells(links[first:], head)
                    found = [
                        memory.cells(table[p // size], head)[0 if group.is_state else p % size]
                        for p in range(first, num_tokens)
                    ]
                    assert found == wanted, f"{request}: group {group.group_id}"

    def _lent_cells(self, tables: list[list[int]], num_tokens: int) -> list[list[int]]:
        """References to the cells that a peer reads, for groups that keep tokens."""
        assert self.model is not None
        lent = []
        for group, table in zip(self.model.groups, tables, strict=True):
            whole = num_tokens // group.block_size
            for block in table[:whole] if not (group.is_cross or group.is_state) else ():
                if block:
                    for memory in self.memories:
                        lent += [list(memory.cells(block, head)) for head in memory.heads]
        return lent

    def check_loans(self) -> None:
        """Nobody writes into what is lent."""
        for loan in self.loans:
            still = [
                memory.cells(block, head)
                for block in loan.blocks
                for memory in self.memories
                for head in memory.heads
            ]
            assert all(cells in still for cells in loan.cells), "a lent block was overwritten"
