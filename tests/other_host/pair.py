"""Two hosts that aren't ours, a router between them, and what goes wrong, by seed.

Owns:   the network, and what was promised to clients.
Knows nothing of: kvdist's scheduler, block manager and nodes.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from kvdist.connector.codec import decode, encode
from kvdist.connector.compat import fingerprint
from kvdist.connector.effects import SendToNode
from kvdist.connector.geometry import Geometry, Group
from kvdist.connector.messages import Hello
from kvdist.connector.scheduler_half import SchedulerHalf
from kvdist.connector.settings import Settings
from kvdist.connector.worker_half import WorkerHalf
from kvdist.ids import BlockHash, Incarnation, LeaseId, NodeId, Rank
from kvdist.sim.memory import Memory
from kvdist.sim.world import World
from tests.other_host.blocks import Blocks
from tests.other_host.compute import NUM_HEADS, compute, perfect_tokens
from tests.other_host.connector import Ended, SchedulerSide
from tests.other_host.requests import Request, RequestStatus as Status
from tests.other_host.scheduler import Scheduler
from tests.other_host.worker import WorkerSide

STEP_S = 0.01


class NothingByHash:
    """A host's blocks as the lender sees them: this one can't lend what no request has."""

    def __init__(self, pool_blocks: int, longest_blocks: int) -> None:
        self.pool_blocks, self.longest_blocks = pool_blocks, longest_blocks

    def lend(self, hashes: tuple[BlockHash, ...], hash_block_size: int, most_blocks: int) -> None:
        return None


class Host:
    """An engine: a step every few milliseconds, for as long as it is asked for one."""

    def __init__(
        self, pair: "Pair", node: NodeId, groups: tuple[Group, ...], ranks: int, num_blocks: int
    ) -> None:
        self._pair, self.node = pair, node
        self.geometry = geometry = Geometry(groups, NUM_HEADS, ranks)
        run, size = pair.run_of(node), groups[0].block_size
        memories = [
            Memory(num_blocks, size, range(*geometry.heads_of(rank))) for rank in range(ranks)
        ]
        self.memories = memories

        def poison(blocks: list[Any]) -> None:
            for memory in memories:
                memory.poison(blocks)

        self.blocks = Blocks(num_blocks, poison)
        ours = fingerprint(
            geometry,
            weights="perfect",
            dtype="cell",
            element_bits=64,
            head_size=1,
            num_layers=(1,) * len(groups),
            hash_block_size=size,
            layout="head token",
            state_layout="head" if any(group.kind == "state" for group in groups) else "",
        )
        holdings = NothingByHash(num_blocks - 1, 64 // size * len(groups))
        self.half = SchedulerHalf(
            node,
            run,
            geometry,
            pair.settings,
            holdings,
            lambda: LeaseId(pair.world.chance.randbytes(16)),
            ours,
        )
        self.connector = SchedulerSide(
            node, self.half, geometry, size, lambda: pair.world.now, self._send
        )
        hello = Hello(node, run, ours)
        self.workers = [
            WorkerSide(
                pair, node, Rank(rank),
                WorkerHalf(
                    hello, Rank(rank), geometry, pair.settings, sends=lambda _link: pair.sends
                ),
                memories[rank],
            )
            for rank in range(ranks)
        ]  # fmt: skip
        self.scheduler = Scheduler(
            geometry, self.blocks, self.connector,
            cached=pair.cached, fails=pair.fails, budget=pair.budget,
        )  # fmt: skip
        self._reports: Counter[tuple[str, str]] = Counter()

    def _new_lease_id(self) -> LeaseId:
        return LeaseId(self._pair.world.chance.randbytes(16))

    def _send(self, effect: SendToNode) -> None:
        self._pair.post(self.node, effect.node, encode(effect.message, effect.version))

    def step(self) -> None:
        """As the engine's core does it: plan, run on all ranks, hear what came out."""
        output = self.scheduler.schedule()
        metadata = output.kv_connector_metadata
        for worker in self.workers:
            if output.preempted_req_ids:
                worker.handle_preemptions(metadata)
            worker.start_load_kv(metadata)
        sampled = {}
        for request, tables, first, count in output.scheduled:
            tokens = request.all_token_ids[: first + count]
            token = compute(self.geometry.groups, self.memories, tables, tokens, first)
            if len(tokens) == request.num_tokens:
                sampled[request.request_id] = token
        ended, said = self._aggregate()
        self.scheduler.update_from_output(output, sampled, ended, said)

    def _aggregate(self) -> tuple[Ended, list[Any]]:
        """An id counts when all ranks have said it."""
        whole, said = Ended(), []
        for worker in self.workers:
            worker.wait_for_save()
            for kind, names in zip(("send", "recv"), worker.get_finished(), strict=True):
                for name in names:
                    self._reports[kind, name] += 1
            whole.failed_recving |= worker.get_failed()
            whole.invalid_block_ids |= worker.get_block_ids_with_load_errors()
            said += worker.build_connector_worker_meta()
        done = {key for key, count in self._reports.items() if count == len(self.workers)}
        for key in done:
            del self._reports[key]
        whole.finished_sending = {name for kind, name in done if kind == "send"}
        whole.finished_recving = {name for kind, name in done if kind == "recv"}
        return whole, said

    @property
    def is_at_rest(self) -> bool:
        return not self.scheduler.requests and not self.connector.has_pending_push_work()


class Pair:
    """`p` prefills, `d` decodes; `come` sends a prompt to one and then to the other."""

    def __init__(
        self,
        *groups: Group,
        seed: int = 0,
        ranks: tuple[int, int] = (1, 1),
        blocks: tuple[int, int] = (128, 128),
        sends: bool = True,
        cached: bool = False,
        fails: bool = False,
        budget: int = 64,
        streams: bool = False,
        **settings: Any,
    ) -> None:
        self.world = World(seed)
        self.settings = Settings(streams=streams, **settings)
        self.sends, self.cached, self.fails, self.budget = sends, cached, fails, budget
        #: Shares of control messages, reads and links that fail, of reads that go on when stopped.
        self.lose = self.fail_reads = self.write_on = 0.0
        self.counts: Counter[str] = Counter()
        #: Of data links: how often they were cut, and when the last message arrives.
        self._ages: Counter[frozenset[str]] = Counter()
        self._last: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._wanted: dict[str, tuple[int, str]] = {}
        groups = groups or (Group("tokens", 4),)
        self.p = Host(self, "p", groups, ranks[0], blocks[0])
        self.d = Host(self, "d", groups, ranks[1], blocks[1])
        self.hosts = {"p": self.p, "d": self.d}
        self._workers = {w.address: w for host in self.hosts.values() for w in host.workers}
        self.prompts: dict[str, list[int]] = {}
        #: What became of requests at the decoding host.
        self.ended: dict[str, Request] = {}
        self.p.scheduler.on_finished = self._prefilled
        self.d.scheduler.on_finished = self._decoded
        for host in self.hosts.values():
            self._step_later(host)

    def run_of(self, node: NodeId) -> Incarnation:
        return Incarnation(7 if node == "p" else 8)

    # -- the network ---------------------------------------------------------------------------

    def post(self, sender: NodeId, to: NodeId, data: bytes) -> None:
        """A control message: late, out of order, twice or never."""
        for _ in range(1 + self.world.happens(self.lose / 2)):
            if not self.world.happens(self.lose):
                self.world.after(
                    self.world.between(0.001, 0.05),
                    lambda: self.hosts[to].connector.inbox.append(
                        (sender, self.run_of(sender), decode(data))  # type: ignore[arg-type]
                    ),
                )

    def worker(self, address: str) -> WorkerSide:
        return self._workers[address.removeprefix("reader ")]

    def over_link(
        self, sender: WorkerSide, address: str, arrive: Callable[[WorkerSide], None]
    ) -> None:
        """A data link: in order, until it is cut; it stands again at once."""
        peer, link = (
            self.worker(address),
            frozenset((sender.address, address.removeprefix("reader "))),
        )
        age = self._ages[link]
        at = self._last[sender.address, peer.address] = max(
            self._last[sender.address, peer.address],
            self.world.now + self.world.between(0.0005, 0.005),
        )
        self.world.at(at, lambda: arrive(peer) if self._ages[link] == age else None)

    def cut(self, one: WorkerSide, other: WorkerSide) -> None:
        """Both ends hear of it, each by itself; nothing moves over it any more."""
        self._ages[frozenset((one.address, other.address))] += 1
        for end, peer in ((one, other), (other, one)):
            self.world.after(
                self.world.between(0.0, 0.01),
                lambda end=end, peer=peer: end.link_lost(peer),  # type: ignore[misc]
            )

    # -- clients -------------------------------------------------------------------------------

    def come(self, name: str, prompt: list[int], *, max_tokens: int = 4, salt: str = "") -> None:
        """Through the router, as its toy does it: P first, for one token."""
        self.prompts[name] = prompt
        params = {"do_remote_decode": True}
        self.p.scheduler.add_request(Request(f"{name}-p", list(prompt), 1, params, salt))
        self._wanted[name] = (max_tokens, salt)

    def _prefilled(self, request: Request, params: object) -> None:
        name = request.request_id.removesuffix("-p")
        max_tokens, salt = self._wanted[name]
        self.world.after(
            self.world.between(0.001, 0.01),
            lambda: self.decode(name, params, max_tokens=max_tokens, salt=salt),
        )

    def decode(self, name: str, params: object, *, max_tokens: int = 4, salt: str = "") -> None:
        """P has answered."""
        self.d.scheduler.add_request(
            Request(name, list(self.prompts[name]), max_tokens, params, salt)  # type: ignore[arg-type]
        )

    def abort(self, name: str) -> None:
        """At whichever host has it."""
        self.p.scheduler.finish_requests(f"{name}-p", Status.FINISHED_ABORTED)
        self.d.scheduler.finish_requests(name, Status.FINISHED_ABORTED)

    def _decoded(self, request: Request, params: object) -> None:
        assert request.request_id not in self.ended, "once"
        assert params is None
        self.ended[request.request_id] = request

    # -- time ----------------------------------------------------------------------------------

    def _step_later(self, host: Host) -> None:
        def step() -> None:
            host.step()
            self._step_later(host)

        self.world.after(self.world.between(0.5, 1.5) * STEP_S, step)

    def until(self, happened: Callable[[], object], seconds: float = 60.0) -> None:
        """Time goes by."""
        end = self.world.now + seconds
        while not happened():
            assert self.world.now < end, "it doesn't happen"
            self.world.step()

    def rest(self, seconds: float = 400.0) -> None:
        """All ends, and everything comes back."""
        self.until(lambda: all(host.is_at_rest for host in self.hosts.values()), seconds)
        self.until(lambda: set(self.ended) == set(self.prompts))
        for host in self.hosts.values():
            assert host.blocks.num_free == host.blocks.num_blocks - 1
            assert host.half.is_idle
            for worker in host.workers:
                assert not worker.half.server.num_open + worker.half.fetcher.num_open
                assert not worker.half.server.granted_blocks()

    def check(self, name: str) -> None:
        """The client got what a host says that never reads a wrong cell."""
        request = self.ended[name]
        assert request.status is Status.FINISHED_LENGTH_CAPPED
        groups = self.d.geometry.groups
        wanted = perfect_tokens(groups, self.prompts[name], request.max_tokens)
        assert request.output_token_ids == wanted, name
