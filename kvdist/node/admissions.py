"""What a node by itself wants to know of admissions: how much of a prompt was there already.

Owns:   the local hit of each running sequence.
Knows nothing of: jobs, HTTP.
Units:  tokens.
"""

from collections.abc import Callable, Sequence as Listing

from kvdist.cache import Request
from kvdist.connector.host import BlockTables
from kvdist.ids import BlockId, RequestId
from kvdist.sched.roles import NoRemoteCache


class Admissions(NoRemoteCache):
    """A remote cache that has nothing, and takes notes."""

    def __init__(self) -> None:
        #: Of sequences that have not ended: tokens hit when they last began.
        self.hit_tokens: dict[RequestId, int] = {}
        #: Called once a sequence, the first time it begins.
        self.on_admitted: Callable[[RequestId, int], None] = lambda request_id, num_tokens: None

    def admitted(
        self,
        request: Request,
        block_ids: BlockTables,
        num_local_tokens: int,
        num_external_tokens: int,
    ) -> None:
        """Note the hit; one that comes after a preemption is not the client's gain."""
        self.hit_tokens[request.request_id] = num_local_tokens
        if not request.num_preemptions:
            self.on_admitted(request.request_id, num_local_tokens)

    def finished(
        self, request: Request, block_ids: BlockTables, num_tokens: int, *, is_usable: bool
    ) -> Listing[BlockId]:
        """Nothing is lent."""
        self.hit_tokens.pop(request.request_id, None)
        return ()
