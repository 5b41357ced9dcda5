"""The node's end of the socket: a worker process that is started, fed and watched.

Owns:   the process, the socket, the steps whose results have not come.
Knows nothing of: what a plan says; what the process does with it.

The socket is one of a pair, and the process inherits the other: there is no name that somebody else
could connect to, and whoever dies closes it, which the other sees at once.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence as Listing

from kvdist.errors import FormatError, StepFailed, WorkerLost
from kvdist.node.worker_wire import (
    HEAD,
    Broken,
    Capacity,
    Done,
    Failed,
    FromWorker,
    Loading,
    Ready,
    frame,
    read_answer,
    read_head,
)
from kvdist.sched.plan import StepPlan, StepResult

#: How long a worker may need to end by itself.
_ENDS_S = 5.0


class WorkerProcess:
    """See `start`."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader, self._writer = reader, writer
        #: In the order of the plans, which is that of the answers.
        self._waiting: deque[tuple[int, asyncio.Future[StepResult]]] = deque()
        self._lost: WorkerLost | None = None

    @classmethod
    async def start(cls, command: Listing[str], more_fds: Listing[int] = ()) -> "WorkerProcess":
        """A process that has the socket as the descriptor that its last argument names.

        It has `more_fds`, too, under the same numbers.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        process = None
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *command, str(theirs.fileno()), pass_fds=[theirs.fileno(), *more_fds]
                )
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            if process is not None:
                process.kill()
                await process.wait()
            raise
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def ready(self, progress: Callable[[str, float], None]) -> Capacity:
        """It has loaded its model. Raises: WorkerLost, with the worker's own words."""
        while True:
            match await self._read():
                case Loading(what, share):
                    progress(what, share)
                case Ready() as ready:
                    return Capacity.read(ready)
                case Broken(reason):
                    raise WorkerLost(reason)
                case Done() | Failed():
                    raise WorkerLost("it answers what it was not asked")

    async def execute(self, plan: StepPlan) -> StepResult:
        """See `Worker.execute`."""
        if self._lost is not None:
            raise self._lost
        answer: asyncio.Future[StepResult] = asyncio.get_running_loop().create_future()
        self._waiting.append((plan.step, answer))
        self._writer.write(frame(plan))
        return await answer

    async def watch(self) -> None:
        """Take its answers, until it is lost. Raises: WorkerLost."""
        try:
            while True:
                self._take(await self._read())
        except WorkerLost as lost:
            self._lose(lost)
            raise

    async def close(self) -> None:
        """See `Worker.close`. It has some time to end by itself."""
        self._lose(WorkerLost("it is closed"))
        self._writer.close()
        try:
            async with asyncio.timeout(_ENDS_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
        finally:
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
            self._writer.transport.abort()

    def _take(self, answer: FromWorker) -> None:
        if not self._waiting:
            raise WorkerLost("it answers what it was not asked")
        step, future = self._waiting.popleft()
        match answer:
            case Done(result) if result.step == step:
                _set(future, result)
            case Failed(number, reason) if number == step:
                _set(future, StepFailed(reason))
            case _:
                _set(future, StepFailed("its answer is to another question"))
                raise WorkerLost(f"it doesn't answer step {step}")

    async def _read(self) -> FromWorker:
        """Its next words. Raises: WorkerLost."""
        try:
            head = await self._reader.readexactly(HEAD.size)
            return read_answer(await self._reader.readexactly(read_head(head)))
        except (asyncio.IncompleteReadError, ConnectionError):
            raise WorkerLost(f"process {self.pid} {await self._how_it_ended()}") from None
        except FormatError as error:
            raise WorkerLost(f"process {self.pid}: {error}") from error

    async def _how_it_ended(self) -> str:
        try:
            async with asyncio.timeout(1):  # it has closed its socket, and is on its way out
                code = await self._process.wait()
        except TimeoutError:
            return "closed its socket"
        return f"ended by signal {-code}" if code < 0 else f"ended with status {code}"

    def _lose(self, lost: WorkerLost) -> None:
        self._lost = self._lost or lost
        while self._waiting:
            _set(self._waiting.popleft()[1], lost)


def _set(future: asyncio.Future[StepResult], outcome: StepResult | Exception) -> None:
    if future.done():
        return  # whoever waited was cancelled
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
