"""Builders: quarters of the connector by themselves, what they say, and workers that acknowledge.

Blocks have four tokens and nodes are called `p`, who owns, and `d`, who reads, unless a test is
about that.
"""

from collections.abc import Sequence
from typing import Any

from kvdist.cache import BlockHasher, Request
from kvdist.connector.borrower import Borrower
from kvdist.connector.compat import fingerprint
from kvdist.connector.effects import (
    NodeEffect,
    SendToNode,
    SendToOwnNode,
    SendToPeer,
    SendToWorker,
    TicketReady,
    WorkerEffect,
)
from kvdist.connector.fetcher import Fetcher
from kvdist.connector.geometry import Geometry, Group
from kvdist.connector.lender import Lender
from kvdist.connector.local import Fetch, FromWorker, Grant, PartEnded, Revoke, ToWorker
from kvdist.connector.messages import (
    MAX_TOKENS,
    Blocks,
    Confirm,
    Fingerprint,
    Heads,
    Hello,
    NodeMessage,
    Open,
    PartId,
    Ticket,
    TokenSpans,
    WorkerMessage,
)
from kvdist.connector.params import Source
from kvdist.connector.server import Server
from kvdist.connector.settings import Settings
from kvdist.ids import BlockHash, BlockId, Incarnation, LeaseId, NodeId, PullId, Rank, RequestId

FULL = Group("tokens", 4)
WINDOW = Group("tokens", 4, window=9)
STATE = Group("state", 4)

#: The runs of both nodes, and names that belong to nobody.
RUN = Incarnation(1)
#: Of the tokens that all leases here are of.
CONTENT = b"c" * 32
NOBODYS = LeaseId(b"nobody's lease..")


def tables(num_tokens: int, first: int = 1, groups: Sequence[Group] = (FULL,)) -> Blocks:
    """Blocks one after the other for so many tokens, for each group."""
    found = []
    for group in groups:
        count = -(-num_tokens // group.block_size)
        found.append(tuple(BlockId(first + i) for i in range(count)))
        first += count
    return tuple(found)


# -- nodes -----------------------------------------------------------------------------------------


class Shelf:
    """Blocks of a host: so many, of which the first hold what is cached."""

    def __init__(self, pool_blocks: int, longest_blocks: int, cached_blocks: int) -> None:
        self.pool_blocks, self.longest_blocks = pool_blocks, longest_blocks
        self.cached_blocks = cached_blocks

    def lend(
        self, hashes: tuple[BlockHash, ...], hash_block_size: int, most_blocks: int
    ) -> tuple[Blocks, int] | None:
        count = min(len(hashes), self.cached_blocks, most_blocks)
        return (tables(4 * count), 4 * count) if count and hash_block_size == 4 else None


class Node:
    """What both sides of a node have: a clock, workers' messages, news."""

    def __init__(self, groups: Sequence[Group], ranks: int, heads: int) -> None:
        self.geometry = Geometry(tuple(groups) or (FULL,), heads, ranks)
        self.out: list[NodeEffect] = []
        #: Sent to workers, and not looked at yet.
        self.for_workers: list[tuple[Rank, ToWorker]] = []
        self._news: list[NodeEffect] = []

    def news(self) -> list[NodeEffect]:
        """What it has done since this was asked last, beside talking to workers."""
        self._sort()
        news, self._news = self._news, []
        return news

    def said(self) -> list[tuple[NodeId, NodeMessage]]:
        """The same, messages to nodes only."""
        return [
            (effect.node, effect.message)
            for effect in self.news()
            if isinstance(effect, SendToNode) and isinstance(effect.message, NodeMessage)
        ]

    def _sort(self) -> None:
        for effect in self.out:
            if isinstance(effect, SendToWorker):
                self.for_workers.append((effect.rank, effect.message))
            else:
                self._news.append(effect)
        self.out.clear()

    def told_workers(self) -> list[tuple[Rank, ToWorker]]:
        """What workers were told since this was asked last."""
        self._sort()
        told, self.for_workers = self.for_workers, []
        return told


class Owner(Node):
    """A lender."""

    def __init__(
        self,
        *groups: Group,
        ranks: int = 1,
        heads: int = 4,
        pool: int = 40,
        longest: int = 8,
        cached: int = 0,
        **settings: Any,
    ) -> None:
        super().__init__(groups, ranks, heads)
        self.shelf = Shelf(pool, longest, cached)
        self._count = 0
        self.lender = Lender(
            "p",
            RUN,
            self.geometry,
            Settings(**settings),
            self.shelf,
            lambda *_: CONTENT,
            self._new_id,
            self.out,
        )

    def _new_id(self) -> LeaseId:
        self._count += 1
        return LeaseId(b"lease %10d" % self._count)

    def later(self, seconds: float) -> None:
        """Time goes by, and what is due is done."""
        self.lender.now += seconds
        self.lender.tick()

    def acknowledge(self, rank: int | None = None) -> None:
        """Workers, or one of them, do what they were told."""
        for who, message in self.told_workers():
            if rank not in (None, who):
                self.for_workers.append((who, message))
            elif isinstance(message, Grant):
                self.lender.on_granted(who, message.lease)
            elif isinstance(message, Revoke):
                self.lender.on_revoked(who, message.lease)

    def prefill(self, name: RequestId, num_tokens: int = 16) -> None:
        """A request for a peer comes and ends."""
        self.lender.lend_at_end(name)
        blocks = tables(num_tokens, 1, self.geometry.groups)
        self.lender.finished(name, blocks, num_tokens, is_usable=True)

    def ticket(self, name: RequestId = "r", num_tokens: int = 16) -> Ticket:
        """The ticket of such a request."""
        self.prefill(name, num_tokens)
        self.acknowledge()
        (ready,) = [effect for effect in self.news() if isinstance(effect, TicketReady)]
        assert ready.ticket is not None
        return ready.ticket


class Reader(Node):
    """A borrower."""

    def __init__(
        self, *groups: Group, ranks: int = 1, heads: int = 4, run: int = 1, **settings: Any
    ) -> None:
        super().__init__(groups, ranks, heads)
        self.requests: dict[RequestId, Request] = {}
        self.borrower = Borrower(
            "d", Incarnation(run), self.geometry, Settings(**settings), self.out
        )
        self.borrower.node_seen("p", RUN)
        self._hasher = BlockHasher(4)
        self._next_block = 1

    def later(self, seconds: float) -> None:
        """Time goes by, and what is due is done."""
        self.borrower.now += seconds
        self.borrower.tick()

    def come(
        self, name: RequestId, source: Source, num_tokens: int = 17, first_token: int = 0
    ) -> Request:
        """A request comes, with a source of its K/V."""
        prompt = range(first_token, first_token + num_tokens)
        request = self.requests[name] = Request(name, list(prompt), self._hasher)
        self.borrower.arrived(request, source)
        return request

    def match(self, name: RequestId, num_local_tokens: int = 0) -> int | None:
        """What could be loaded; None: it waits."""
        match = self.borrower.match(self.requests[name], num_local_tokens)
        return None if match.pending else match.num_tokens

    def refusal(self, name: RequestId, num_local_tokens: int = 0) -> str:
        """Why it ends, since what it was promised won't come."""
        return self.borrower.match(self.requests[name], num_local_tokens).refused

    def admit(self, name: RequestId, num_local_tokens: int = 0) -> list[Fetch]:
        """The request gets its blocks; what the workers have to bring."""
        external = self.match(name, num_local_tokens)
        assert external is not None
        blocks = tables(num_local_tokens + external, self._next_block, self.geometry.groups)
        self._next_block += sum(map(len, blocks))
        self.borrower.admitted(name, blocks, num_local_tokens, external)
        return [message for _, message in self.told_workers() if isinstance(message, Fetch)]

    def end(
        self, fetches: Sequence[Fetch], failure: str = "", *, is_lease_gone: bool = False
    ) -> None:
        """The workers say of these parts what became of them."""
        for fetch in fetches:
            self.borrower.on_part_ended(PartEnded(fetch.part, failure, is_lease_gone))

    def quiet(self, fetches: Sequence[Fetch]) -> None:
        """Nothing can land any more."""
        for fetch in fetches:
            self.borrower.on_part_quiet(fetch.part)


def a_ticket(
    lease: bytes = b"a lease of p....",
    *,
    node: NodeId = "p",
    num_tokens: int = 16,
    run: int = 1,
    ranks: int = 1,
) -> Ticket:
    """As `p` gives them."""
    return Ticket(LeaseId(lease), node, Incarnation(run), num_tokens, 30_000, Rank(ranks))


# -- workers ---------------------------------------------------------------------------------------


class Worker:
    """What both sides of a worker have."""

    def __init__(self) -> None:
        self.out: list[WorkerEffect] = []

    def news(self) -> list[WorkerEffect]:
        """What it has done since this was asked last."""
        news = self.out[:]
        self.out.clear()
        return news

    def said(self) -> list[WorkerMessage]:
        """The same, messages to peers only."""
        return [
            effect.message
            for effect in self.news()
            if isinstance(effect, SendToPeer) and isinstance(effect.message, WorkerMessage)
        ]

    def reported(self) -> list[FromWorker]:
        """The same, messages to its own node only."""
        return [effect.message for effect in self.news() if isinstance(effect, SendToOwnNode)]


class Serving(Worker):
    """A server of rank 0, of `p`, that was granted one lease; `d` reads over `link`."""

    def __init__(
        self,
        *groups: Group,
        sends: bool = True,
        num_tokens: int = 16,
        settled: int | None = None,
        heads: int = 4,
        ranks: int = 1,
        **settings: Any,
    ) -> None:
        super().__init__()
        groups = groups or (FULL,)
        self.geometry = Geometry(groups, heads, ranks)
        self.server = Server(
            Rank(0), RUN, self.geometry, Settings(**settings), self.out, sends=lambda _link: sends
        )
        self.num_tokens = num_tokens
        self.lease = LeaseId(b"a lease of p....")
        settled = num_tokens if settled is None else settled
        blocks = tables(num_tokens, 1, groups)
        self.server.on_grant(Grant(self.lease, blocks, num_tokens, settled, CONTENT))
        self.news()

    def later(self, seconds: float) -> None:
        """Time goes by, and what is due is done."""
        self.server.now += seconds
        self.server.tick()

    def open(
        self,
        part: PartId | None = None,
        *,
        reader: NodeId = "d",
        run: int = 1,
        link: str = "link",
        lease: LeaseId | None = None,
        owner: int = 1,
        wanted: TokenSpans | None = None,
        heads: Heads | None = None,
        content: bytes = CONTENT,
    ) -> list[WorkerEffect]:
        """A reader asks; what follows."""
        if wanted is None:
            wanted = tuple((0, self.num_tokens) for _ in self.geometry.groups)
        if heads is None:
            heads = self.geometry.heads_of(0)
        message = Open(
            part or a_part(), lease or self.lease, Incarnation(owner), wanted, heads, content
        )
        self.server.on_open(link, reader, Incarnation(run), message)
        return self.news()

    def confirm(
        self, part: PartId | None = None, *, reader: NodeId = "d", run: int = 1
    ) -> list[WorkerEffect]:
        """A reader asks whether the bytes are good; what follows."""
        message = Confirm(part or a_part(), self.lease)
        self.server.on_confirm("link", reader, Incarnation(run), message)
        return self.news()


def a_fingerprint(*groups: Group, heads: int = 4, **more: Any) -> Fingerprint:
    """Of nodes as they are here."""
    groups = groups or (FULL,)
    settings: dict[str, Any] = {
        "weights": "5eed",
        "dtype": "bfloat16",
        "element_bits": 16,
        "head_size": 64,
        "num_layers": (2,) * len(groups),
        "hash_block_size": 4,
        "layout": "head token",
    }
    return fingerprint(Geometry(groups, heads), **{**settings, **more})


def a_hello(node: NodeId = "d", run: int = 1, **more: Any) -> Hello:
    """The first thing that a node, or its worker, says."""
    return Hello(node, Incarnation(run), a_fingerprint(**more))


def a_part(pull: int = 1, reader: int = 0, owner: int = 0) -> PartId:
    return PartId(PullId(pull), Rank(reader), Rank(owner))


class Fetching(Worker):
    """A fetcher of rank 0, of `d`, that brings one part of `p`'s rank 0."""

    def __init__(
        self,
        *groups: Group,
        num_tokens: int = 16,
        wanted: TokenSpans | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        groups = groups or (FULL,)
        self.fetcher = Fetcher(Geometry(groups, 4), Settings(**settings), self.out)
        if wanted is None:
            wanted = tuple((0, num_tokens) for _ in groups)
        self.part = a_part()
        self.fetch = Fetch(
            self.part, LeaseId(b"a lease of p...."), "p", RUN, wanted, (0, 4),
            tables(num_tokens, 101, groups), CONTENT,
        )  # fmt: skip
        self.fetcher.on_fetch(self.fetch)

    def later(self, seconds: float) -> None:
        """Time goes by, and what is due is done."""
        self.fetcher.now += seconds
        self.fetcher.tick()


#: All of a stream may be read.
ALL = MAX_TOKENS
