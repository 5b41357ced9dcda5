"""Names that routers give to transfers: whose request is meant, who asks for it, which are over.

Owns:   the transfers, each with one request and one reader.
Knows nothing of: leases, messages, clocks.
Source: T11, T14, T19 of docs/protocol.md.
"""

from collections import Counter

from kvdist.connector import rules
from kvdist.connector.geometry import Geometry
from kvdist.connector.settings import Settings
from kvdist.errors import InvalidRequest
from kvdist.ids import NodeId, RequestId, TransferId


class Transfers:
    """Of one owner's node."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        #: Those that are known and not over, by their requests.
        self.requests: dict[TransferId, RequestId] = {}
        #: Questions: who waits for an answer (T14).
        self.asked: dict[TransferId, NodeId] = {}
        #: The latest of those that are over, the oldest first: whoever asks for one needn't wait.
        #: True: it was given back, perhaps before its request came, or is over.
        self.over: dict[TransferId, bool] = {}
        #: Requests whose reader comes with a ticket: the transfer is but their name.
        self._not_along: set[RequestId] = set()

    def __len__(self) -> int:
        return len(self.asked) + len(self.requests)

    @property
    def num_parked(self) -> Counter[NodeId]:
        """By peer: what it waits for that isn't known here yet."""
        unknown = self.asked.keys() - self.requests.keys()
        return Counter(self.asked[transfer] for transfer in unknown)

    def may_park(self, peer: NodeId) -> bool:
        """Whether one more of this peer's questions may wait for what isn't known yet (T14)."""
        parked, told = self.num_parked, self._settings
        most = told.max_parked, told.max_parked_per_peer
        return rules.may_park(parked.total(), parked[peer], *most)

    def begin(self, transfer: TransferId, request_id: RequestId, *, reads_along: bool) -> None:
        """A request is named so. Raises: InvalidRequest if another one is: a reader of one would
        get the K/V of the other; and if it was given back before it came.
        """
        if transfer in self.requests:
            raise InvalidRequest("kv_transfer_params: transfer_id is in use")
        if self.over.get(transfer):
            raise InvalidRequest("kv_transfer_params: transfer_id was given back")
        self.requests[transfer] = request_id
        if not reads_along:
            self._not_along.add(request_id)

    def may_read_along(self, transfer: TransferId, geometry: Geometry) -> bool:
        """Whether its reader can come before its request is over (T11)."""
        streams = self._settings.streams and geometry.streams
        return streams and self.requests[transfer] not in self._not_along

    def give_back(self, transfer: TransferId) -> None:
        """No other request may be named so any more: a release that comes again would end it."""
        self._put_over(transfer, given_back=True)

    def end(self, transfer: TransferId) -> NodeId | None:
        """It is over; returns who waits to hear so."""
        self._not_along.discard(self.requests.pop(transfer, ""))
        self._put_over(transfer, given_back=self.over.get(transfer, False))
        return self.asked.pop(transfer, None)

    def _put_over(self, transfer: TransferId, *, given_back: bool) -> None:
        self.over.pop(transfer, None)
        self.over[transfer] = given_back
        while len(self.over) > self._settings.max_parked:
            del self.over[next(iter(self.over))]
