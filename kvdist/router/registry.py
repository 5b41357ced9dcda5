"""The nodes that register themselves.

Owns:   when each was last heard of, and which runs of a node are over (T21).
Knows nothing of: HTTP.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import structlog

from kvdist.errors import Superseded, Unavailable
from kvdist.ids import NodeId
from kvdist.router.nodes import Node, Nodes
from kvdist.web.membership import EXPIRES_S, MAX_MEMBERS, SILENT_S, Member

_log = structlog.get_logger(__name__)

#: Names of nodes that are gone; of those before, a late word could be taken for news.
_MAX_REMEMBERED: Final = 4 * MAX_MEMBERS
#: So often it is looked for nodes that are silent.
LOOK_S: Final = 0.5


@dataclass(slots=True)
class _Entry:
    member: Member
    heard_s: float
    node: Node


class Registry:
    """Times come from the caller: seconds of one clock that never goes back."""

    def __init__(self, nodes: Nodes, now_s: float) -> None:
        self._nodes = nodes
        self._looked_s = now_s
        self._entries: dict[NodeId, _Entry] = {}
        self._num_came = 0
        #: Of each that is gone: the last incarnation that can't come back.
        self._over: OrderedDict[NodeId, int] = OrderedDict()

    @property
    def members(self) -> list[Member]:
        """All that are there."""
        return [entry.member for entry in self._entries.values()]

    def told(self, name: NodeId) -> None:
        """That node is told now who the members are."""
        self._entries[name].node.knows_up_to = self._num_came

    def heard(self, member: Member, now_s: float) -> None:
        """A node says that it is there. Raises: Superseded; Unavailable; nothing has changed then.

        What comes after its end or from an earlier run is late, and changes nothing (T21).
        """
        name = member.node_id
        entry = self._entries.get(name)
        if member.incarnation <= self._over.get(name, -1):
            raise Superseded(f"this run of {name} is over")
        if entry is None:
            self._admit(member, now_s)
        elif member.incarnation > entry.member.incarnation:
            self._end(name, "there is a later run of it", over=entry.member.incarnation)
            self._admit(member, now_s)
        elif member.incarnation < entry.member.incarnation:
            raise Superseded(f"a later run of {name} is there")
        elif not _is_same(member, entry.member):
            raise Superseded(f"another process is called {name}, and began at the same time")
        else:
            entry.member, entry.heard_s = member, now_s
            entry.node.heard(ready=member.ready, role=member.role)

    def left(self, name: NodeId, incarnation: int) -> None:
        """That run of the node has ended."""
        entry = self._entries.get(name)
        if entry is not None and entry.member.incarnation <= incarnation:
            self._end(name, "it has ended", over=entry.member.incarnation)

    def expire(self, now_s: float) -> None:
        """Who is silent gets nothing new; who has been for too long is gone, though that run may
        come back.

        To be called every `LOOK_S`. If nobody did for longer, it is this process that has stood
        still, and what nodes have said meanwhile is still to be read.
        """
        stood_still_s = now_s - self._looked_s - LOOK_S
        self._looked_s = now_s
        for name, entry in list(self._entries.items()):
            if stood_still_s > LOOK_S:
                entry.heard_s += stood_still_s
            silent_s = now_s - entry.heard_s
            if silent_s > EXPIRES_S:
                why = f"nothing was heard of it for {EXPIRES_S:g} s"
                self._end(name, why, over=entry.member.incarnation - 1)
            elif silent_s > SILENT_S and entry.node.ready:
                entry.node.ready = False
                _log.warning("node silent", node=name, silent_s=round(silent_s, 1))

    def _admit(self, member: Member, now_s: float) -> None:
        if (taken := self._nodes.get(member.node_id)) is not None:
            raise Superseded(f"{taken} is a node that this router was given")
        if len(self._entries) >= MAX_MEMBERS:
            raise Unavailable(f"there are {MAX_MEMBERS} nodes already")
        node = Node(member.node_id, member.role, member.api, member.model)
        node.heard(ready=member.ready, role=member.role)
        self._num_came += 1
        node.came, node.knows_up_to = self._num_came, 0
        self._nodes.put(node)
        self._entries[member.node_id] = _Entry(member, now_s, node)
        _log.info("node registered", node=member.node_id, role=member.role, api=member.api)

    def _end(self, name: NodeId, why: str, *, over: int) -> None:
        del self._entries[name]
        self._over[name] = over
        self._over.move_to_end(name)
        while len(self._over) > _MAX_REMEMBERED:
            self._over.popitem(last=False)
        self._nodes.drop(name, why)
        _log.info("node gone", node=name, reason=why)


def _is_same(one: Member, other: Member) -> bool:
    return (one.api, one.control, one.model) == (other.api, other.control, other.model)
