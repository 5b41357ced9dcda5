"""What the scheduler asks of others: of a remote cache, which brings K/V from elsewhere and lends
ours out, and of a worker, which runs the plans.

Owns:   nothing.
Knows nothing of: who plays the roles: our connector, vLLM's interface, a fake in a test.
Units:  tokens; block ids are nested `[group][block]`, with 0 where a group skips a position.
Source: the contract of vLLM's connectors (vllm/distributed/kv_transfer/kv_connector/v1/base.py,
        0.32), so that one implementation can serve both schedulers.
"""

from collections.abc import Sequence as Listing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from kvdist.ids import BlockId, RequestId

if TYPE_CHECKING:
    from kvdist.sched.sequence import Sequence

BlockTables: TypeAlias = Listing[Listing[BlockId]]


@dataclass(frozen=True, slots=True)
class Match:
    """What can be loaded for a sequence after its local hit."""

    #: Tokens after the local ones; 0: nothing.
    num_tokens: int = 0
    #: True: not known yet, or somebody else is loading the same. It waits and holds nothing.
    pending: bool = False


NOTHING: Final = Match()
PENDING: Final = Match(pending=True)


@dataclass(frozen=True, slots=True)
class Loaded:
    """All bytes are there and verified: they may be published (S15)."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The bytes are worthless, and may still be landing until `LoadQuiet` (T2)."""

    request_id: RequestId
    reason: str
    #: False: the sequence ends with an error. True: it waits again, and `match` is asked again.
    again: bool


@dataclass(frozen=True, slots=True)
class LoadQuiet:
    """No byte of a failed load can land any more in these blocks (T3)."""

    block_ids: Listing[BlockId]


@dataclass(frozen=True, slots=True)
class BlocksReturned:
    """Blocks that `finished` kept, or that were lent by hash: no peer reads them any more."""

    block_ids: Listing[BlockId]


Moved: TypeAlias = Loaded | LoadFailed | LoadQuiet | BlocksReturned


class RemoteCache(Protocol):
    """Called by the scheduler; answers that take time come to `Scheduler.moved`."""

    def arrived(self, sequence: "Sequence") -> None:
        """`sequence` has come; its `kv_transfer_params` are the remote cache's to read.

        Raises: InvalidRequest for what can't be read; nothing has changed then.
        """

    def match(self, sequence: "Sequence", num_local_tokens: int) -> Match:
        """What can be loaded after so many local tokens. Changes nothing; may be asked often."""

    def admitted(
        self,
        sequence: "Sequence",
        block_ids: BlockTables,
        num_local_tokens: int,
        num_external_tokens: int,
    ) -> None:
        """`sequence` got blocks: those of its local hit and new ones.

        With external tokens, those after the local ones have to be loaded now: exactly one `Loaded`
        or `LoadFailed` follows, and after a `LoadFailed` one `LoadQuiet` for the same blocks.
        """

    def settled(self, sequence: "Sequence", num_tokens: int) -> None:
        """The K/V of its first `num_tokens` are written, by steps that are over."""

    def may_preempt(self, sequence: "Sequence") -> bool:
        """False: a peer reads along, and has to be stopped first; that begins now. Ask again."""

    def short_of_blocks(self) -> None:
        """Somebody waits for blocks: what is lent without need comes back first (T13)."""

    def finished(
        self, sequence: "Sequence", block_ids: BlockTables, num_tokens: int
    ) -> Listing[BlockId]:
        """`sequence` has ended, however it did; called once, before its blocks are freed.

        num_tokens: how many have their K/V in the blocks. Returns those of its blocks that are lent
        to a peer; the scheduler holds them as such (`HoldKind.LEASE`) until `BlocksReturned`.
        """


class NoRemoteCache:
    """A node by itself."""

    def arrived(self, sequence: "Sequence") -> None:
        """See `RemoteCache.arrived`."""

    def match(self, sequence: "Sequence", num_local_tokens: int) -> Match:
        """See `RemoteCache.match`."""
        return NOTHING

    def admitted(
        self,
        sequence: "Sequence",
        block_ids: BlockTables,
        num_local_tokens: int,
        num_external_tokens: int,
    ) -> None:
        """See `RemoteCache.admitted`."""

    def settled(self, sequence: "Sequence", num_tokens: int) -> None:
        """See `RemoteCache.settled`."""

    def may_preempt(self, sequence: "Sequence") -> bool:
        """See `RemoteCache.may_preempt`."""
        return True

    def short_of_blocks(self) -> None:
        """See `RemoteCache.short_of_blocks`."""

    def finished(
        self, sequence: "Sequence", block_ids: BlockTables, num_tokens: int
    ) -> Listing[BlockId]:
        """See `RemoteCache.finished`."""
        return ()
