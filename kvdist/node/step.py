"""One step of a node: the file to read first.

Owns:   the order of the chapters.
Knows nothing of: how any of them is done.

    1 arrive    requests that came since the last beat join the queue     inbox, sched/scheduler
    2 plan      who runs next, and how many tokens of each                sched/planner
    3 take      blocks for them, and what the cache has already           cache/manager
    4 move      block copies, and K/V from and to other nodes             the worker, exchange
    5 compute   the model runs; meanwhile the next step is planned        compute, worker_process
    6 settle    what was computed counts, and can be found by others      sched/scheduler
    7 hand on   blocks of who has ended go back, or are lent              sched/roster, exchange
    8 tell      tokens to those who wait for them                         outbox
"""

from typing import Protocol

from kvdist.node.compute import Compute
from kvdist.node.exchange import Exchange
from kvdist.node.inbox import Inbox
from kvdist.node.outbox import Outbox
from kvdist.sched.scheduler import Scheduler


class Node(Protocol):
    """The parts that a step goes through; `engine` has them."""

    inbox: Inbox
    scheduler: Scheduler
    compute: Compute
    outbox: Outbox
    #: None: it is by itself.
    exchange: Exchange | None


async def step(node: Node) -> None:
    """Let every request of this node advance by one step.

    Only `over` waits, for a result or an arrival. All else are plain calls on one thread, so
    nothing changes between two beats. Raises: WorkerLost.
    """
    node.inbox.admit(node.scheduler)  # 1 arrive
    if node.exchange:
        node.exchange.carry_out()  # 4 move, 7 hand on
    while plan := node.scheduler.schedule():  # 2 plan, 3 take
        node.compute.start(plan)  # 4 move, 5 compute
    if node.exchange:
        node.exchange.carry_out()
    node.outbox.tell(node.scheduler.take_outputs())  # who ended without computing
    for ended in await node.compute.over():
        news = ended.settle(node.scheduler)  # 6 settle, 7 hand on
        node.outbox.tell(news)  # 8 tell
