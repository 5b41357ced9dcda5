"""Play a script, or walk by seed, and tell what came of it.

Owns:   nothing.
Knows nothing of: what the actions are about.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from traceback import format_exception
from typing import Final

from kvdist.sim.cluster import Cluster, Violation
from kvdist.sim.faults import Faults
from kvdist.sim.script import (
    Action,
    ChangeRole,
    Come,
    CutLink,
    Drain,
    KillNode,
    KillWorker,
    Partition,
    Pause,
    Script,
    StallLink,
    TakeBack,
    Walk,
)

#: Virtual time after the last fault in which everything has to come to its end.
REST_S = 60.0
#: And in which nobody may be busy for nothing.
MOST_EVENTS_AT_REST = 100_000


@dataclass(slots=True)
class Report:
    """What came of one run."""

    script: Script
    #: Empty: all was as promised.
    failure: str = ""
    num_events: int = 0
    #: When faults stopped, or a promise was broken before that.
    ended_at: float = 0.0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    cluster: Cluster | None = None


def walk(walk_: Walk, seed: int, faults: Faults, num_events: int) -> Report:
    """Walk until so many events have happened, then let all come to rest."""
    done: list[Action] = []
    script = Script(seed, walk_.config, faults, ())
    report = _run(script, _noted(walk_, done), num_events)
    acted = tuple(action for action in done if action.at <= report.ended_at)
    report.script = replace(script, actions=acted, ends_at=report.ended_at)
    return report


#: What never happens in a calm walk.
DISTURBANCES: Final = (
    "pulls that failed",
    "leases that ran out",
    "questions that weren't answered in time",
    "answers that didn't come in time",
    "sequences failed honestly",
    "prefills refused",
    "restarts",
)


def calm_walk(seed: int, num_nodes: int, num_events: int) -> Report:
    """Without faults, with room and patience: all comes at the first try, and nothing runs out."""
    report = walk(Walk(seed, num_nodes, Faults(), calm=True), seed, Faults(), num_events)
    found = {what: report.counts[what] for what in DISTURBANCES if report.counts[what]}
    if found and not report.failure:
        report.failure = f"a calm walk has {found}"
    return report


def play(script: Script) -> Report:
    """Play all actions of a script, then let all come to rest."""
    return _run(script, script.actions, None)


def _noted(actions: Iterable[Action], done: list[Action]) -> Iterator[Action]:
    for action in actions:
        done.append(action)
        yield action


def _run(script: Script, actions: Iterable[Action], num_events: int | None) -> Report:
    report = Report(script)
    try:
        cluster = report.cluster = Cluster(script.config, script.faults, script.seed)
        try:
            _act(cluster, iter(actions), num_events)
            _go_on_until(cluster, script.ends_at)
        finally:
            report.ended_at = cluster.world.now
        cluster.stop_faults()
        _rest(cluster)
        cluster.audit_rest()
    except Violation as violation:
        report.failure = str(violation)
    except Exception as bug:  # noqa: BLE001 (whatever a node dies of is a finding)
        report.failure = "".join(format_exception(bug)[-3:])
    if report.cluster is not None:
        _sum_up(report, report.cluster)
    return report


def _act(cluster: Cluster, actions: Iterator[Action], num_events: int | None) -> None:
    world = cluster.world
    for action in actions:
        while (at := world.next_at()) is not None and at <= action.at:
            world.step()
            if num_events is not None and world.num_events >= num_events:
                return
        world.now = max(world.now, action.at)
        _do(cluster, action)
        if world.num_events % 50 == 0:
            cluster.clients.forget_ended()


def _go_on_until(cluster: Cluster, end: float) -> None:
    world = cluster.world
    while (at := world.next_at()) is not None and at <= end:
        world.step()


def _rest(cluster: Cluster) -> None:
    """Everything that has begun comes to its end, within a bounded time."""
    world = cluster.world
    end, most = world.now + REST_S, world.num_events + MOST_EVENTS_AT_REST
    while (at := world.next_at()) is not None and at <= end:
        world.step()
        if world.num_events > most:
            cluster.violated("it never comes to rest")


def _do(cluster: Cluster, action: Action) -> None:
    world = cluster.world
    match action:
        case Come(_, job):
            cluster.clients.begin(job)
        case KillNode(_, name):
            cluster.kill(cluster.nodes[name])
        case KillWorker(_, name, rank):
            node = cluster.nodes[name]
            if node.is_alive and node.workers[rank].is_alive:
                cluster.kill_worker(node.workers[rank], node)
        case Drain(_, name):
            cluster.drain(cluster.nodes[name])
        case ChangeRole(_, name, role):
            cluster.change_role(cluster.nodes[name], role)
        case TakeBack(_, name):
            cluster.take_back(cluster.nodes[name])
        case Pause(_, name, seconds):
            world.note(cluster.nodes[name].name, "stands still", seconds)
            cluster.nodes[name].pause(seconds)
        case Partition(_, one, other, seconds):
            world.note("network", f"parts {one} and {other}", seconds)
            cluster.post.separate(one, other, world.now + seconds)
        case CutLink(_, pick):
            if links := cluster.open_links():
                links[pick % len(links)].cut_from_outside()
        case StallLink(_, pick, seconds):
            if links := cluster.open_links():
                links[pick % len(links)].stalled_until = world.now + seconds


def _sum_up(report: Report, cluster: Cluster) -> None:
    report.num_events, report.seconds = cluster.world.num_events, cluster.world.now
    clients = cluster.clients
    report.counts.update(
        {
            "sequences right": clients.num_right,
            "sequences failed honestly": clients.num_failed,
            "sequences aborted": clients.num_aborted,
            "prefills refused": clients.num_refused,
            "restarts": cluster.num_restarts,
            "changes of role": cluster.num_roles,
            "bad messages": cluster.num_bad + cluster.post.num_bad,
            "bodies refused": cluster.num_refused,
        }
    )
    for node in cluster.nodes.values():
        report.counts.update(node.half.counts)
        for worker in node.workers:
            report.counts.update(worker.half.counts)
