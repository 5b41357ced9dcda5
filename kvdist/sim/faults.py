"""What may go wrong in a simulated cluster, and how often.

Owns:   nothing; values are frozen.
Knows nothing of: how it goes wrong.
Units:  shares of messages, steps or reads; events a virtual second for what happens to nodes.
"""

from dataclasses import dataclass, fields, replace
from typing import Final

from kvdist.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Rates; all 0: nothing goes wrong but delays and order between links."""

    #: Of control messages between nodes; a fifth of it also between workers.
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    #: Of control messages: delayed by seconds in place of milliseconds.
    late: float = 0.0
    #: A second: some pair of nodes can't reach each other for a while.
    partition: float = 0.0
    #: A second: some data link is cut.
    cut: float = 0.0
    #: A second: some data link moves nothing for a while.
    stall: float = 0.0
    #: Of reads and receives: never complete by themselves, and quiet only after measures.
    stuck: float = 0.0
    #: Of reads and receives that were stopped: go on writing for a while.
    write_on: float = 0.0
    #: A second: a node process, or one worker, dies; it comes back as another run.
    kill_node: float = 0.0
    kill_worker: float = 0.0
    #: Of steps: take seconds; fail.
    long_step: float = 0.0
    fail_step: float = 0.0
    #: A second: a node process does nothing for a while (its clock goes on).
    pause: float = 0.0
    #: A second: some node's role becomes another.
    change_role: float = 0.0
    #: A second: some node takes back all that it has lent.
    take_back: float = 0.0
    #: Of requests: aborted at some time.
    abort: float = 0.0
    #: Of control and data messages: garbage comes in their place, or beside them; of requests: they
    #: come with somebody else's ticket.
    garbage: float = 0.0
    #: Of hellos: what arrives of their fingerprint isn't what was sent.
    misread: float = 0.0
    #: Of control and data messages: their sender says another beside them that isn't its to say.
    lie: float = 0.0
    #: Of requests: they come with the ticket of another one.
    mix_up: float = 0.0


#: Groups of faults, for the command line and for tests.
KINDS: Final[dict[str, Faults]] = {
    "none": Faults(),
    "abort": Faults(abort=0.3),
    "post": Faults(drop=0.05, duplicate=0.05, reorder=0.2, late=0.02),
    "links": Faults(partition=0.05, cut=0.2, stall=0.3),
    "reads": Faults(stuck=0.06, write_on=0.5, cut=0.1),
    "deaths": Faults(kill_node=0.03, kill_worker=0.03),
    "steps": Faults(long_step=0.02, fail_step=0.02, pause=0.05),
    "garbage": Faults(garbage=0.02, misread=0.05),
    "roles": Faults(change_role=0.2),
    "leases": Faults(take_back=0.6, fail_step=0.05),
    "lies": Faults(lie=0.15, mix_up=0.1),
}


def faults_of(names: list[str]) -> Faults:
    """All of these kinds together; `all` is every one. Raises: ConfigError for an unknown name.

    >>> faults_of(["post", "abort"]).drop, faults_of(["all"]).kill_node
    (0.05, 0.03)
    """
    chosen = list(KINDS) if "all" in names else names
    found = Faults()
    for name in chosen:
        if name not in KINDS:
            raise ConfigError(f"no kind of fault: {name}; there are {', '.join(KINDS)}, all")
        kind = KINDS[name]
        found = replace(
            found,
            **{
                field.name: max(getattr(found, field.name), getattr(kind, field.name))
                for field in fields(Faults)
            },
        )
    return found
