"""Looks after the nodes: those that are given beforehand are asked, those that register must speak.

Owns:   the time between two looks.
Knows nothing of: requests of clients.
"""

import asyncio
from http import HTTPStatus
from typing import Final

from kvdist.errors import NodeFailed
from kvdist.router.nodes import Node, Nodes
from kvdist.router.registry import LOOK_S, Registry
from kvdist.router.settings import StaticNode
from kvdist.router.upstream import Upstream
from kvdist.web.membership import BEAT_S, EXPIRES_S

#: A node that is given beforehand and doesn't answer so often in a row is gone.
_MAX_MISSED: Final = int(EXPIRES_S / BEAT_S)


async def expire(registry: Registry) -> None:
    """Who is silent for too long is gone; until it is cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(LOOK_S)
        await asyncio.sleep(0)  # what has come in is read before clocks are looked at (T22)
        registry.expire(loop.time())


async def watch(static: StaticNode, nodes: Nodes, upstream: Upstream) -> None:
    """Ask this node again and again; until it is cancelled."""
    node, num_missed = _there(static, nodes), 0
    while True:
        ready = await _ready(node, upstream)
        if ready is None:
            num_missed += 1
            node.ready = False
            if num_missed == _MAX_MISSED:  # whoever waits for it needn't any more
                node = _there(static, nodes)
        else:
            num_missed = 0
            node.heard(ready=ready, role=static.role)
        await asyncio.sleep(BEAT_S)


def _there(static: StaticNode, nodes: Nodes) -> Node:
    node = Node(static.name, static.role, static.url)
    nodes.put(node)
    return node


async def _ready(node: Node, upstream: Upstream) -> bool | None:
    """None: no answer."""
    try:
        async with asyncio.timeout(BEAT_S), upstream.get(node, "/ready", {}) as reply:
            await reply.whole()
            return reply.status == HTTPStatus.OK
    except (NodeFailed, TimeoutError):
        return None
