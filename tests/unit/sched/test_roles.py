"""A node by itself."""

from kvdist.ids import BlockId
from kvdist.sched.roles import NOTHING, PENDING, NoRemoteCache
from kvdist.sched.sequence import Sequence
from tests.make import Node

TABLES = [[BlockId(1)]]


def test_nothing_is_anywhere_else_and_nobody_reads() -> None:
    alone = NoRemoteCache()
    sequence = Sequence(Node().request("r", [1]), max_len=9, arrival=1)
    assert alone.match(sequence, 0) == NOTHING != PENDING
    assert alone.may_preempt(sequence)
    assert not alone.finished(sequence, TABLES, 1)
    alone.admitted(sequence, TABLES, 0, 0)
    alone.settled(sequence, 1)
