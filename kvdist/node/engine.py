"""The loop around `step`: it wakes, it drains, it ends.

Owns:   the tasks of the loop, and whether new work is taken.
Knows nothing of: HTTP, text, what a worker is.

    taking work --drain--> draining --idle--> ended
         +--------WorkerLost---+------------> lost: all hear it, and nothing is taken any more
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import structlog

from kvdist import check
from kvdist.connector.messages import Ticket
from kvdist.errors import Unavailable, WorkerLost
from kvdist.node.admissions import Admissions
from kvdist.node.compute import Compute
from kvdist.node.exchange import Exchange
from kvdist.node.inbox import Inbox
from kvdist.node.job import Job, News
from kvdist.node.metrics import Metrics
from kvdist.node.outbox import Outbox
from kvdist.node.roles import Worker
from kvdist.node.step import step
from kvdist.sched.scheduler import Scheduler

_log = structlog.get_logger(__name__)


class Engine:
    """One scheduler and one worker."""

    compute: Compute

    def __init__(
        self,
        scheduler: Scheduler,
        admissions: Admissions,
        worker: Worker,
        metrics: Metrics,
        max_queued: int,
        exchange: Exchange | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.exchange = exchange
        self.metrics = metrics
        self.outbox = Outbox(metrics)
        self.inbox = Inbox(self.outbox, max_queued)
        self._worker = worker
        self._is_running = False
        self._is_draining = False
        #: Why nothing is taken any more.
        self.lost: WorkerLost | None = None
        admissions.on_admitted = self._note_cached
        if exchange is not None:
            exchange.attach(scheduler, self.outbox, self._wake)

    # -- for those who ask ---------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """New work is taken."""
        if self.exchange is not None and not self.exchange.is_ready:
            return False
        return self._is_running and not self._is_draining and self.lost is None

    async def generate(self, job: Job) -> AsyncGenerator[News]:
        """The news of `job`, which ends with this iterator, however that ends.

        Raises: Unavailable; InvalidRequest; GenerationFailed.
        """
        if not self.ready:
            raise Unavailable(self._why_not())
        self.inbox.put(job, len(self.scheduler.roster.waiting))
        self.compute.wake()
        has_ended = False
        try:
            async with aclosing(job.news()) as news:
                async for item in news:
                    yield item
            has_ended = True
        finally:
            if not has_ended:
                self._give_up(job)

    async def ticket(self, job: Job) -> Ticket | None:
        """What the K/V of a prefill that has ended can be had for; None: there is nothing to fetch.

        Raises: Unavailable.
        """
        try:
            return await job.ticket()
        except BaseException:
            self._forget(job)
            raise

    def give_back(self, ticket: Ticket) -> None:
        """Nobody will come for it."""
        if self.exchange is not None:
            self.exchange.give_back(ticket)

    def stop(self, job: Job, index: int) -> None:
        """Sequence `index` of the job has met a stop string; its end is the last of its news."""
        job.stopped.add(index)
        self.scheduler.abort(job.request_ids[index], "a stop string")
        self.outbox.tell(self.scheduler.take_outputs())
        self.compute.wake()

    def _give_up(self, job: Job) -> None:
        job.given_up = True
        num_aborted = sum(
            self.scheduler.abort(request_id, "the client is gone") for request_id in job.request_ids
        )
        self._forget(job)
        if num_aborted:
            self.metrics.aborted(num_aborted)
            self.compute.wake()

    def _forget(self, job: Job) -> None:
        self.outbox.forget(job)
        for ticket in job.untold():
            self.give_back(ticket)

    def _why_not(self) -> str:
        if self.lost is not None:
            return f"the worker is gone: {self.lost}"
        return "the node is draining" if self._is_draining else "the node has not begun yet"

    def _note_cached(self, request_id: str, num_tokens: int, num_loaded: int) -> None:
        if found := self.outbox.find(request_id):
            job, index = found
            prompt, is_first = index // job.params.n, not index % job.params.n
            self.metrics.admitted(len(job.prompts[prompt]), num_tokens, num_loaded)
            if is_first:  # the others find what it has computed, which is no gain of the client's
                job.num_cached_tokens[prompt] = num_tokens
                job.num_remote_tokens[prompt] = num_loaded

    # -- the loop ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it has drained, or the worker is lost; cancelling ends it at once."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self.compute = Compute(self._worker, tasks)
                self._is_running = True
                beside = [tasks.create_task(self.compute.watch(), name="worker's watch")]
                if self.exchange is not None:
                    beside.append(tasks.create_task(self._exchange(self.exchange), name="links"))
                await self._beat()
                for task in beside:
                    task.cancel()
                self.compute.give_up()
        finally:
            self._is_running = False
            self._fail_all(Unavailable("the node has ended"))

    async def _exchange(self, exchange: Exchange) -> None:
        try:
            await exchange.run()
        except WorkerLost as lost:
            self.compute.lose(lost)

    def drain(self) -> None:
        """Nothing new is taken; `run` ends when all that was taken has been answered."""
        self._is_draining = True
        if self.exchange is not None:
            self.exchange.drain()
        self._wake()

    def _wake(self) -> None:
        if self._is_running:
            self.compute.wake()

    async def _beat(self) -> None:
        try:
            while not (self._is_draining and self.idle):
                await step(self)
                self._check()
        except WorkerLost as lost:
            _log.error("worker lost", reason=str(lost))
            self.lost = lost
            self._fail_all(Unavailable(self._why_not()))

    @property
    def idle(self) -> bool:
        """Nothing is to be done, and nothing is lent."""
        lends = self.exchange is not None and not self.exchange.is_idle
        return self.scheduler.idle and not self.inbox and not lends

    def _check(self) -> None:
        """Levels 1 and 2: audit everything whenever there is nothing to do."""
        if check.level and self.idle:
            self.scheduler.manager.check()

    def _fail_all(self, error: Unavailable) -> None:
        self.inbox.fail_all(error)
        self.outbox.fail_all(error)
