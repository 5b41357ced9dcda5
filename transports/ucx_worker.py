"""One UCX worker with one endpoint, driven from an asyncio loop.

Owns:   the worker, its endpoint, everything posted on them.
Knows nothing of: heads, bodies, links.
Progress: callbacks on the loop, no task. While something moves, a turn at every pass of the loop;
        after `SPIN_S` of standstill the worker is armed and the loop wakes us by its descriptor.
A worker for each link: what UCX can't cancel (a receive that was matched, whose peer then died)
        ends with its worker and without harm to other links.
Not ucxx's worker: when it goes, it first receives whatever lies unread, into memory of the size
        that the peer named: a peer could end our process.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_void_p, sizeof, string_at
from typing import Any, Final

from transports import ucp
from transports.errors import PeerLost, RemoteProtocol, TransportError
from transports.ucx_operation import Operation
from transports.ucx_unread import Unread

#: Standstill after which the worker sleeps. Waking takes longer than this; a longer one keeps
#: other processes, perhaps the peer itself, from the core.
SPIN_S: Final = 0.00005
#: Calls of progress between two looks at the requests, unless a link wants fewer.
_CALLS_PER_TURN: Final = 32
#: Calls of progress that an end may take; what hasn't ended by then, ends with the worker.
_CALLS_AT_END: Final = 256
#: Calls that what is under way gets to end before the endpoint is closed.
_CALLS_TO_DRAIN: Final = 20_000
_MAX_LANES: Final = 16
_THREAD_MODE_SINGLE: Final = 0
_ERROR_HANDLING_PEER: Final = 1


class Worker:
    """See the module. `on_broken` is called once, from the loop, when the endpoint has failed."""

    def __init__(
        self, context: int, unread: Unread, on_broken: Callable[[TransportError], None]
    ) -> None:
        self._lib = lib = ucp.library()
        self.context = context
        #: What has come and wasn't asked for.
        self.unread = unread
        self.calls_per_turn = _CALLS_PER_TURN
        self._loop = asyncio.get_running_loop()
        self._on_broken: Callable[[TransportError], None] | None = on_broken
        self._operations: list[Operation[Any]] = []
        self._scheduled = False
        #: Something came in with the last turn.
        self._came = False
        self._moved_at = 0.0
        self._failure = 0
        self._rkeys: set[int] = set()
        self._callback: Any = ucp.ErrorCallback(self._on_error)
        self.endpoint = 0
        handle, fd = c_void_p(), c_int()
        params = ucp.WorkerParams(field_mask=1, thread_mode=_THREAD_MODE_SINGLE)
        ucp.check(lib.ucp_worker_create(context, byref(params), byref(handle)), "worker")
        self.handle: int = handle.value or 0
        try:
            ucp.check(lib.ucp_worker_get_efd(handle, byref(fd)), "event descriptor")
        except BaseException:
            lib.ucp_worker_destroy(handle)
            raise
        self._fd = fd.value
        self._loop.add_reader(self._fd, self._turn)

    # -- the peer ------------------------------------------------------------------------------

    def address(self) -> bytes:
        """Where this worker is found, for the peer's `connect`."""
        where, size = c_void_p(), c_size_t()
        ucp.check(
            self._lib.ucp_worker_get_address(self.handle, byref(where), byref(size)), "address"
        )
        try:
            return string_at(where, size.value)
        finally:
            self._lib.ucp_worker_release_address(self.handle, where)

    def connect(self, address: bytes) -> None:
        """Make the endpoint; that the peer is there shows only when something has come from it.
        Raises: PeerLost.
        """
        if not self.handle:
            raise PeerLost("the link has ended")
        handle = c_void_p()
        params = ucp.EpParams(
            field_mask=0b111,
            address=address,
            err_mode=_ERROR_HANDLING_PEER,
            err_cb=self._callback,
        )
        status = self._lib.ucp_ep_create(self.handle, byref(params), byref(handle))
        ucp.check(status, "endpoint")
        self.endpoint = handle.value or 0

    def lanes(self) -> list[str]:
        """Transport and device of each lane in use. Raises: PeerLost."""
        self._check_usable()
        entries = (ucp.TransportEntry * _MAX_LANES)()
        attr = ucp.EpAttr(
            field_mask=1 << 3,
            entries=entries,
            num_entries=_MAX_LANES,
            entry_size=sizeof(ucp.TransportEntry),
        )
        ucp.check(self._lib.ucp_ep_query(self.endpoint, byref(attr)), "lanes")
        found = entries[: attr.num_entries]
        return [f"{lane.transport.decode()}/{lane.device.decode()}" for lane in found]

    def unpack(self, rkey: bytes) -> int:
        """A handle for a peer's memory; it lasts until `drop` or the end. Raises: PeerLost."""
        self._check_usable()
        handle = c_void_p()
        ucp.check(self._lib.ucp_ep_rkey_unpack(self.endpoint, rkey, byref(handle)), "rkey")
        assert handle.value
        self._rkeys.add(handle.value)
        return handle.value

    def drop(self, rkey: int) -> None:
        """Let go of a handle. Idempotent."""
        if rkey in self._rkeys:
            self._rkeys.discard(rkey)
            self._lib.ucp_rkey_destroy(rkey)

    # -- operations ----------------------------------------------------------------------------

    def start(self, operation: Operation[Any]) -> None:
        """Post what can be posted now; the rest follows by itself. Raises: PeerLost."""
        self._check_usable()
        operation.turn(self)
        if not operation.ended:
            self._operations.append(operation)
        self._moved_at = self._loop.time()
        self._schedule()

    @property
    def usable(self) -> bool:
        """Something may be posted."""
        return bool(self.endpoint) and not self._failure

    def _check_usable(self) -> None:
        # It may have ended while what was just received was on its way to who asks.
        if not self.usable:
            raise PeerLost("the link has ended")

    def _schedule(self) -> None:
        if not self._scheduled and self.handle:
            self._scheduled = True
            self._loop.call_soon(self._scheduled_turn)

    def _scheduled_turn(self) -> None:
        self._scheduled = False
        self._turn()

    def _turn(self) -> None:
        """Let UCX work, see what has ended, decide when to come again."""
        if not self.handle:
            return
        # Before more comes in: what there was a receive for, has been taken since.
        if self._came and (flood := self._flood()) is not None:
            self._fail(flood)
            return
        progress, handle, calls = self._lib.ucp_worker_progress, self.handle, 0
        # What lies here goes first: a peer may send faster than we receive.
        most = 1 if self.unread.any else self.calls_per_turn
        while calls < most and progress(handle):
            calls += 1
        moved = self._came = calls > 0
        if self._failure:
            error = ucp.error_of(self._failure, "endpoint")
            self._fail(error if isinstance(error, PeerLost) else PeerLost(str(error)))
            return
        for operation in list(self._operations):
            moved |= operation.turn(self)
            if operation.ended:
                self._operations.remove(operation)
        now = self._loop.time()
        if moved:  # what was posted just now may have ended at once, and no event would tell
            self._moved_at = now
            self._schedule()
        elif now - self._moved_at < SPIN_S or not self._sleep():
            self._schedule()

    def _sleep(self) -> bool:
        """The loop wakes us at the next event; False if there has been one already."""
        if self._scheduled or self._lib.ucp_worker_arm(self.handle) == ucp.Status.OK:
            return True
        # Often it waits for the peer to make room, and UCX has no event for that. The peer may be
        # waiting for this very core.
        os.sched_yield()
        return False

    def _on_error(self, _argument: int | None, _endpoint: int | None, status: int) -> None:
        """Called by UCX in the middle of its work: only note it."""
        self._failure = self._failure or status

    def _flood(self) -> RemoteProtocol | None:
        """Count what nobody asked for; the error, if it is more than there can be."""
        try:
            self.unread.take_in(self._lib, self.handle)
        except RemoteProtocol as error:
            return error
        return None

    def _fail(self, error: TransportError) -> None:
        assert self._on_broken is not None, "no turns after the end"
        self._on_broken(error)

    # -- the end -------------------------------------------------------------------------------

    def destroy(self, reason: TransportError) -> None:
        """End everything now; when it returns no byte can land any more. Idempotent.

        Order matters: requests, handles of the peer's memory, endpoint, worker. UCX aborts the
        whole process when a worker goes whose gets and receives are still queued, so those that
        can end are given the time to: each call of progress moves some of their bytes.
        """
        if not self.handle:
            return
        for operation in self._operations:
            operation.cancel(self, reason)
        for _ in range(_CALLS_TO_DRAIN):
            if not any(operation.under_way for operation in self._operations) or self._flood():
                break
            self._lib.ucp_worker_progress(self.handle)
            for operation in self._operations:
                operation.turn(self)
        for rkey in list(self._rkeys):
            self.drop(rkey)
        closing = self._close_endpoint()
        for _ in range(_CALLS_AT_END):
            self._lib.ucp_worker_progress(self.handle)
            if closing and self._lib.ucp_request_check_status(closing) != ucp.Status.INPROGRESS:
                self._lib.ucp_request_free(closing)
                closing = 0
            for operation in self._operations:
                operation.turn(self)
            if not closing and all(operation.ended for operation in self._operations):
                break
        self._loop.remove_reader(self._fd)
        handle, self.handle = self.handle, 0
        self._lib.ucp_worker_destroy(handle)
        for operation in self._operations:
            operation.forget()
        self._operations.clear()
        self._callback = self._on_broken = None  # they refer back to here

    def _close_endpoint(self) -> int:
        endpoint, self.endpoint = self.endpoint, 0
        if not endpoint:
            return 0
        with contextlib.suppress(TransportError):
            result = self._lib.ucp_ep_close_nbx(endpoint, byref(ucp.force_close_param()))
            return ucp.request_of(result)
        return 0

    @property
    def library(self) -> Any:
        """For operations."""
        return self._lib
