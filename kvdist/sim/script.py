"""What happens to a cluster from outside: clients come, nodes die, networks part; by seed.

Owns:   nothing; scripts are frozen values.
Knows nothing of: the protocol.
Chance inside a run (delays, lost messages) is drawn from the script's seed as well, so a script
replays to the letter; a shorter script is another run, and so shrinking tries.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import TypeAlias

from kvdist.connector.messages import Role
from kvdist.ids import NodeId
from kvdist.sim.clients import Job, Way
from kvdist.sim.cluster import ClusterConfig
from kvdist.sim.draw import make_config
from kvdist.sim.faults import Faults

#: Tokens that prompts are made of; few, so that prefixes meet.
_TOKENS = 5
#: How K/V come to their decode node, as often as it stands here.
_WAYS: tuple[Way, ...] = ("local", "hash", "ticket", "ticket", "stream", "stream", "stream")


@dataclass(frozen=True, slots=True)
class Come:
    """A client comes."""

    at: float
    job: Job


@dataclass(frozen=True, slots=True)
class KillNode:
    """A node process dies."""

    at: float
    node: NodeId


@dataclass(frozen=True, slots=True)
class KillWorker:
    """One worker dies."""

    at: float
    node: NodeId
    rank: int


@dataclass(frozen=True, slots=True)
class Drain:
    """A node takes no new work, and starts anew when it has none left."""

    at: float
    node: NodeId


@dataclass(frozen=True, slots=True)
class ChangeRole:
    """A node lends, reads, or does both, from now on."""

    at: float
    node: NodeId
    role: Role


@dataclass(frozen=True, slots=True)
class TakeBack:
    """A node takes back all that it has lent."""

    at: float
    node: NodeId


@dataclass(frozen=True, slots=True)
class Pause:
    """A node process stands still."""

    at: float
    node: NodeId
    seconds: float


@dataclass(frozen=True, slots=True)
class Partition:
    """Two nodes can't reach each other."""

    at: float
    one: NodeId
    other: NodeId
    seconds: float


@dataclass(frozen=True, slots=True)
class CutLink:
    """Some data link is cut; `pick` says which of those that are open."""

    at: float
    pick: int


@dataclass(frozen=True, slots=True)
class StallLink:
    """Some data link moves nothing for a while."""

    at: float
    pick: int
    seconds: float


Action: TypeAlias = (
    Come | KillNode | KillWorker | Drain | ChangeRole | TakeBack | Pause | Partition | CutLink
    | StallLink
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Script:
    """One run."""

    seed: int
    config: ClusterConfig
    faults: Faults
    actions: tuple[Action, ...]
    #: When faults stop, if that isn't with the last action.
    ends_at: float = 0.0

    def without(self, first: int, last: int) -> "Script":
        """The same without some actions."""
        return replace(self, actions=self.actions[:first] + self.actions[last:])


# -- by seed ---------------------------------------------------------------------------------------


class Walk:
    """Actions one after the other, for ever, by seed."""

    def __init__(self, seed: int, num_nodes: int, faults: Faults, *, calm: bool = False) -> None:
        """calm: clients are patient, nodes roomy; then nothing at all may go wrong."""
        self._chance = Random(f"walk {seed}")
        self._calm = calm
        self.config = make_config(self._chance, num_nodes, calm=calm)
        self._faults = faults
        self._nodes = list(self.config.nodes)
        often = self._chance.choice((1, 4))
        self._rates = {
            "come": self._chance.choice((1.0, 2.0, 5.0, 10.0)),
            "kill node": faults.kill_node,
            "kill worker": faults.kill_worker,
            "drain": 0.0 if calm else 0.02,
            "role": faults.change_role,
            "take back": faults.take_back * often,
            "pause": faults.pause,
            "partition": faults.partition,
            "cut": faults.cut,
            "stall": faults.stall,
        }
        self._prompts: list[tuple[int, ...]] = []

    def __iter__(self) -> Iterator[Action]:
        at, count = 0.0, 0
        kinds, weights = list(self._rates), list(self._rates.values())
        while True:
            at += self._chance.expovariate(sum(weights))
            (kind,) = self._chance.choices(kinds, weights)
            count += 1
            yield self._action(kind, at, count)

    def _action(self, kind: str, at: float, count: int) -> Action:
        chance = self._chance
        node = chance.choice(self._nodes)
        match kind:
            case "come":
                return Come(at, self._job(count))
            case "kill node":
                return KillNode(at, node)
            case "kill worker":
                return KillWorker(at, node, chance.randrange(self.config.ranks[node]))
            case "drain":
                return Drain(at, node)
            case "role":
                return ChangeRole(at, node, chance.choice(list(Role)))
            case "take back":
                return TakeBack(at, node)
            case "pause":
                return Pause(at, node, chance.choice((0.5, 3.0, 35.0)))
            case "partition" if len(self._nodes) > 1:
                one, other = chance.sample(self._nodes, 2)
                return Partition(at, one, other, chance.uniform(0.1, 20.0))
            case "stall":
                return StallLink(at, chance.randrange(1 << 16), chance.uniform(0.5, 20.0))
            case _:
                return CutLink(at, chance.randrange(1 << 16))

    def _job(self, count: int) -> Job:
        chance = self._chance
        prefill, decode = chance.sample(self._nodes, 2)
        if chance.random() < 0.1:
            decode = prefill
        way = chance.choice(_WAYS)
        late = chance.random() < 0.05 and not self._calm
        return Job(
            f"job{count}",
            self._prompt(),
            chance.choice((1, 2, 5)),
            chance.choice((1, 1, 1, 2)),
            way,
            prefill,
            decode,
            chance.uniform(1.0, 40.0) if late else chance.uniform(0.001, 0.01),
            chance.choice((0.001, 0.05, 0.3, 2.0, 8.0)) * chance.random()
            if chance.random() < self._faults.abort
            else None,
        )

    def _prompt(self) -> tuple[int, ...]:
        """New, or with a prefix of an earlier one, or an earlier one, or that less a token."""
        chance = self._chance
        longest = 26
        prefix: tuple[int, ...] = ()
        if self._prompts and chance.random() < 0.7:
            old = chance.choice(self._prompts[-20:])
            less = chance.choice((0, 0, 1, chance.randrange(len(old))))
            prefix = old[: max(1, len(old) - less)]
        least = 0 if prefix else 1
        more = chance.randint(least, max(least, longest - len(prefix)))
        if prefix and chance.random() < 0.2:
            more = 0
        prompt = prefix + tuple(chance.randrange(_TOKENS) for _ in range(more))
        self._prompts.append(prompt)
        return prompt
