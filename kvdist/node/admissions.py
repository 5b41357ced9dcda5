"""What a node wants to know of admissions: how much of a prompt was there already, and where.

Owns:   the hits of each running sequence.
Knows nothing of: jobs, HTTP, how K/V come from elsewhere.
Units:  tokens.
"""

from collections.abc import Callable, Mapping, Sequence as Listing

from kvdist.cache import Request
from kvdist.connector.host import BlockTables, Match
from kvdist.ids import BlockId, RequestId
from kvdist.sched.roles import NoRemoteCache, RemoteCache


class Admissions:
    """A remote cache that takes notes, and asks another one; which knows how late it is."""

    def __init__(
        self, remote: RemoteCache | None = None, tell_time: Callable[[], None] = lambda: None
    ) -> None:
        self._remote = NoRemoteCache() if remote is None else remote
        self._tell_time = tell_time
        #: Of sequences that have not ended: tokens hit here when they last began.
        self.hit_tokens: dict[RequestId, int] = {}
        #: Of those whose K/V are being loaded: tokens that come.
        self._coming: dict[RequestId, int] = {}
        self._told: set[RequestId] = set()
        #: Called once a sequence, when it begins for the first time: tokens hit here, and loaded.
        self.on_admitted: Callable[[RequestId, int, int], None] = lambda *_: None

    def arrived(
        self,
        request: Request,
        kv_transfer_params: Mapping[str, object] | None,
        *,
        prefill_only: bool,
    ) -> None:
        """See `RemoteCache.arrived`."""
        self._tell_time()
        self._remote.arrived(request, kv_transfer_params, prefill_only=prefill_only)

    def match(self, request: Request, num_local_tokens: int) -> Match:
        """See `RemoteCache.match`."""
        self._tell_time()
        return self._remote.match(request, num_local_tokens)

    def take_answered(self) -> Listing[RequestId]:
        """See `RemoteCache.take_answered`."""
        return self._remote.take_answered()

    def admitted(
        self,
        request: Request,
        block_ids: BlockTables,
        num_local_tokens: int,
        num_external_tokens: int,
    ) -> None:
        """Note the hit; one that comes after a preemption is not the client's gain."""
        self._tell_time()
        self.hit_tokens[request.request_id] = num_local_tokens
        if num_external_tokens:
            self._coming[request.request_id] = num_external_tokens
        else:
            self._tell(request.request_id, 0)
        self._remote.admitted(request, block_ids, num_local_tokens, num_external_tokens)

    def loaded(self, request_id: RequestId) -> None:
        """What was to come has come."""
        if request_id in self._coming:
            self._tell(request_id, self._coming.pop(request_id))

    def _tell(self, request_id: RequestId, num_loaded_tokens: int) -> None:
        if request_id not in self._told:
            self._told.add(request_id)
            self.on_admitted(request_id, self.hit_tokens[request_id], num_loaded_tokens)

    def settled(self, request: Request, num_tokens: int) -> None:
        """See `RemoteCache.settled`."""
        self._tell_time()
        self._remote.settled(request, num_tokens)

    def may_preempt(self, request: Request) -> bool:
        """See `RemoteCache.may_preempt`."""
        self._tell_time()
        return self._remote.may_preempt(request)

    def short_of_blocks(self) -> None:
        """See `RemoteCache.short_of_blocks`."""
        self._tell_time()
        self._remote.short_of_blocks()

    def finished(
        self, request: Request, block_ids: BlockTables, num_tokens: int, *, is_usable: bool
    ) -> Listing[BlockId]:
        """See `RemoteCache.finished`."""
        self._tell_time()
        self.hit_tokens.pop(request.request_id, None)
        self._coming.pop(request.request_id, None)
        self._told.discard(request.request_id)
        return self._remote.finished(request, block_ids, num_tokens, is_usable=is_usable)
