"""Chapter 8, "tell": which job hears of which sequence.

Owns:   the jobs that the scheduler works for.
Knows nothing of: HTTP, text, steps.
"""

from collections.abc import Iterable

from kvdist.connector.messages import Ticket
from kvdist.errors import KvdistError
from kvdist.ids import RequestId
from kvdist.node.job import Job, News
from kvdist.node.metrics import Metrics
from kvdist.sched.output import Output


class Outbox:
    """By the id of each sequence that has not ended."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._jobs: dict[RequestId, tuple[Job, int]] = {}
        #: Prefills for others, until their tickets are there.
        self._prefills: dict[RequestId, Job] = {}

    def expect(self, job: Job, request_ids: Iterable[RequestId]) -> None:
        """News of these sequences are the job's, which has them in this order."""
        for request_id in request_ids:
            self._jobs[request_id] = job, len(job.request_ids)
            job.request_ids.append(request_id)
            if job.is_prefill:
                self._prefills[request_id] = job

    def find(self, request_id: RequestId) -> tuple[Job, int] | None:
        """Whose sequence it is, and its place there."""
        return self._jobs.get(request_id)

    def tell(self, outputs: Iterable[Output]) -> None:
        """Each job has its news."""
        for output in outputs:
            found = self._jobs.get(output.request_id)
            if found is None:
                continue  # nobody waits for it any more
            job, index = found
            if output.status.finished:
                del self._jobs[output.request_id]
            self._metrics.heard(job, index, output)
            job.tell(News(index, output))

    def ticket(self, request_id: RequestId, ticket: Ticket | None) -> bool:
        """What a prefill's K/V can be had for; False: nobody waits for it any more."""
        job = self._prefills.pop(request_id, None)
        if job is None:
            return False
        job.give(ticket)
        return True

    def forget(self, job: Job) -> None:
        """Nobody waits for this job."""
        for request_id in job.request_ids:
            self._jobs.pop(request_id, None)
            self._prefills.pop(request_id, None)

    def fail_all(self, error: KvdistError) -> None:
        """All jobs hear this, and nothing more."""
        jobs = {job: None for job, _ in self._jobs.values()} | dict.fromkeys(
            self._prefills.values()
        )
        self._jobs.clear()
        self._prefills.clear()
        for job in jobs:
            job.fail(error)

    def __len__(self) -> int:
        return len(self._jobs)
