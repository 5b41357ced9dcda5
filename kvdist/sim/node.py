"""A simulated node process: scheduler, block manager, the connector's scheduler half, an engine.

Owns:   one run of a node: all its state goes when it dies.
Knows nothing of: clients, faults beyond those of its own steps.
The engine computes for all ranks together; the workers' connector halves are actors of their own.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvdist.cache import KVCacheManager
from kvdist.connector.effects import (
    DutyOver,
    PeerRefused,
    SendToNode,
    SendToWorker,
    TicketReady,
    WorkerLost,
)
from kvdist.connector.geometry import Geometry
from kvdist.connector.host import Loaded
from kvdist.connector.local import Cancel, FromWorker, PartEnded, ToWorker
from kvdist.connector.messages import Greeting, Hello, NodeMessage, PartId, Role
from kvdist.connector.scheduler_half import SchedulerHalf
from kvdist.connector.wants import content_of
from kvdist.errors import InvariantViolation
from kvdist.ids import BlockHash, Incarnation, LeaseId, NodeId, PullId, Rank
from kvdist.sched.lending import Lending, Tables
from kvdist.sched.output import Output
from kvdist.sched.plan import StepPlan
from kvdist.sched.scheduler import Scheduler
from kvdist.sim.manners import Manners
from kvdist.sim.memory import Memory, Poisoner
from kvdist.sim.owning import Owning
from kvdist.sim.say_so import NodeSaySo
from kvdist.sim.stub_worker import StubWorker
from kvdist.sim.worker import SimWorker

if TYPE_CHECKING:
    from kvdist.sim.cluster import Cluster


class _Holdings:
    """Lending, whose scheduler is made after the half that asks it."""

    lending: Lending

    @property
    def pool_blocks(self) -> int:
        return self.lending.pool_blocks

    @property
    def longest_blocks(self) -> int:
        return self.lending.longest_blocks

    def lend(
        self, hashes: tuple[BlockHash, ...], hash_block_size: int, most_blocks: int
    ) -> tuple[Tables, int] | None:
        return self.lending.lend(hashes, hash_block_size, most_blocks)


class SimNode:
    """One run of a node."""

    def __init__(self, cluster: "Cluster", node_id: NodeId, run: Incarnation) -> None:
        self.cluster, self._world = cluster, cluster.world
        self.node_id, self.run = node_id, run
        self.name: str = f"{node_id}#{run}"
        self.is_alive = True
        #: Takes no new work from clients or for peers.
        self.is_draining = False
        config = cluster.config_of(node_id)
        self.geometry = Geometry.of(config, cluster.num_heads, cluster.ranks_of(node_id))
        self.fingerprint = cluster.fingerprint_of(node_id, self.geometry)
        self.manager = KVCacheManager(config)
        holdings = _Holdings()
        self.half = SchedulerHalf(
            node_id,
            run,
            self.geometry,
            cluster.settings,
            holdings,
            self._new_lease_id,
            self.fingerprint,
            cluster.roles[node_id],
        )
        self.scheduler = Scheduler(self.manager, cluster.scheduler_config, self.half)
        self.lending = holdings.lending = Lending(self.scheduler)
        memories = [
            Memory(
                config.num_blocks,
                max(group.block_size for group in self.geometry.groups),
                range(*self.geometry.heads_of(rank)),
            )
            for rank in range(self.geometry.num_ranks)
        ]
        self.engine = StubWorker(config, memories)
        #: Peers that nothing can be had of, as the half has said.
        self.refused: set[NodeId] = set()
        #: Duties that it has left, as the half has said, or never had.
        self.left = {duty for duty in (Role.PREFILL, Role.DECODE) if self.half.has_left(duty)}
        self._manners = Manners(self.half.contacts)
        self._say_so, self._owning = NodeSaySo(self.half, run), Owning(self)
        #: Parts that nobody wants any more, as workers were told.
        self.cancelled: set[PartId] = set()
        self._poison = Poisoner(self.manager.block_pool, memories)
        self.workers = [
            SimWorker(cluster, self, Rank(rank), memory) for rank, memory in enumerate(memories)
        ]
        #: Plans that wait for the engine.
        self._plans: deque[StepPlan] = deque()
        self._is_computing = False
        #: A step that failed, until the scheduler knows: nothing planned meanwhile can run.
        self._failed: StepPlan | None = None
        #: Pulls of which a part has failed: since when this process knows it.
        self._failed_pulls: dict[PullId, float] = {}
        self._tick_at: float | None = None
        self._paused_until = 0.0
        self._inbox: list[Callable[[], None]] = []

    @property
    def is_open(self) -> bool:
        """Whether it takes new work."""
        return self.is_alive and not self.is_draining

    def _new_lease_id(self) -> LeaseId:
        return LeaseId(self._world.chance.randbytes(16))

    # -- events --------------------------------------------------------------------------------

    def do(self, event: Callable[[], None]) -> None:
        """Handle an event, then whatever follows from it; later, while the process stands still."""
        if not self.is_alive:
            return
        if self._paused_until > self._world.now:
            self._inbox.append(event)
            return
        self.half.clock(self._world.now)
        event()
        self._beat()

    def _beat(self) -> None:
        """Carry out what follows from an event: all effects, then a plan, then what planning itself
        has brought about, until nothing follows.
        """
        effects = self.half.take_effects()
        while True:
            while effects:
                for effect in effects:
                    self._promise(lambda effect=effect: self._owning.does(effect))  # type: ignore[misc]
                    self._carry_out(effect)
                    if not self.is_alive:
                        return
                effects = self.half.take_effects()
            plan = self.scheduler.schedule()
            if plan is not None:
                self._plans.append(plan)
            effects = self.half.take_effects()
            if plan is None and not effects:
                break
        self._poison()
        self._tell(self.scheduler.take_outputs())
        self._compute()
        self._set_tick()
        self._promise(self._owning.ends)
        if lacking := self._manners.lacking():
            self.cluster.violated(f"{self.name} owes {lacking}")
        self.cluster.audit(self)

    def _promise(self, look: Callable[[], None]) -> None:
        try:
            look()
        except InvariantViolation as found:
            self.cluster.violated(f"{self.name}: {found}")

    def pause(self, seconds: float) -> None:
        """The process stands still; its clock goes on."""
        self._paused_until = self._world.now + seconds
        self._world.after(seconds, self._resume)

    def go_on(self) -> None:
        """It stands still no longer."""
        if self._paused_until > self._world.now:
            self._paused_until = self._world.now
            self._resume()

    def _resume(self) -> None:
        """All that has come meanwhile is handled before any timer (T22)."""
        if self._paused_until > self._world.now:
            return
        inbox, self._inbox = self._inbox, []
        for event in inbox:
            self.do(event)
        self._tick_at = None
        self.do(self.half.tick)

    def change_role(self, role: Role) -> None:
        """It does something else from now on: whoever speaks with it hears so."""
        if role is not self.half.role:
            self._manners.owes_all(Hello)
        if role.lends:
            self.left.discard(Role.PREFILL)
        if role.reads:
            self.left.discard(Role.DECODE)
        self.half.change_role(role)

    def receive(self, peer: NodeId, run: Incarnation, message: NodeMessage | Greeting) -> None:
        """Over the control link; earlier runs of a node are not listened to (T21)."""

        def event() -> None:
            if self.cluster.is_outdated(self, peer, run):
                return
            self._world.note(self.name, f"from {peer}#{run}", message)
            self.half.node_seen(peer, run)
            self._manners.hears(peer, message)
            self._say_so.hears(peer, run, message)
            self._owning.is_asked()
            self.half.from_node(peer, message)
            self._promise(lambda: self._say_so.has_heard(message))
            self._promise(lambda: self._owning.has_answered(peer, message))
            self._manners.has_heard(peer, message)

        self.do(event)

    def from_worker_later(self, worker: SimWorker, message: FromWorker) -> None:
        """Over the local link, in order."""

        def event() -> None:
            self._world.note(self.name, f"from worker {worker.rank}", message)
            self.half.from_worker(worker.rank, message)
            if isinstance(message, PartEnded) and message.failure:
                self._failed_pulls.setdefault(message.part.pull, self._world.now)

        self._local(worker, lambda: self.do(event))

    def has_cancelled(self, pull: PullId) -> bool:
        """Whether all workers must have heard by now that this pull has failed."""
        since = self._failed_pulls.get(pull)
        return (
            self.is_alive
            and since is not None
            and since + self.cluster.config.local_s < self._world.now
        )

    def _to_worker_later(self, rank: Rank, message: ToWorker) -> None:
        worker = self.workers[rank]
        self._local(worker, lambda: worker.from_node(message))

    def _local(self, worker: SimWorker, arrive: Callable[[], None]) -> None:
        local_s = self.cluster.config.local_s
        worker.local_at = max(worker.local_at, self._world.now + self._world.between(1e-5, local_s))
        self._world.at(worker.local_at, arrive)

    def _set_tick(self) -> None:
        at = self.half.next_at()
        if at is not None and (self._tick_at is None or at < self._tick_at):
            self._tick_at = at
            self._world.at(at, lambda: self._tick(at))

    def _tick(self, at: float) -> None:
        if self._tick_at == at and self._paused_until <= self._world.now:
            self._tick_at = None
            self.do(self.half.tick)

    # -- effects -------------------------------------------------------------------------------

    def _carry_out(self, effect: object) -> None:
        match effect:
            case SendToNode(node, message):
                self._world.note(self.name, f"to {node}", message)
                self._manners.says(node, message)
                self.cluster.post.send(self.node_id, self.run, effect)
            case DutyOver(duty):
                self.left.add(duty)
                self._world.note(self.name, "has left", duty.name)
            case PeerRefused(node, differences):
                self.refused.add(node)
                self._world.note(self.name, f"can't work with {node}", differences)
            case SendToWorker(rank, message):
                if isinstance(message, Cancel):
                    self._look_at_cancel(message.part)
                self._to_worker_later(rank, message)
            case TicketReady(request_id, ticket):
                self._world.note(self.name, f"answers {request_id}", ticket)
                self.cluster.clients.ticket_ready(self, request_id, ticket)
            case WorkerLost(rank):
                self._world.note(self.name, "gives up a worker", rank)
                if self.workers[rank].is_alive:  # it always acknowledges, and in time
                    self.cluster.violated(f"T15: {self.name} waits in vain for worker {rank}")
                self.cluster.kill(self)
            case _:
                self._look_at_claims(effect)
                self._world.note(self.name, "moved", effect)
                before = self.scheduler.stats.num_unknown_messages
                self._tell(self.scheduler.moved(effect))  # type: ignore[arg-type]
                self._poison()
                if self.scheduler.stats.num_unknown_messages > before:
                    self.cluster.violated(f"{self.name}: nobody waits for {effect}")

    def _look_at_cancel(self, part: PartId) -> None:
        """A pull that hasn't failed is cancelled only when nobody waits for it (T20)."""
        self.cancelled.add(part)
        for claim in self.half.borrower.open_claims:
            pull = claim.pull
            if pull is None or pull.pull != part.pull or pull.pull in self._failed_pulls:
                continue
            if any(content_of(claim, r) == pull.content for r in claim.wanting.values()):
                self.cluster.violated(f"T20: {self.name} cancels {part}, and somebody waits for it")

    def _look_at_claims(self, effect: object) -> None:
        """Whoever has what it wanted wants it no more: the last one ends the claim (T19)."""
        if isinstance(effect, Loaded):
            name = effect.request_id
            if any(name in claim.wanting for claim in self.half.borrower.open_claims):
                self.cluster.violated(f"T19: {self.name} wants what {name} has")

    # -- the engine ----------------------------------------------------------------------------

    def _compute(self) -> None:
        if self._is_computing or self._failed is not None or not self._plans:
            return
        plan = self._plans.popleft()
        self._is_computing = True
        faults = self.cluster.faults
        long = self._world.happens(faults.long_step)
        times = self.cluster.config.step_slowness
        low, high = (1.0, 8.0) if long else (0.005 * times, 0.03 * times)
        seconds = self._world.between(low, high)
        fails = self._world.happens(faults.fail_step)
        self.cluster.hold(seconds, lambda: self._computed(plan, fails=fails))

    def _computed(self, plan: StepPlan, *, fails: bool) -> None:
        if not self.is_alive:
            return
        self._is_computing = False
        if fails:
            self._world.note(self.name, "failed", plan)
            self._failed = plan
            self.do(self._fail)
            return
        result = self.engine.execute(plan)
        self._world.note(self.name, "computed", plan)
        self.do(lambda: self._tell(self.scheduler.settle(result)))
        if self._paused_until > self._world.now:
            self._compute()

    def _fail(self) -> None:
        """The scheduler hears of a failed step; all that it has planned since is lost too."""
        assert self._failed is not None
        failed, self._failed = [self._failed, *self._plans], None
        self._plans.clear()
        for plan in failed:
            self._tell(self.scheduler.fail_step(plan.step))

    def _tell(self, outputs: list[Output]) -> None:
        for output in outputs:
            self.cluster.clients.heard(self, output)

    # -- the end -------------------------------------------------------------------------------

    def worker_gives_up(self, worker: SimWorker) -> None:
        """A worker can't get its memory to rest: it goes, and so does the node (T5, T17)."""
        self._world.note(worker.name, "gives up", "its memory isn't quiet")
        worker.die()
        self._world.after(self._world.between(0.001, 0.2), lambda: self.cluster.kill(self))

    def die(self) -> None:
        """The process is gone; its workers notice a little later, and go too (T5)."""
        self.is_alive = False
        for worker in self.workers:
            self._world.after(self._world.between(0.001, 0.5), worker.die)
