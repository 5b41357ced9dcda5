"""Which nodes there are, and which of them a request goes to.

Owns:   the nodes, and who is asking them.
Knows nothing of: how it is known that a node is there; HTTP.

The choice is the node of the right role and model that has the fewest requests, and of those the
one that was chosen longest ago. A node that couldn't be reached comes last until it is heard of.
One that has what a request begins with may be liked for that.
"""

from collections.abc import AsyncIterator, Collection, Iterator, Set
from contextlib import asynccontextmanager
from itertools import count
from math import inf
from typing import Final

from kvdist.errors import NodeFailed
from kvdist.ids import NodeId
from kvdist.router.scope import Scope
from kvdist.web.membership import Role

_choices: Final = count(1)
#: Requests more than elsewhere that are worth a prefix.
_MAX_MORE: Final = 4


class Node:
    """One run of a node."""

    def __init__(self, name: NodeId, role: Role, url: str, model: str | None = None) -> None:
        self.name, self.role, self.url = name, role, url
        #: None: nobody has said.
        self.model = model
        #: It takes new work.
        self.ready = False
        #: A request didn't reach it, and it wasn't heard of since.
        self.is_suspect = False
        #: Which choice of all was the last that fell on it.
        self.chosen_last = 0
        #: Which of all that registered it was, and the last of those that it has heard of.
        self.came, self.knows_up_to = 0, inf
        self._gone: NodeFailed | None = None
        self._asking: set[Scope] = set()

    def __repr__(self) -> str:
        return f"{self.name} ({self.role}, {self.url})"

    @property
    def num_requests(self) -> int:
        """Requests that are at this node."""
        return len(self._asking)

    def knows(self, other: "Node") -> bool:
        """It was told where `other` is; nodes that are named beforehand know each other."""
        return other.came <= self.knows_up_to

    def heard(self, *, ready: bool, role: Role) -> None:
        """It has said how it is."""
        self.ready, self.role, self.is_suspect = ready, role, False

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[None]:
        """The block has a request at this node. Raises: NodeFailed, as soon as it is gone."""
        if self._gone is not None:
            raise self._gone
        async with Scope() as scope:
            self._asking.add(scope)
            try:
                yield
            finally:
                self._asking.discard(scope)

    def lose(self, why: str) -> None:
        """It is gone: nobody waits for it any more."""
        self.ready = False
        self._gone = NodeFailed(f"node {self.name} is gone: {why}")
        for scope in self._asking:
            scope.cut(self._gone)


class Nodes:
    """By name; a later run of a node takes the place of the one before."""

    def __init__(self) -> None:
        self._nodes: dict[NodeId, Node] = {}

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def get(self, name: NodeId) -> Node | None:
        """The node of that name."""
        return self._nodes.get(name)

    def put(self, node: Node) -> None:
        """It is there now."""
        self.drop(node.name, "there is a later run of it")
        self._nodes[node.name] = node

    def drop(self, name: NodeId, why: str) -> None:
        """It is gone, if it was there."""
        if (node := self._nodes.pop(name, None)) is not None:
            node.lose(why)

    # -- the choice ----------------------------------------------------------------------------

    def decoder(
        self, model: object, without: Collection[Node] = (), liked: Node | None = None
    ) -> Node | None:
        """Who can answer a request for `model`, however a client calls it."""
        return self._of({"decode", "both"}, model, without, liked)

    def lender(self, model: object, without: Collection[Node] = ()) -> Node | None:
        """Who can compute a prompt for others."""
        return self._of({"prefill", "both"}, model, without)

    def prefiller(
        self, decoder: Node, without: Collection[Node] = (), liked: Node | None = None
    ) -> Node | None:
        """Who can compute a prompt for `decoder`, which has to know it.

        Nodes of both roles do it for those that only decode; by itself each of them needs nobody.
        """
        return _choose(self._prefillers(decoder), without, liked)

    def can_lend(self, node: Node, reader: Node) -> bool:
        """`node` is there, and `reader` knows it."""
        return (
            self.get(node.name) is node
            and node.ready
            and node is not reader
            and (reader.knows(node) and not node.is_suspect)
        )

    def _prefillers(self, decoder: Node) -> list[Node]:
        roles = {"prefill", "both"} if decoder.role == "decode" else {"prefill"}
        return [
            node
            for node in self
            if node.role in roles
            and node.ready
            and node is not decoder
            and decoder.knows(node)
            and (None in (node.model, decoder.model) or node.model == decoder.model)
        ]

    def can_answer(self, *, needs_prefill: bool) -> bool:
        """Some request could be answered now; `needs_prefill`: no decode node does it alone."""
        return any(
            node.ready
            and (node.role == "both" or not needs_prefill or bool(self._prefillers(node)))
            for node in self
            if node.role != "prefill"
        )

    def any_of(self, model: object) -> Node | None:
        """Who can answer what every node knows."""
        return self._of({"prefill", "decode", "both"}, model, ())

    def _of(
        self,
        roles: Set[Role],
        model: object,
        without: Collection[Node],
        liked: Node | None = None,
    ) -> Node | None:
        able = [node for node in self if node.role in roles and node.ready]
        if any(node.model == model for node in self):
            able = [node for node in able if node.model == model]
        # Otherwise any will do: it may have more names than one, and says so if it has not.
        return _choose(able, without, liked)


def _choose(
    nodes: Collection[Node], without: Collection[Node], liked: Node | None = None
) -> Node | None:
    """Requests that are chosen for a node are there a little later, so choices count as well.

    `liked` is chosen if it is among `nodes`, unless it has many more requests than another.
    """
    left = [node for node in nodes if node not in without]
    if not left:
        return None
    found = min(left, key=lambda node: (node.is_suspect, node.num_requests, node.chosen_last))
    if liked in left and not liked.is_suspect:
        found = liked if liked.num_requests <= found.num_requests + _MAX_MORE else found
    found.chosen_last = next(_choices)
    return found
