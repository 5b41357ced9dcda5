"""Chapters 4 and 7, "move" and "hand on": what the connector wants of this node.

Owns:   the scheduler half, and its links to others.
Knows nothing of: HTTP, what a block is for.
"""

import os
from collections.abc import Callable

import structlog

from kvdist import errors
from kvdist.cache import KVCacheConfig
from kvdist.connector import rules
from kvdist.connector.effects import TicketReady, WorkerLost
from kvdist.connector.geometry import Geometry
from kvdist.connector.host import Loaded, LoadFailed, Moved
from kvdist.connector.messages import Blocks, Ticket
from kvdist.connector.params import ByTransfer
from kvdist.connector.scheduler_half import SchedulerHalf
from kvdist.ids import BlockHash, LeaseId
from kvdist.links.members import Members
from kvdist.links.node_links import NodeLinks
from kvdist.node.admissions import Admissions
from kvdist.node.neighbours import ExchangeSettings, Neighbours
from kvdist.node.outbox import Outbox
from kvdist.sched.lending import Lending
from kvdist.sched.scheduler import Scheduler

_log = structlog.get_logger(__name__)

_LEASE_BYTES = 16


class _Holdings:
    """`Lending`, whose scheduler is made after the half that asks it."""

    lending: Lending

    @property
    def pool_blocks(self) -> int:
        return self.lending.pool_blocks

    @property
    def longest_blocks(self) -> int:
        return self.lending.longest_blocks

    def lend(
        self, hashes: tuple[BlockHash, ...], hash_block_size: int, most_blocks: int
    ) -> tuple[Blocks, int] | None:
        return self.lending.lend(hashes, hash_block_size, most_blocks)


class Exchange:
    """`admissions` is what the scheduler asks; `attach` says who does."""

    def __init__(
        self,
        settings: ExchangeSettings,
        config: KVCacheConfig,
        neighbours: Neighbours,
        members: Members,
    ) -> None:
        self.settings, self._marks = settings, settings.marks()
        self._holdings = _Holdings()
        told = neighbours.fingerprint
        self._geometry = Geometry.of(config, told.num_heads, told.num_ranks)
        self.half = SchedulerHalf(
            settings.node_id,
            settings.run,
            self._geometry,
            settings.connector,
            self._holdings,
            lambda: LeaseId(os.urandom(_LEASE_BYTES)),
            neighbours.fingerprint,
        )
        self._neighbours = neighbours
        self._links = NodeLinks(
            settings.node_id,
            self.half,
            members,
            neighbours.transport,
            neighbours.workers,
            lambda: self._wake(),
            self._marks,
        )
        self.admissions = Admissions(self.half, self._links.tell_time)
        self._scheduler: Scheduler
        self._outbox: Outbox
        self._wake: Callable[[], None] = lambda: None

    def attach(self, scheduler: Scheduler, outbox: Outbox, wake: Callable[[], None]) -> None:
        """These are the node's. `wake`: there is more to do. Raises: errors.ConfigError."""
        self._scheduler, self._outbox, self._wake = scheduler, outbox, wake
        lending = self._holdings.lending = Lending(scheduler)
        if self.settings.role != "decode" and lending.longest_blocks >= lending.pool_blocks:
            raise errors.ConfigError(
                f"nothing could be lent: of {lending.pool_blocks} blocks {lending.longest_blocks} "
                "are kept for one longest sequence (T10): more blocks, or a shorter max_model_len"
            )

    async def run(self) -> None:
        """Until it is cancelled. Raises: errors.WorkerLost."""
        try:
            await self._links.run(self._neighbours.listener, self._neighbours.addresses)
        except* errors.WorkerLost as lost:
            raise errors.WorkerLost(str(lost.exceptions[0])) from lost

    @property
    def control_address(self) -> str:
        """Where other nodes reach us."""
        return self._neighbours.listener.address

    @property
    def is_ready(self) -> bool:
        """See `SchedulerHalf.is_ready`."""
        return self.half.is_ready

    @property
    def is_idle(self) -> bool:
        """See `SchedulerHalf.is_idle`."""
        return self.half.is_idle

    def check_room(self, num_tokens: int) -> None:
        """Raises: errors.Unavailable if K/V of so many tokens couldn't be lent now (T10)."""
        groups, holdings = self._geometry.groups, self._holdings
        blocks = sum(-(-group.last_needed(num_tokens) // group.block_size) for group in groups)
        leased = self.half.lender.num_leased
        if not rules.may_lend(leased, blocks, holdings.pool_blocks, holdings.longest_blocks):
            raise errors.Unavailable(f"{leased} blocks are lent: not this prompt's, too (T10)")

    @property
    def held(self) -> dict[str, int]:
        """What is lent, wanted, and not to be touched: leases, claims and pulls, blocks."""
        return {
            "leases": len(self.half.lender.leases),
            "pulls": self.half.borrower.num_open,
            "quarantined": self.half.borrower.num_quarantined,
        }

    def carry_out(self) -> None:
        """All that follows from what was done and heard since. Raises: errors.WorkerLost."""
        was_idle = self.is_idle
        self._carry_out()
        if self.is_idle and not was_idle:
            self._wake()  # who waits for that hears of nothing else any more

    def _carry_out(self) -> None:
        while effects := self._links.take():
            for effect in effects:
                match effect:
                    case TicketReady(request_id, ticket):
                        self._marks.passed("ticket-ready")
                        if not self._outbox.ticket(request_id, ticket) and ticket is not None:
                            self.give_back(ticket)  # who asked has gone
                    case WorkerLost(rank):
                        raise errors.WorkerLost(f"worker {rank} doesn't answer")
                    case _:
                        self._marks.moved(effect)
                        self._note(effect)
                        self._outbox.tell(self._scheduler.moved(effect))
                        if isinstance(effect, Loaded):
                            self._marks.passed("published")
                        self._wake()  # blocks may be free now

    def _note(self, moved: Moved) -> None:
        match moved:
            case Loaded(request_id):
                self.admissions.loaded(request_id)
                _log.debug("pulled", request=request_id)
            case LoadFailed(request_id, reason, again):
                _log.warning("pull failed", request=request_id, reason=reason, again=again)
            case _:
                pass

    def give_back(self, lent: Ticket | ByTransfer) -> None:
        """Nobody will come for it; if it is still computed, it is aborted."""
        self._links.tell_time()
        computed = self.half.give_back(lent)
        if computed is not None:
            self._scheduler.abort(computed, "nobody will come for it")
        self._wake()

    def drain(self) -> None:
        """Lend nothing new."""
        self._links.tell_time()
        self.half.drain()
