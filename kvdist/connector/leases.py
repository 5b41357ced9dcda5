"""A lease, as data: blocks promised to one reader.

Owns:   nothing; `Lender` writes it.
Knows nothing of: why it changes.
"""

from dataclasses import dataclass, field

from kvdist.connector.machine import Machine
from kvdist.connector.messages import Blocks
from kvdist.connector.tables.lease import Effect, Event, State
from kvdist.ids import BlockId, Incarnation, LeaseId, NodeId, PullId, Rank, RequestId, TransferId


@dataclass(slots=True)
class Lease:
    """Blocks promised to one reader."""

    lease: LeaseId
    #: The request whose blocks these are; None: lent by hash.
    request_id: RequestId | None
    blocks: Blocks
    resume_tokens: int
    machine: Machine[State, Event, Effect]
    #: Written so far; less than `resume_tokens` while it streams.
    settled: int
    #: True once the host holds the blocks for us: the request has ended, or there is none.
    is_held: bool
    transfer: TransferId | None = None
    #: Who has it, as far as is known; of a lease by hash, who asked and under which number.
    reader: NodeId | None = None
    reader_run: Incarnation | None = None
    number: PullId | None = None
    #: When its whole life is over (T10).
    ends_at: float = 0.0
    ungranted: set[Rank] = field(default_factory=set)
    unrevoked: set[Rank] = field(default_factory=set)
    #: The blocks that are lent, null ones left out.
    block_ids: list[BlockId] = field(init=False)

    def __post_init__(self) -> None:
        self.block_ids = [block for table in self.blocks for block in table if block]

    def is_for(self, peer: NodeId) -> bool:
        """Whether this peer may speak of it. What was lent by hash is the asker's alone; a ticket
        is whose it is given to, and a router may give it to another (T19).
        """
        return self.number is None or self.reader == peer
