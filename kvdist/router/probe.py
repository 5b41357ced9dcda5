"""Looks after the nodes: those that are given beforehand are asked, those that register must speak.

Owns:   the time between two looks.
Knows nothing of: requests of clients.
"""

import asyncio
from http import HTTPStatus

from kvdist.errors import NodeFailed
from kvdist.router.nodes import Node, Nodes
from kvdist.router.registry import LOOK_S, Registry
from kvdist.router.settings import StaticNode
from kvdist.router.upstream import Upstream
from kvdist.web.membership import BEAT_S, EXPIRES_S


async def expire(registry: Registry) -> None:
    """Who is silent for too long is gone; until it is cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(LOOK_S)
        await asyncio.sleep(0)  # what has come in is read before clocks are looked at (T22)
        registry.expire(loop.time())


async def watch(static: StaticNode, nodes: Nodes, upstream: Upstream) -> None:
    """Ask this node again and again; until it is cancelled."""
    loop = asyncio.get_running_loop()
    node, heard_s = _there(static, nodes), loop.time()
    while True:
        ready = await _ready(node, upstream)
        if ready is not None:
            heard_s = loop.time()
            node.heard(ready=ready, role=static.role)
        else:
            node.ready = False
            if loop.time() > heard_s + EXPIRES_S:  # whoever waits for it needn't any more
                node, heard_s = _there(static, nodes), loop.time()
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
