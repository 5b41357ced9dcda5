"""What the scheduler asks of a remote cache, which brings K/V from elsewhere and lends ours out.

Owns:   nothing.
Knows nothing of: who plays the role: our connector, a fake in a test.
Units:  tokens; block ids are nested `[group][block]`, with 0 where a group skips a position.
"""

from collections.abc import Mapping, Sequence as Listing
from typing import Protocol

from kvdist.cache import Request
from kvdist.connector.host import NOTHING, BlockTables, Match
from kvdist.ids import BlockId, RequestId


class RemoteCache(Protocol):
    """Called by the scheduler; answers that take time come to `Scheduler.moved`."""

    def arrived(
        self,
        request: Request,
        kv_transfer_params: Mapping[str, object] | None,
        *,
        prefill_only: bool,
    ) -> None:
        """`request` has come; the parameters are the remote cache's to read.

        Raises: InvalidRequest for what can't be read, WrongRole for what a node of another role
        does; nothing has changed then.
        """

    def match(self, request: Request, num_local_tokens: int) -> Match:
        """What can be loaded after so many local tokens. May be asked often; whoever has to wait
        need not be asked again before `take_answered` names it.
        """

    def take_answered(self) -> Listing[RequestId]:
        """Requests that were told to wait, and may be told more now; each is named once."""

    def admitted(
        self,
        request: Request,
        block_ids: BlockTables,
        num_local_tokens: int,
        num_external_tokens: int,
    ) -> None:
        """`request` got blocks: those of its local hit and new ones.

        With external tokens, those after the local ones have to be loaded now: exactly one `Loaded`
        or `LoadFailed` follows, and after a `LoadFailed` one `LoadQuiet` for the same blocks.
        """

    def settled(self, request: Request, num_tokens: int) -> None:
        """The K/V of its first `num_tokens` are written, by steps that are over."""

    def may_preempt(self, request: Request) -> bool:
        """False: a peer reads along, and has to be stopped first; that begins now. Ask again."""

    def short_of_blocks(self) -> None:
        """Somebody waits for blocks: what is lent without need comes back first (T13)."""

    def finished(
        self, request: Request, block_ids: BlockTables, num_tokens: int, *, is_usable: bool
    ) -> Listing[BlockId]:
        """`request` has ended, however it did; called once, before its blocks are freed.

        num_tokens: how many have their K/V in the blocks. is_usable: it came to the end that a peer
        waits for: its prompt is computed. Returns those of its blocks that are lent to a peer; the
        scheduler holds them as such (`HoldKind.LEASE`) until `BlocksReturned`.
        """


class NoRemoteCache:
    """A node by itself."""

    def arrived(
        self,
        request: Request,
        kv_transfer_params: Mapping[str, object] | None,
        *,
        prefill_only: bool,
    ) -> None:
        """See `RemoteCache.arrived`."""

    def match(self, request: Request, num_local_tokens: int) -> Match:
        """See `RemoteCache.match`."""
        return NOTHING

    def take_answered(self) -> Listing[RequestId]:
        """See `RemoteCache.take_answered`."""
        return ()

    def admitted(
        self,
        request: Request,
        block_ids: BlockTables,
        num_local_tokens: int,
        num_external_tokens: int,
    ) -> None:
        """See `RemoteCache.admitted`."""

    def settled(self, request: Request, num_tokens: int) -> None:
        """See `RemoteCache.settled`."""

    def may_preempt(self, request: Request) -> bool:
        """See `RemoteCache.may_preempt`."""
        return True

    def short_of_blocks(self) -> None:
        """See `RemoteCache.short_of_blocks`."""

    def finished(
        self, request: Request, block_ids: BlockTables, num_tokens: int, *, is_usable: bool
    ) -> Listing[BlockId]:
        """See `RemoteCache.finished`."""
        return ()
