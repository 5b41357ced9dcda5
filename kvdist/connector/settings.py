"""Every number of the transfer protocol, in one place, with what it is for.

Owns:   nothing; values are frozen and checked when made.
Knows nothing of: clocks, messages.
Units:  seconds, tokens and blocks, by name.
"""

from dataclasses import dataclass
from math import inf
from typing import Literal

from kvdist.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of one node. Raises: ConfigError for numbers that contradict each other."""

    #: How long blocks wait for their reader, from when the ticket left or was last renewed.
    lease_s: float = 30.0
    #: How often a reader says which leases it still wants.
    renewal_s: float = 5.0
    #: The whole life of a lease, however often it is renewed (T10).
    life_s: float = 300.0
    #: Tokens that are sent or read at a time: after each such burst progress is seen (T16), and
    #: others have a turn.
    burst_tokens: int = 4096
    #: A read without progress for that long has its link cut (T16).
    stall_s: float = 10.0
    #: How often a reader reports progress to the owner.
    progress_s: float = 2.0
    #: An answer that hasn't come by then is asked for again ...
    answer_s: float = 1.0
    #: ... so many times in all.
    tries: int = 5
    #: How long a verdict is kept for repeats (T4), and how many of one peer, with what it has open;
    #: beyond them it is refused new pulls.
    verdict_s: float = 60.0
    max_verdicts_per_peer: int = 1 << 14
    #: How long a question about a transfer id that isn't known yet waits (T14) ...
    parked_s: float = 5.0
    #: ... and how many may wait, in all and from one peer.
    max_parked: int = 256
    max_parked_per_peer: int = 64
    #: A worker that hasn't acknowledged for that long is lost (T5). One that has died is noticed at
    #: once: this is for one that hangs, not for one whose machine has far too much to do.
    ack_s: float = 15.0
    #: Bytes that don't come to rest: after so long the link, the endpoint, the transport's context
    #: and the worker are given up, one after the other (T17).
    escalation_s: tuple[float, float, float, float] = (5.0, 15.0, 30.0, 60.0)
    #: Quarantined blocks beyond this share of the pool make the node unready.
    quarantine_share: float = 1 / 8
    #: Pulls of one request: after so many failed ones it is recomputed or fails.
    max_rounds: int = 2
    #: What becomes of a request whose pulls have failed.
    on_failure: Literal["recompute", "fail"] = "recompute"
    #: Tokens that may be recomputed at a time because pulls failed; beyond it requests fail.
    max_recompute_tokens: int = 1 << 20
    #: A pull of fewer tokens isn't worth its round trips.
    min_pull_tokens: int = 1
    #: K/V may be read along while they are computed (T11); not for a host that preempts without
    #: asking (T12).
    streams: bool = True
    #: Most blocks lent by hash to one peer, as a share of the pool (T13).
    soft_share: float = 1 / 4

    @property
    def revocation_s(self) -> float:
        """No worker takes longer to end what is open, whatever readers do: else it is lost (T5)."""
        return self.life_s + 2 * self.stall_s + self.ack_s

    def __post_init__(self) -> None:
        times = (
            self.lease_s, self.renewal_s, self.life_s, self.stall_s, self.progress_s,
            self.answer_s, self.verdict_s, self.parked_s, self.ack_s, *self.escalation_s,
        )  # fmt: skip
        counts = (
            self.burst_tokens, self.tries, self.max_parked, self.max_parked_per_peer,
            self.max_rounds, self.max_verdicts_per_peer,
        )  # fmt: skip
        if not all(0 < time < inf for time in times) or min(counts) < 1:
            raise ConfigError("times and counts are positive, and times end")
        if self.min_pull_tokens < 0 or self.max_recompute_tokens < 0:
            raise ConfigError("numbers of tokens aren't negative")
        if not self.renewal_s < self.lease_s <= self.life_s:
            raise ConfigError("a lease outlives a renewal, and its whole life outlives it")
        if not self.progress_s < self.stall_s:
            raise ConfigError("a reader reports progress before it counts as stalled")
        if not self.tries * self.answer_s < self.verdict_s:
            raise ConfigError("a verdict is kept longer than it is asked for (T4)")
        if sorted(self.escalation_s) != list(self.escalation_s):
            raise ConfigError("escalation goes up")
        if not (0 < self.quarantine_share <= 1 and 0 <= self.soft_share <= 1):
            raise ConfigError("shares are between 0 and 1")
        if self.on_failure not in ("recompute", "fail"):
            raise ConfigError(f"on_failure {self.on_failure!r} is not recompute or fail")
