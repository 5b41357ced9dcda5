"""A cluster in one thread: nodes that come, die and come back, links, clients, the auditor.

Owns:   which run of which node is there, and everything that wasn't as promised.
Knows nothing of: what is to happen; `script` says.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from kvdist import check
from kvdist.cache import BlockHasher, ExtraKeys, KVCacheConfig
from kvdist.connector.compat import fingerprint
from kvdist.connector.geometry import Geometry
from kvdist.connector.messages import VERSION, Fingerprint, Role
from kvdist.connector.settings import Settings
from kvdist.errors import KvdistError
from kvdist.ids import BlockHash, Incarnation, NodeId
from kvdist.sched.budget import SchedulerConfig
from kvdist.sim.audit import audit_node, audit_rest
from kvdist.sim.clients import Clients
from kvdist.sim.contents import ModelContents, chain
from kvdist.sim.faults import Faults
from kvdist.sim.gate import Gate
from kvdist.sim.lies import Lies
from kvdist.sim.links import DataLink
from kvdist.sim.node import SimNode
from kvdist.sim.post import Post
from kvdist.sim.transfer import Landing
from kvdist.sim.worker import SimWorker
from kvdist.sim.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """What a cluster is made of."""

    #: Of each node, by its id; groups are the same, pools and blocks may differ.
    nodes: dict[NodeId, KVCacheConfig]
    #: Ranks of each node that has more than one.
    ranks: dict[NodeId, int]
    #: The latest version that a node speaks, where that isn't ours.
    versions: dict[NodeId, int] = field(default_factory=dict)
    #: Digest of a node's weights, where they aren't everybody's.
    weights: dict[NodeId, str] = field(default_factory=dict)
    num_heads: int = 1
    #: Longest way of a message between nodes, and between their workers.
    latency_s: float = 0.004
    #: And between a node and its own workers.
    local_s: float = 1e-3
    #: How many times longer bytes take than they do on a good network, and steps than a small
    #: model's.
    slowness: float = 1.0
    step_slowness: float = 1.0
    #: Prefills take their blocks chunk by chunk, those that are read along too.
    piecemeal: bool = False
    #: Readers read by themselves; else owners send.
    one_sided: bool = False
    settings: Settings = field(default_factory=Settings)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)


class Violation(Exception):
    """Something that was promised didn't hold."""


class Cluster:
    """See the module."""

    def __init__(self, config: ClusterConfig, faults: Faults, seed: int) -> None:
        self.world = World(seed)
        self.config = config
        self.faults = faults
        self.settings, self.scheduler_config = config.settings, config.scheduler
        self.num_heads, self.one_sided = config.num_heads, config.one_sided
        self.contents = ModelContents(next(iter(config.nodes.values())), config.num_heads)
        self.gate = Gate()
        self.post = Post(self.world, faults, self.gate, config.latency_s)
        #: What workers say.
        self.lies = Lies(self.world.chance)
        self.nodes: dict[NodeId, SimNode] = {}
        #: Reads that end by a measure only, or when faults stop.
        self.stuck: list[Landing] = []
        self.links: list[DataLink] = []
        self._held: list[Callable[[], None]] = []
        #: Nothing goes wrong any more.
        self._is_calm = False
        self.clients = Clients(self)
        self.num_bad = self.num_refused = self.num_restarts = self.num_roles = 0
        #: By block hash: tokens, and how many of them it ends.
        self._content: dict[BlockHash, tuple[tuple[int, ...], int]] = {}
        self._cells: dict[tuple[BlockHash, int, int], dict[int, list[int]]] = {}
        self._runs: dict[NodeId, int] = {}
        #: By reader: the latest run that it has heard of, by peer.
        self._seen: dict[tuple[str, NodeId], Incarnation] = {}
        #: By node; a later run has the role that the one before had in the end.
        self.roles = dict.fromkeys(config.nodes, Role.BOTH)
        for node_id in config.nodes:
            self.start(node_id)

    # -- what nodes are made of ----------------------------------------------------------------

    def config_of(self, node_id: NodeId) -> KVCacheConfig:
        """Of its block manager."""
        return self.config.nodes[node_id]

    def ranks_of(self, node_id: NodeId) -> int:
        """How many workers it has."""
        return self.config.ranks.get(node_id, 1)

    def fingerprint_of(self, node_id: NodeId, geometry: Geometry) -> Fingerprint:
        """What it tells others of its blocks."""
        has_states = any(group.kind == "state" for group in geometry.groups)
        return fingerprint(
            geometry,
            weights=self.config.weights.get(node_id, "perfect"),
            dtype="cell",
            element_bits=64,
            head_size=1,
            num_layers=(1,) * len(geometry.groups),
            hash_block_size=self.config_of(node_id).hash_block_size,
            layout="head token",
            state_layout="head" if has_states else "",
            latest_version=self.config.versions.get(node_id, VERSION),
        )

    def learn(self, tokens: tuple[int, ...]) -> None:
        """What the blocks of these tokens will be found by."""
        config = next(iter(self.config.nodes.values()))
        hasher = BlockHasher(config.hash_block_size)
        for count, key in enumerate(hasher.start(ExtraKeys()).extend(list(tokens)), 1):
            self._content.setdefault(key, (tokens, count * config.hash_block_size))

    def content_of(
        self, key: BlockHash, group_id: int, block_size: int
    ) -> dict[int, list[int]] | None:
        """By head: the cells, from its first, of a block that is found by `key`; None: it isn't of
        any client's tokens.
        """
        found = self._cells.get((key, group_id, block_size))
        if found is None and key in self._content:
            tokens, end = self._content[key]
            group = self.contents.groups[group_id]
            links = chain(tokens[:end])[(end - 1) // block_size * block_size :]
            found = {head: group.cells(links, head) for head in self.contents.heads}
            self._cells[key, group_id, block_size] = found
        return found

    # -- life and death ------------------------------------------------------------------------

    def start(self, node_id: NodeId) -> None:
        """A new run of a node, at the same address."""
        run = self._runs[node_id] = self._runs.get(node_id, 0) + 1
        node = self.nodes[node_id] = SimNode(self, node_id, Incarnation(run))
        self.post.attach(node_id, node.receive, node.fingerprint.latest_version)
        self.world.note(node.name, "starts", "")

    def kill(self, node: SimNode) -> None:
        """It dies, and comes back after a while."""
        if not node.is_alive:
            return
        self.world.note(node.name, "dies", "")
        node.die()
        self.num_restarts += 1
        self.clients.node_died(node)
        self.world.after(self.world.between(0.01, 2.0), lambda: self.start(node.node_id))

    def drain(self, node: SimNode) -> None:
        """It takes no new work, and goes when it has none left: nobody loses anything by it."""
        if not node.is_alive or node.is_draining:
            return
        self.world.note(node.name, "drains", "")
        node.is_draining = True
        node.do(node.half.drain)
        self._go_when_idle(node)

    def change_role(self, node: SimNode, role: Role) -> None:
        """It does something else for others from now on."""
        self.world.note(node.name, "has the role", role.name)
        self.roles[node.node_id] = role
        self.num_roles += 1
        node.do(lambda: node.change_role(role))

    def take_back(self, node: SimNode) -> None:
        """Nothing that it has lent counts any more (T9)."""
        self.world.note(node.name, "takes back", "all that is lent")
        node.do(node.half.take_back)

    def _go_when_idle(self, node: SimNode) -> None:
        if node.is_alive and not audit_rest(node):
            self.kill(node)
        elif node.is_alive:
            self.world.after(0.1, lambda: self._go_when_idle(node))

    def kill_worker(self, worker: SimWorker, node: SimNode) -> None:
        """One worker dies; its node notices, and goes too (T5)."""
        self.world.note(worker.name, "dies", "")
        worker.die()
        self.world.after(self.world.between(0.001, 0.5), lambda: self.kill(node))

    def is_outdated(self, node: SimNode, peer: NodeId, run: Incarnation) -> bool:
        """Whether `node` has heard of a later run of that peer (T21)."""
        latest = max(run, self._seen.get((node.name, peer), run))
        self._seen[node.name, peer] = latest
        return run < latest

    # -- what is held back ---------------------------------------------------------------------

    def hold(self, seconds: float, event: Callable[[], None]) -> None:
        """`event` comes after so long, or when faults stop, if that is sooner."""
        if self._is_calm:
            seconds = min(seconds, 0.03)
        done = False

        def once() -> None:
            nonlocal done
            if not done:
                done = True
                event()

        self._held.append(once)
        self.world.after(seconds, once)

    # -- links ---------------------------------------------------------------------------------

    def dial(self, reader: SimWorker, address: str) -> DataLink | None:
        """A link to whoever runs at that address now; None: nobody is reached."""
        node_id, _, rank = address.partition("/")
        node = self.nodes.get(node_id)
        if node is None or int(rank) >= len(node.workers):
            return None
        owner = node.workers[int(rank)]
        if not owner.is_alive or self.apart_until(reader.node_id, node_id) > self.world.now:
            return None
        link = DataLink(self.world, len(self.links), reader, owner)
        self.links.append(link)
        owner.accept(link)
        return link

    def apart_until(self, one: NodeId, other: NodeId) -> float:
        """Until when these two can't reach each other; 0: they can."""
        return self.world.now + 1.0 if self.post.are_apart(one, other) else 0.0

    def open_links(self) -> list[DataLink]:
        """Those that nobody has cut."""
        self.links = (
            [link for link in self.links if not link.is_cut]
            if len(self.links) > 10_000
            else self.links
        )
        return [link for link in self.links if not link.is_cut]

    # -- the end of faults, and the verdict ----------------------------------------------------

    def stop_faults(self) -> None:
        """From now on nothing goes wrong any more."""
        self._is_calm = True
        self.faults = self.post.faults = Faults()
        self.post.heal()
        for landing in self.stuck:
            landing.force()
        for link in self.links:
            link.stalled_until = 0.0
        for node in self.nodes.values():
            node.go_on()
        held, self._held = self._held, []
        for event in held:
            event()

    def violated(self, what: str) -> None:
        """A promise was broken. Raises: Violation."""
        raise Violation(what)

    def audit(self, node: SimNode) -> None:
        """After every event of a node, as thoroughly as the check level says."""
        level: Literal[0, 1, 2] = check.level
        if level:
            try:
                audit_node(node, level)
            except KvdistError as error:
                raise Violation(f"{node.name}: {error}") from error

    def audit_rest(self) -> None:
        """When all is over: nothing is left. Raises: Violation."""
        for name in self.clients.unended():
            self.violated(f"{name} never ended")
        for node in self.nodes.values():
            if node.is_alive and (left := audit_rest(node)):
                self.violated(f"{node.name}: left {left}")
