"""A small cluster that a test drives by hand: `p`, who prefills, and `d`, who decodes.

Everything in it is real but for time, links and tensors (`kvdist.sim`). After each event the
auditor looks at the node concerned, and every token is compared with a perfect node's.
"""

from collections.abc import Callable, Sequence
from typing import Any

from kvdist.cache import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec
from kvdist.connector.settings import Settings
from kvdist.ids import RequestId
from kvdist.sched.budget import SchedulerConfig
from kvdist.sched.plan import StepPlan
from kvdist.sim.clients import Job, Way
from kvdist.sim.cluster import Cluster, ClusterConfig
from kvdist.sim.faults import Faults
from kvdist.sim.links import DataLink
from kvdist.sim.node import SimNode
from tests.make import full

#: Virtual seconds in which everything comes to its end once nothing goes wrong any more.
REST_S = 60.0


def prompt(number: int, num_tokens: int = 17) -> tuple[int, ...]:
    """Tokens that share no prefix with those of another number."""
    return tuple(1000 * number + i for i in range(num_tokens))


class Town:
    """See the module. Blocks have four tokens, pools forty blocks, sequences at most 48 tokens."""

    def __init__(
        self,
        *specs: KVCacheSpec,
        seed: int = 1,
        blocks: int | dict[str, int] = 40,
        nodes: Sequence[str] = ("p", "d"),
        ranks: dict[str, int] | None = None,
        heads: int = 2,
        one_sided: bool = False,
        scheduler: SchedulerConfig | None = None,
        per_node: dict[str, tuple[KVCacheSpec, ...]] | None = None,
        cache: dict[str, Any] | None = None,
        versions: dict[str, int] | None = None,
        weights: dict[str, str] | None = None,
        **settings: Any,
    ) -> None:
        specs_of = per_node or {}
        configs = {
            name: KVCacheConfig(
                num_blocks=1 + (blocks if isinstance(blocks, int) else blocks.get(name, 40)),
                kv_cache_groups=tuple(
                    KVCacheGroupSpec(spec) for spec in specs_of.get(name, specs or (full(),))
                ),
                **{"max_model_len": 48, **(cache or {})},
            )
            for name in nodes
        }
        config = ClusterConfig(
            nodes=configs,
            ranks=ranks or {},
            versions=versions or {},
            weights=weights or {},
            num_heads=heads,
            one_sided=one_sided,
            settings=Settings(**settings),
            scheduler=scheduler or SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8),
        )
        self.cluster = Cluster(config, Faults(), seed)
        self.world, self.gate = self.cluster.world, self.cluster.gate
        self._count = 0

    def node(self, name: str) -> SimNode:
        """Whichever run of it is there."""
        return self.cluster.nodes[name]

    @property
    def p(self) -> SimNode:
        return self.node("p")

    @property
    def d(self) -> SimNode:
        return self.node("d")

    # -- what happens --------------------------------------------------------------------------

    def come(
        self,
        tokens: Sequence[int] | None = None,
        way: Way = "ticket",
        *,
        new: int = 3,
        n: int = 1,
        prefill: str = "p",
        decode: str = "d",
        answer_delay: float = 0.001,
        abort_after: float | None = None,
    ) -> str:
        """A client comes; its name."""
        self._count += 1
        name = f"job{self._count}"
        tokens = prompt(self._count) if tokens is None else tuple(tokens)
        self.cluster.clients.begin(
            Job(name, tuple(tokens), new, n, way, prefill, decode, answer_delay, abort_after)
        )
        return name

    def faults(self, **rates: float) -> None:
        """From now on these things go wrong, so often."""
        self.cluster.faults = self.cluster.post.faults = Faults(**rates)

    def abort(self, name: str) -> None:
        """The client goes away."""
        clients = self.cluster.clients
        clients._abort(clients.lives[name])

    def kill(self, node: str) -> None:
        self.cluster.kill(self.node(node))

    @property
    def links(self) -> list[DataLink]:
        return self.cluster.open_links()

    # -- time ----------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """So much time goes by."""
        end = self.world.now + seconds
        while (at := self.world.next_at()) is not None and at <= end:
            self.world.step()
        self.world.now = end

    def until(self, what: Callable[[], object], within: float = REST_S) -> None:
        """Time goes by until this is so, at an event. Raises: AssertionError if it never is."""
        end = self.world.now + within
        while not what():
            at = self.world.next_at()
            assert at is not None and at <= end, f"not within {within} virtual seconds"
            self.world.step()

    def rest(self) -> None:
        """Nothing goes wrong any more; everything ends, and nothing is left."""
        self.cluster.stop_faults()
        self.gate.let_go()
        self.run(REST_S)
        self.cluster.audit_rest()

    # -- what came of it -----------------------------------------------------------------------

    def ended(self, *names: str) -> list[str]:
        """How each sequence of these jobs ended; empty: it hasn't."""
        lives = self.cluster.clients.lives
        return [how for name in names for how in lives[name].ended]

    def is_over(self, *names: str) -> bool:
        return all(self.ended(*names))

    def finish(self, *names: str, within: float = REST_S) -> None:
        """These jobs end, every token right. Raises: AssertionError otherwise."""
        self.until(lambda: self.is_over(*names), within)
        assert set(self.ended(*names)) == {"right"}, self.ended(*names)

    def sequence_of(self, name: str, index: int = 0) -> RequestId | None:
        """The id at its node of one of a job's sequences; -1: its prefill. None: not there yet."""
        requests = self.cluster.clients.lives[name].requests
        return next((key[1] for key, which in requests.items() if which == index), None)

    def is_pulling(self) -> bool:
        """Whether bytes are landing at `d`."""
        return any(worker._landings for worker in self.d.workers)

    def is_serving(self) -> bool:
        """Whether a pull is open at `p`."""
        return any(worker.half.server.num_open for worker in self.p.workers)

    def leases(self, node: str = "p") -> int:
        return len(self.node(node).half.lender.leases)

    def computed(self, name: str, node: str = "d") -> int:
        """Steps of a node that took part in a job's sequences."""
        requests = self.cluster.clients.lives[name].requests
        mine = {key[1] for key, which in requests.items() if which >= 0}
        plans = [
            entry.about
            for entry in self.world.log
            if isinstance(entry.about, StepPlan) and entry.actor.startswith(f"{node}#")
        ]
        return sum(turn.request_id in mine for plan in plans for turn in plan.scheduled)

    def num_external(self, node: str = "d") -> int:
        """Tokens that loads were admitted for."""
        return self.node(node).scheduler.stats.num_external_tokens
