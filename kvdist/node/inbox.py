"""Chapter 1, "arrive": jobs that wait for the next beat, and how many may.

Owns:   the jobs that the scheduler doesn't know yet.
Knows nothing of: HTTP, steps.
"""

from itertools import zip_longest

from kvdist.errors import InvalidRequest, Unavailable
from kvdist.node.job import Job
from kvdist.node.outbox import Outbox
from kvdist.sched.scheduler import Scheduler


class Inbox:
    """In the order of arrival."""

    def __init__(self, outbox: Outbox, max_queued: int) -> None:
        self._outbox = outbox
        self._max_queued = max_queued
        self._jobs: list[Job] = []

    def put(self, job: Job, num_waiting: int) -> None:
        """It is admitted with the next beat. Raises: Unavailable if too many wait already."""
        queued = num_waiting + sum(waiting.num_choices for waiting in self._jobs)
        if queued + job.num_choices > self._max_queued:
            raise Unavailable(f"{queued} sequences wait already, at most {self._max_queued} may")
        self._jobs.append(job)

    def admit(self, scheduler: Scheduler) -> None:
        """The scheduler has all of them; one that it refuses hears why."""
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            if job.given_up and not job.reads_elsewhere:
                continue
            try:
                self._add(job, scheduler)
            except (InvalidRequest, Unavailable) as refused:
                self._take_back(job, scheduler)  # a prompt before the bad one
                job.fail(refused)
            else:
                if job.given_up:  # what was lent for it goes back at once
                    self._take_back(job, scheduler)

    def _take_back(self, job: Job, scheduler: Scheduler) -> None:
        for request_id in job.request_ids:
            scheduler.abort(request_id)
        self._outbox.forget(job)

    def _add(self, job: Job, scheduler: Scheduler) -> None:
        for prompt, audio in zip_longest(job.prompts, job.audio):
            sequences = scheduler.add(
                job.name,
                prompt,
                job.params,
                priority=job.priority,
                prefill_only=job.is_prefill,
                hold_whole_prompt=job.is_streamed,
                extra_keys=job.extra_keys,
                audio=audio,
                kv_transfer_params=job.kv_transfer_params,
            )
            self._outbox.expect(job, [sequence.request_id for sequence in sequences])

    def fail_all(self, error: Unavailable) -> None:
        """Whoever waits here hears this."""
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            job.fail(error)

    def __len__(self) -> int:
        return len(self._jobs)
