"""Operations on a worker: a row of UCX calls, a few of them under way at a time.

Owns:   the requests of one operation, and the memory that they use.
Knows nothing of: when a worker is progressed.
Ends:   `told` is set as soon as the outcome is known, `ended` when no request is left: only then
        is no byte of it able to land.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from ctypes import byref
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from transports import ucp
from transports.buffers import as_misuse
from transports.errors import PeerLost, RemoteProtocol, TransportError
from transports.ucx_memory import Piece

if TYPE_CHECKING:
    from transports.ucx_worker import Worker

#: Bytes that one turn may post: where UCX copies at once, as it posts, the loop waits for it.
_BYTES_PER_TURN: Final = 2 << 20

T = TypeVar("T")


class Operation(Generic[T]):
    """Posts `items` one after the other, at most `window` of them under way."""

    window = 4
    #: Its requests write into memory of ours.
    moves_bytes_here = False

    def __init__(self, items: Iterator[T]) -> None:
        self.error: TransportError | None = None
        self.ended = False
        self._items = items
        self._all_posted = False
        self._flying: deque[tuple[int, T]] = deque()
        self._changed = asyncio.Event()

    @property
    def under_way(self) -> bool:
        """True if requests of it move bytes that no cancelling stops: gets and receives."""
        return self.moves_bytes_here and not self.ended

    # What kinds of operations differ in ------------------------------------------------------

    def post(self, worker: "Worker", item: T) -> int | None:
        """Make the call; its raw result."""
        raise NotImplementedError

    def size(self, item: T) -> int:
        """Bytes of an item."""
        raise NotImplementedError

    def status(self, worker: "Worker", request: int, item: T) -> int:
        """How a request stands. Raises: RemoteProtocol if it has ended in nonsense."""
        result: int = worker.library.ucp_request_check_status(request)
        return result

    # What all share ---------------------------------------------------------------------------

    def turn(self, worker: "Worker") -> bool:
        """Take note of what has ended and post more; True if anything has moved."""
        moved = self._settle(worker)
        if self.error is None and not self._all_posted:
            moved |= self._post_more(worker)
        if not self._flying and (self._all_posted or self.error is not None) and not self.ended:
            self._end()
        return moved

    def _settle(self, worker: "Worker") -> bool:
        moved = False
        flying, status_of = self._flying, self.status
        while flying:
            request, item = flying[0]
            try:
                status = status_of(worker, request, item)
            except RemoteProtocol as error:
                self._tell(error)
                status = ucp.Status.OK
            if status == ucp.Status.INPROGRESS:
                break
            if status < 0:
                self._tell(ucp.error_of(status, type(self).__name__))
            flying.popleft()
            worker.library.ucp_request_free(request)
            moved = True
        return moved

    def _post_more(self, worker: "Worker") -> bool:
        posted = 0
        while len(self._flying) < self.window and posted < _BYTES_PER_TURN:
            try:
                item = next(self._items, None)
            except ValueError as error:  # of a piece that can't be made
                self._tell(as_misuse(error))
                break
            if item is None:
                self._all_posted = True
                break
            if not worker.usable:
                self._tell(PeerLost("the endpoint has failed"))
                break
            try:
                request = ucp.request_of(self.post(worker, item))
            except TransportError as error:
                self._tell(error)
                break
            if request:
                self._flying.append((request, item))
            posted += self.size(item) + 1
        return posted > 0

    def _tell(self, error: TransportError) -> None:
        if self.error is None and not self.ended:
            self.error = error
            self._changed.set()

    def _end(self) -> None:
        self.ended = True
        self._items = iter(())
        self._changed.set()

    def stop(self, reason: TransportError) -> None:
        """Post nothing more; what is under way goes on."""
        self._tell(reason)

    def cancel(self, worker: "Worker", reason: TransportError) -> None:
        """Post nothing more, and ask UCX to drop what is under way; not all of it can be."""
        self._tell(reason)
        for request, _ in self._flying:
            worker.library.ucp_request_cancel(worker.handle, request)

    def forget(self) -> None:
        """The worker has gone, and all requests with it."""
        self._flying.clear()
        if not self.ended:
            self._end()

    async def result(self) -> None:
        """Return when it has succeeded. Raises: what it ended with."""
        while not self.ended and self.error is None:
            self._changed.clear()
            await self._changed.wait()
        if self.error is not None:
            raise type(self.error)(*self.error.args)

    async def quiet(self) -> None:
        """Return when nothing of it is under way any more."""
        while not self.ended:
            self._changed.clear()
            await self._changed.wait()


class Send(Operation[tuple[int, Piece]]):
    """Tagged pieces to the peer."""

    def post(self, worker: "Worker", item: tuple[int, Piece]) -> int | None:
        """See `Operation.post`."""
        tag, piece = item
        result: int | None = worker.library.ucp_tag_send_nbx(
            worker.endpoint, piece.address, piece.count, tag, piece.send_param
        )
        return result

    def size(self, item: tuple[int, Piece]) -> int:
        """See `Operation.size`."""
        return item[1].num_bytes


class Receive(Operation[tuple[int, Piece]]):
    """Tagged pieces from the peer, each of exactly the piece's size."""

    moves_bytes_here = True

    def __init__(self, items: Iterator[tuple[int, Piece]], *, exact: bool = True) -> None:
        super().__init__(items)
        self._exact = exact
        #: Told of every piece that has come.
        self.on_arrival: Callable[[int], None] = _ignore
        #: Bytes of the last piece.
        self.length = 0
        self._info = ucp.TagRecvInfo()

    def post(self, worker: "Worker", item: tuple[int, Piece]) -> int | None:
        """See `Operation.post`."""
        tag, piece = item
        place = (worker.handle, piece.address, piece.count)
        result: int | None
        if (message := worker.unread.next(tag)) is not None:
            result = worker.library.ucp_tag_msg_recv_nbx(*place, message, piece.recv_param)
        else:
            result = worker.library.ucp_tag_recv_nbx(*place, tag, ucp.FULL_MASK, piece.recv_param)
        return result

    def size(self, item: tuple[int, Piece]) -> int:
        """See `Operation.size`."""
        return item[1].num_bytes

    def status(self, worker: "Worker", request: int, item: tuple[int, Piece]) -> int:
        """See `Operation.status`."""
        result: int = worker.library.ucp_tag_recv_request_test(request, byref(self._info))
        if result == ucp.Status.OK:
            self.length = self._info.length
            self.on_arrival(self.length)
            if self._exact and self.length != item[1].num_bytes:
                raise RemoteProtocol(f"{self.length} bytes where {item[1].num_bytes} are due")
        return result


class Get(Operation[int]):
    """Spans of the peer's memory into ours. Its loops are written out: there may be thousands of
    small spans, and what Python does for each costs as much as moving it.
    """

    window = 32
    moves_bytes_here = True

    def __init__(self, gets: list[tuple[int, int, int]], rkey: int, memory: object) -> None:
        super().__init__(iter(()))
        self._gets = gets
        self._next = 0
        self._rkey = rkey
        #: Kept while bytes can land.
        self._memory: object = memory

    def _settle(self, worker: "Worker") -> bool:
        flying = self._flying
        before = len(flying)
        status_of, free = worker.library.ucp_request_check_status, worker.library.ucp_request_free
        while flying:
            request = flying[0][0]
            status = status_of(request)
            if status > 0:
                break
            if status:
                self._tell(ucp.error_of(status, "get"))
            flying.popleft()
            free(request)
        return len(flying) < before

    def _post_more(self, worker: "Worker") -> bool:
        flying, gets, number = self._flying, self._gets, self._next
        get, endpoint, rkey = worker.library.ucp_get_nbx, worker.endpoint, self._rkey
        if not worker.usable:
            self._tell(PeerLost("the endpoint has failed"))
            return True
        free, room = self.window - len(flying), _BYTES_PER_TURN
        while number < len(gets) and free > 0 and room > 0:
            local, remote, length = gets[number]
            result = get(endpoint, local, length, remote, rkey, _PLAIN)
            if result:
                if result >= ucp.FIRST_ERROR:
                    self._tell(ucp.error_of(result - (1 << 64), "get"))
                    break
                flying.append((result, number))
                free -= 1
            number += 1
            room -= length
        moved = number > self._next
        self._next = number
        self._all_posted = number == len(gets)
        return moved

    def _end(self) -> None:
        super()._end()
        self._memory = None


class Flush(Operation[None]):
    """Everything sent so far has left for good."""

    def __init__(self) -> None:
        super().__init__(iter(()))
        self._posted = False

    def _post_more(self, worker: "Worker") -> bool:
        self._all_posted = True
        try:
            request = ucp.request_of(worker.library.ucp_ep_flush_nbx(worker.endpoint, _PLAIN))
        except TransportError as error:
            self._tell(error)
            return True
        if request:
            self._flying.append((request, None))
        return True


def _ignore(_num_bytes: int) -> None:
    """Nobody counts."""


_PLAIN = byref(ucp.RequestParam())
