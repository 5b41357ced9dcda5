"""Clients and their router: who asks which node for what, and whether the answers are right.

Owns:   the jobs, what they have heard, and the verdict on every token.
Knows nothing of: how nodes get their answers.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from kvdist.connector.messages import Ticket
from kvdist.connector.params import ByHash, ByTransfer, Lend, Source, write_params
from kvdist.errors import InvalidRequest, WrongRole
from kvdist.ids import NodeId, RequestId, TransferId
from kvdist.sched.output import Output
from kvdist.sched.sequence import SamplingParams, SequenceStatus

if TYPE_CHECKING:
    from kvdist.sim.cluster import Cluster
    from kvdist.sim.node import SimNode

#: How a job's K/V come to its decode node.
Way = Literal["local", "ticket", "hash", "stream"]


@dataclass(frozen=True, slots=True)
class Job:
    """What one client wants."""

    name: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    n: int
    way: Way
    prefill: NodeId
    decode: NodeId
    #: Between the owner's answer and the reader's request.
    answer_delay: float = 0.001
    #: How long after its begin the client goes away; None: it stays.
    abort_after: float | None = None


@dataclass(slots=True)
class _Life:
    """What has become of a job."""

    job: Job
    perfect: list[int]
    #: Requests at nodes: node, id, which of the n sequences it is; -1: the prefill.
    requests: dict[tuple[str, RequestId], int] = field(default_factory=dict)
    heard: list[list[int]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    is_aborted: bool = False
    transfer: TransferId = ""
    has_ticket: bool = False


class Clients:
    """All of them."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._world = cluster.world
        self.lives: dict[str, _Life] = {}
        #: By node run and request id.
        self._of: dict[tuple[str, RequestId], _Life] = {}
        #: Some that were given out.
        self._tickets: deque[tuple[tuple[int, ...], Ticket]] = deque(maxlen=16)
        #: By node run: what follows if it dies before a request under way has arrived.
        self._under_way: dict[str, list[Callable[[], None]]] = {}
        self.num_right = self.num_failed = self.num_aborted = self.num_refused = 0

    # -- what they do --------------------------------------------------------------------------

    def begin(self, job: Job) -> None:
        """A client comes."""
        perfect = self._cluster.contents.perfect_tokens(job.prompt, job.max_new_tokens)
        self._cluster.learn((*job.prompt, *perfect))
        life = self.lives[job.name] = _Life(job, perfect)
        life.heard = [[] for _ in range(job.n)]
        life.ended = ["" for _ in range(job.n)]
        self._world.note("client", "begins", job)
        if job.abort_after is not None:
            self._world.after(job.abort_after, lambda: self._abort(life))
        if job.way == "local":
            self._decode(life, None)
        elif job.way == "hash":
            self._decode(life, ByHash(job.prefill))
        elif job.way == "ticket":
            self._prefill(life, None)
        else:
            transfer = life.transfer = f"{job.name}-{self._world.chance.getrandbits(64):016x}"
            delay = self._world.between(0.0, 0.3)
            first, last = (0.0, delay) if self._world.happens(0.5) else (delay, 0.0)
            self._world.after(first, lambda: self._prefill(life, transfer))
            source = ByTransfer(job.prefill, transfer)
            self._world.after(last, lambda: self._decode(life, source))

    def _prefill(self, life: _Life, transfer: TransferId | None) -> None:
        job = life.job
        node = self._cluster.nodes.get(job.prefill)
        if life.is_aborted:
            return
        if node is None or not node.is_open or node.half.lender.is_full():
            self.num_refused += 1
            if transfer is None:
                self._decode(life, None)
            return
        lending, num_lent = node.lending, node.half.lender.num_leased
        if num_lent >= lending.pool_blocks - lending.longest_blocks:
            self._cluster.violated(f"T10: {node.name} takes a prefill with {num_lent} blocks lent")

        def event() -> None:
            try:
                (sequence,) = node.scheduler.add(
                    job.name,
                    job.prompt,
                    prefill_only=True,
                    kv_transfer_params=write_params(Lend(transfer)),
                    hold_whole_prompt=transfer is not None and not self._cluster.config.piecemeal,
                )
            except WrongRole:
                if node.half.role.lends:
                    self._cluster.violated(f"{node.name} refuses a prefill, and lends")
                self.num_refused += 1
                broken()
                return
            self._note_request(life, node, sequence.request_id, -1)

        def broken() -> None:
            if transfer is None:
                self._world.after(0.01, lambda: self._decode(life, None))

        self._later(node, event, broken)

    def _decode(self, life: _Life, source: Source | None, where: NodeId = "") -> None:
        job = life.job
        faults = self._cluster.faults
        if self._tickets and self._world.happens(max(faults.garbage, faults.mix_up)):
            source = self._anothers_ticket(job.prompt)
        node = self._cluster.nodes.get(where or job.decode)
        if life.is_aborted:
            return
        if node is None or not node.is_open:
            self._fail(life, "the decode node isn't there")
            return

        def event() -> None:
            try:
                sequences = node.scheduler.add(
                    job.name,
                    job.prompt,
                    SamplingParams(max_new_tokens=job.max_new_tokens, n=job.n),
                    kv_transfer_params=None if source is None else write_params(source),
                )
            except InvalidRequest as error:
                self._fail(life, str(error))
                return
            except WrongRole:
                if node.half.role.reads:
                    self._cluster.violated(f"{node.name} refuses a source, and reads")
                self._decode_elsewhere(life, source, node.node_id)
                return
            for index, sequence in enumerate(sequences):
                self._note_request(life, node, sequence.request_id, index)

        self._later(node, event, lambda: self._fail(life, "the node died"))

    def _anothers_ticket(self, prompt: tuple[int, ...]) -> Ticket:
        """Any, or one of a prompt that is a token longer."""
        tickets = [ticket for _, ticket in self._tickets]
        longer = [t for known, t in self._tickets if known[:-1] == prompt]
        return self._world.chance.choice(longer or tickets)

    def _decode_elsewhere(self, life: _Life, source: Source | None, refused_by: NodeId) -> None:
        """Where somebody reads; if nobody does, the first computes the whole prompt."""
        nodes = self._cluster.nodes.values()
        readers = [node.node_id for node in nodes if node.is_open and node.half.role.reads]
        if readers:
            self._decode(life, source, readers[0])
        else:
            self._decode(life, None, refused_by)

    def _later(
        self, node: "SimNode", event: Callable[[], None], broken: Callable[[], None]
    ) -> None:
        """An HTTP request under way: `event` there, or `broken` if the process dies first."""
        waiting = self._under_way.setdefault(node.name, [])
        waiting.append(broken)

        def arrive() -> None:
            if broken in waiting:
                waiting.remove(broken)
                event()

        self._world.after(self._world.between(0.0001, 0.002), lambda: node.do(arrive))
        if not node.is_alive:
            self._break(node)

    def _break(self, node: "SimNode") -> None:
        waiting = self._under_way.pop(node.name, [])
        while waiting:
            waiting.pop()()

    def _note_request(
        self, life: _Life, node: "SimNode", request_id: RequestId, index: int
    ) -> None:
        key = (node.name, request_id)
        life.requests[key] = index
        self._of[key] = life
        self._world.note(node.name, f"{request_id} is", f"{life.job.name}[{index}]")
        if life.is_aborted:
            node.scheduler.abort(request_id)

    def _abort(self, life: _Life) -> None:
        if all(life.ended):
            return
        self._world.note("client", "goes away", life.job.name)
        for index in range(life.job.n):
            self._end(life, index, "aborted")

    # -- what they hear ------------------------------------------------------------------------

    def ticket_ready(self, node: "SimNode", request_id: RequestId, ticket: Ticket | None) -> None:
        """A prefill has its answer, and hears it once."""
        life = self._of.get((node.name, request_id))
        if life is None:
            return
        if life.has_ticket:
            self._cluster.violated(f"{life.job.name}: two answers for {request_id}")
        life.has_ticket = True
        if ticket is not None:
            self._tickets.append((life.job.prompt, ticket))
        if life.job.way == "ticket" and not life.is_aborted:
            self._cluster.hold(life.job.answer_delay, lambda: self._decode(life, ticket))

    def heard(self, node: "SimNode", output: Output) -> None:
        """Tokens, or an end."""
        key = (node.name, output.request_id)
        life = self._of.get(key)
        if life is None or (index := life.requests[key]) < 0:
            return
        heard = life.heard[index]
        heard += output.token_ids
        if heard != life.perfect[: len(heard)]:
            self._cluster.violated(
                f"{life.job.name}[{index}]: heard {heard}, perfect {life.perfect}"
            )
        if output.status is SequenceStatus.FINISHED_LENGTH:
            if len(heard) != len(life.perfect) and not life.is_aborted:
                self._cluster.violated(f"{life.job.name}[{index}]: ended too early")
            self._end(life, index, "right")
        elif output.status.finished:
            self._end(life, index, output.reason or output.status.name)

    def node_died(self, node: "SimNode") -> None:
        """Connections break: whoever had a request there hears so; a router tries again."""
        self._break(node)
        for life in list(self.lives.values()):
            for (name, request_id), index in list(life.requests.items()):
                if name != node.name:
                    continue
                self._of.pop((name, request_id), None)
                if index >= 0:
                    self._end(life, index, "the node died")
                elif life.job.way == "ticket" and not life.has_ticket:
                    self._world.after(0.01, partial(self._decode, life, None))

    def _fail(self, life: _Life, why: str) -> None:
        for index in range(life.job.n):
            self._end(life, index, why)

    def _end(self, life: _Life, index: int, how: str) -> None:
        if life.ended[index]:
            return
        life.ended[index] = how
        if how == "right":
            self.num_right += 1
        elif how == "aborted":
            self.num_aborted += 1
        else:
            self.num_failed += 1
        self._world.note("client", f"{life.job.name}[{index}] ends", how)
        if all(life.ended):
            self._hang_up(life)

    def _hang_up(self, life: _Life) -> None:
        """Nobody listens any more: the router tells every node that may still work for it."""
        life.is_aborted = True
        for (name, request_id), _ in list(life.requests.items()):
            node = self._cluster.nodes.get(name.partition("#")[0])
            if node is not None and node.is_alive and node.name == name:
                self._later(node, partial(_abort, node, request_id), _nothing)

    def forget_ended(self) -> None:
        """Long runs: what is over is no longer kept."""
        for name, life in list(self.lives.items()):
            if all(life.ended) and not any(self._is_live(key) for key in life.requests):
                for key in life.requests:
                    self._of.pop(key, None)
                del self.lives[name]

    def _is_live(self, key: tuple[str, RequestId]) -> bool:
        node = self._cluster.nodes.get(key[0].partition("#")[0])
        return (
            node is not None
            and node.name == key[0]
            and (key[1] in node.scheduler.roster.sequences or self._waits_for_ticket(key))
        )

    def _waits_for_ticket(self, key: tuple[str, RequestId]) -> bool:
        life = self._of.get(key)
        return life is not None and life.requests[key] < 0 and not life.has_ticket

    def unended(self) -> list[str]:
        """Jobs that haven't ended, and prefills that weren't answered."""
        return [
            name
            for name, life in self.lives.items()
            if not all(life.ended) or any(map(self._waits_for_ticket, life.requests))
        ]


def _abort(node: "SimNode", request_id: RequestId) -> None:
    node.scheduler.abort(request_id)


def _nothing() -> None:
    """Nobody is left who would have to hear of it."""
