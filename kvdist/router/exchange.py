"""One request of a client's: which nodes are asked, in which order, and what if they fail.

Owns:   which nodes have failed it.
Knows nothing of: the client's connection.

    alone      one decode node does all of it
    ticket     prefill computes the prompt and answers with a ticket; decode gets it
    overlap    both are asked at once, under a transfer id made for this try; decode reads along

A node that is busy or can't be reached costs a try, and the next one has a transfer id of its own.
As soon as the client has seen a byte, there is no next one.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Self, TypeAlias

import structlog
from aiohttp import web

from kvdist.errors import NodeBusy, NodeFailed, Unavailable
from kvdist.ids import NodeId
from kvdist.router.bodies import PARAMS, Asked, Json, read_along
from kvdist.router.metrics import Metrics, Way
from kvdist.router.nodes import Node, Nodes
from kvdist.router.relay import Relay, as_it_is, read_answer
from kvdist.router.releases import Refused, Releases
from kvdist.router.scope import Scope
from kvdist.router.settings import RouterSettings
from kvdist.router.turns import Turn, Turns, chain_of
from kvdist.router.upstream import Upstream
from kvdist.router.usage import Found

_log = structlog.get_logger(__name__)

_Part: TypeAlias = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Cluster:
    """What all requests share."""

    nodes: Nodes
    upstream: Upstream
    releases: Releases
    metrics: Metrics
    settings: RouterSettings
    turns: Turns = field(default_factory=Turns)


@dataclass(frozen=True, slots=True)
class _Prefilled:
    """What a prefill node answers. `ticket` None: there is nothing to be had."""

    ticket: Json | None
    found: Found

    @classmethod
    def read(cls, data: bytes) -> Self:
        answer = read_answer(data)
        ticket = answer.get(PARAMS)
        return cls(ticket if isinstance(ticket, dict) else None, Found.read(answer.get("usage")))


class _Refused(Refused):
    """The client is told so in the node's words."""

    def __init__(self, response: web.Response) -> None:
        super().__init__(f"status {response.status}")
        self.response = response


class Exchange:
    """Until a node has answered."""

    def __init__(
        self, cluster: Cluster, asked: Asked, path: str, headers: Mapping[str, str]
    ) -> None:
        self._nodes, self._upstream = cluster.nodes, cluster.upstream
        self._releases, self._metrics = cluster.releases, cluster.metrics
        self._settings = cluster.settings
        self._asked, self._path, self._headers = asked, path, headers
        self._turns = cluster.turns
        self._chain = chain_of(asked)
        #: Who has answered what this goes on from.
        self._before = cluster.turns.before(self._chain, asked.num_chars)
        #: Those that were busy; what couldn't be reached comes last by itself.
        self._busy: set[Node] = set()
        self._failures: Counter[_Part] = Counter()

    async def run(self, relay: Relay) -> web.StreamResponse:
        """The client's answer. Raises: Unavailable; NodeFailed if it has begun."""
        while True:
            decode = self._decoder()
            prefill, way = self._prefiller(decode)
            self._metrics.tried(way)
            try:
                return await self._by(decode, prefill, way, relay)
            except NodeFailed:
                if relay.has_begun:
                    raise
            except _Refused as refused:
                return refused.response

    async def _by(
        self, decode: Node, prefill: Node | None, way: Way, relay: Relay
    ) -> web.StreamResponse:
        if prefill is None:
            response = await self._alone(decode, relay)
        elif way == "overlap":
            response = await self._overlap(prefill, decode, relay)
        else:
            decode, response = await self._in_turn(prefill, decode, relay)
        if response.status == 200:
            turn = Turn(decode, prefill, self._asked.num_chars)
            self._turns.answered(self._chain, turn)
        return response

    # -- who -----------------------------------------------------------------------------------

    def _decoder(self, *also_not: Node) -> Node:
        asked = self._asked
        if asked.params is not None and asked.params.get("do_remote_decode"):
            found = self._nodes.lender(asked.model, self._busy)
        else:
            liked = None if self._before is None else self._before.decode
            found = self._nodes.decoder(asked.model, {*self._busy, *also_not}, liked)
        if found is None:
            raise Unavailable("no node takes this request now")
        if self._failures["decode"] >= self._settings.max_tries:
            raise Unavailable(f"{self._failures['decode']} nodes have failed to answer")
        return found

    def _prefiller(self, decode: Node) -> tuple[Node | None, Way]:
        """Who computes the prompt, and how it is handed over; nobody, and why not."""
        asked, settings = self._asked, self._settings
        if asked.params is not None:
            return None, "asked"
        if asked.num_prompts != 1:
            return None, "several prompts"
        if asked.num_chars < settings.min_prefill_chars:
            return None, "short"
        has_tries = self._failures["prefill"] < settings.max_tries
        liked = None if self._before is None else self._before.prefill
        found = self._nodes.prefiller(decode, self._busy, liked) if has_tries else None
        if found is not None:
            return found, "overlap" if settings.overlap and asked.can_overlap else "ticket"
        if decode.role == "both":
            return None, "both"
        if settings.without_prefill == "fail":
            raise Unavailable("no prefill node takes this request now")
        return None, "prefill failed" if self._failures["prefill"] else "no prefill"

    @contextmanager
    def _trying(self, node: Node, part: _Part) -> Iterator[None]:
        try:
            yield
        except NodeFailed as error:
            _log.warning("node failed", node=node.name, part=part, reason=str(error))
            self._failures[part] += 1
            if is_busy := isinstance(error, NodeBusy):
                self._busy.add(node)
            self._metrics.failed(node, part, is_busy=is_busy)
            raise

    # -- how -----------------------------------------------------------------------------------

    async def _alone(self, decode: Node, relay: Relay) -> web.StreamResponse:
        with self._trying(decode, "decode"):
            async with self._upstream.post(
                decode, self._path, self._asked.alone(), self._headers
            ) as reply:
                return await relay.send(reply, lambda: None)

    def _hint(self, prefill: Node) -> NodeId | None:
        """Who has the earlier turn with its answer, which no prefill node has computed."""
        before = self._before
        if before is None or not self._nodes.can_lend(before.decode, prefill):
            return None
        return before.decode.name

    async def _prefill(self, node: Node, transfer: str, *, reads_along: bool) -> _Prefilled:
        body = self._asked.for_prefill(transfer, self._hint(node), reads_along=reads_along)
        with self._trying(node, "prefill"):
            async with self._upstream.post(node, self._path, body, self._headers) as reply:
                data = await reply.whole()
                if 400 <= reply.status < 500:
                    raise _Refused(as_it_is(reply, data))
                if reply.status != 200:
                    raise NodeFailed(f"{node} answers with status {reply.status}")
                done = _Prefilled.read(data)
                self._metrics.prefilled(done.found)
                return done

    async def _in_turn(
        self, prefill: Node, decode: Node, relay: Relay
    ) -> tuple[Node, web.StreamResponse]:
        """And who has answered."""
        transfer, is_taken = uuid.uuid4().hex, False
        prefilling = self._begin(prefill, transfer, reads_along=False)
        try:
            done = await asyncio.shield(prefilling)
            body = self._asked.for_decode(done.ticket) if done.ticket else self._asked.alone()
            while True:
                try:
                    with self._trying(decode, "decode"):
                        async with self._upstream.post(
                            decode, self._path, body, self._headers
                        ) as reply:
                            is_taken = reply.status < 400
                            return decode, await relay.send(reply, lambda: done.found)
                except NodeBusy:  # it has not touched the ticket, so another may
                    decode = self._decoder(prefill)
        finally:
            if not is_taken:
                self._releases.start(prefill, transfer, prefilling, self._headers)

    async def _overlap(self, prefill: Node, decode: Node, relay: Relay) -> web.StreamResponse:
        transfer, is_taken = uuid.uuid4().hex, False
        body = self._asked.for_decode(read_along(prefill.name, transfer))
        prefilling = self._begin(prefill, transfer, reads_along=True)
        try:
            async with Scope() as scope:
                # Decode would wait for a prefill that doesn't come.
                prefilling.add_done_callback(lambda done: _cut(scope, done))
                with self._trying(decode, "decode"):
                    async with self._upstream.post(
                        decode, self._path, body, self._headers
                    ) as reply:
                        scope.disarm()
                        is_taken = reply.status < 400
                        return await relay.send(reply, lambda: _found(prefilling))
        finally:
            if not (is_taken and _has_ended_well(prefilling)):
                self._releases.start(prefill, transfer, prefilling, self._headers)

    def _begin(self, node: Node, transfer: str, *, reads_along: bool) -> "asyncio.Task[_Prefilled]":
        prefilling = self._prefill(node, transfer, reads_along=reads_along)
        return asyncio.create_task(prefilling, name="prefill")


def _cut(scope: Scope, done: "asyncio.Task[_Prefilled]") -> None:
    error = None if done.cancelled() else done.exception()
    if isinstance(error, Exception):
        scope.cut(error)


def _has_ended_well(prefilling: "asyncio.Task[_Prefilled]") -> bool:
    return prefilling.done() and not prefilling.cancelled() and prefilling.exception() is None


def _found(prefilling: "asyncio.Task[_Prefilled]") -> Found | None:
    return prefilling.result().found if _has_ended_well(prefilling) else None
