"""A node by itself."""

from kvdist.connector.host import NOTHING, PENDING
from kvdist.ids import BlockId
from kvdist.sched.roles import NoRemoteCache
from tests.make import Node

TABLES = [[BlockId(1)]]


def test_nothing_is_anywhere_else_and_nobody_reads() -> None:
    alone = NoRemoteCache()
    request = Node().request("r", [1])
    alone.arrived(request, None, prefill_only=True)
    assert alone.match(request, 0) == NOTHING != PENDING
    assert not alone.take_answered()
    assert alone.may_preempt(request)
    assert not alone.finished(request, TABLES, 1, is_usable=True)
    alone.admitted(request, TABLES, 0, 0)
    alone.settled(request, 1)
