"""What a node counts, as Prometheus text: under vLLM's names where it has one, else under ours.

Owns:   the histograms and counters of requests; the rest is read from its owner when asked.
Knows nothing of: HTTP routes, steps.
Units:  tokens, seconds, shares 0 .. 1.
Source: vLLM's names (vllm/v1/metrics/loggers.py, 0.32), so that its dashboards show this node too.

Usage, hit rate and preemptions are three things. Each token is counted once: of a prompt when its
sequence begins for the first time, as computed here or found in the cache; of an output when it is
told.
"""

import time
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvdist.node.job import Job
from kvdist.sched.output import Output
from kvdist.sched.scheduler import Scheduler
from kvdist.sched.sequence import SequenceStatus

_SECONDS: Final = (0.001, 0.005, *(0.01 * 2**power for power in range(14)))
_TOKENS: Final = tuple(float(1 << power) for power in range(0, 18, 2))

_REASONS: Final = {
    SequenceStatus.FINISHED_STOPPED: "stop",
    SequenceStatus.FINISHED_LENGTH: "length",
    SequenceStatus.FINISHED_ABORTED: "abort",
    SequenceStatus.FINISHED_ERROR: "error",
    SequenceStatus.FINISHED_PREFILLED: "length",
}


class Metrics:
    """Of one node; a registry of its own, since a process may have several."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._registry = CollectorRegistry()

        def histogram(name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
            found = Histogram(
                f"vllm:{name}", what, ["model_name"], registry=self._registry, buckets=buckets
            )
            return found.labels(model)

        self._first_token = histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", _SECONDS
        )
        self._next_token = histogram(
            "inter_token_latency_seconds", "From a token to the next.", _SECONDS
        )
        self._whole = histogram(
            "e2e_request_latency_seconds", "From arrival to the end of a sequence.", _SECONDS
        )
        self._output_sizes = histogram(
            "request_generation_tokens", "Tokens of a sequence's output.", _TOKENS
        )
        self._prompt_sizes = histogram(
            "request_prompt_tokens", "Tokens of a sequence's prompt.", _TOKENS
        )
        self._prompts = Counter(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens of sequences that began, by where their K/V came from.",
            ["model_name", "source"],
            registry=self._registry,
        )
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer"):
            self._prompts.labels(model, source)
        self._prompt = Counter(
            "vllm:prompt_tokens", "Prompt tokens.", ["model_name"], registry=self._registry
        ).labels(model)
        self._generated = Counter(
            "vllm:generation_tokens", "Output tokens.", ["model_name"], registry=self._registry
        ).labels(model)
        self._ended = Counter(
            "vllm:request_success",
            "Sequences that have ended.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        for reason in sorted(set(_REASONS.values())):
            self._ended.labels(model, reason)

    def watch(self, scheduler: Scheduler) -> None:
        """Its numbers are among those that `text` tells."""
        self._registry.register(_SchedulerNumbers(scheduler, self._model))

    def text(self) -> bytes:
        """All of it, in Prometheus' format."""
        return generate_latest(self._registry)

    # -- what happens --------------------------------------------------------------------------

    def admitted(self, num_prompt_tokens: int, num_cached_tokens: int, num_loaded: int) -> None:
        """A sequence began, for the first time; of its prompt so much was here, or came."""
        self._prompt.inc(num_prompt_tokens)
        self._prompts.labels(self._model, "local_cache_hit").inc(num_cached_tokens)
        self._prompts.labels(self._model, "external_kv_transfer").inc(num_loaded)
        self._prompts.labels(self._model, "local_compute").inc(
            num_prompt_tokens - num_cached_tokens - num_loaded
        )

    def aborted(self, num_sequences: int) -> None:
        """So many sequences ended since nobody waits for them."""
        self._ended.labels(self._model, "abort").inc(num_sequences)

    def heard(self, job: Job, index: int, output: Output) -> None:
        """News of a sequence of `job`."""
        now_s = time.monotonic()
        if output.token_ids:
            self._generated.inc(len(output.token_ids))
            last_s = job.last_token_s.get(index)
            if last_s is None:
                self._first_token.observe(now_s - job.arrived_s)
            else:
                self._next_token.observe((now_s - last_s) / len(output.token_ids))
            job.last_token_s[index] = now_s
        if output.status.finished:
            reason = "stop" if index in job.stopped else _REASONS[output.status]
            self._ended.labels(self._model, reason).inc()
            self._whole.observe(now_s - job.arrived_s)
            self._output_sizes.observe(output.num_output_tokens)
            self._prompt_sizes.observe(len(job.prompts[index // job.params.n]))


class _SchedulerNumbers(Collector):
    """Read when asked, so that no step pays for them."""

    def __init__(self, scheduler: Scheduler, model: str) -> None:
        self._scheduler = scheduler
        self._model = model

    def collect(self) -> Iterator[Metric]:
        """One family for each number."""
        roster, stats = self._scheduler.roster, self._scheduler.stats
        manager = self._scheduler.manager
        hits = manager.stats
        gauges = {
            "vllm:num_requests_running": ("Sequences that run.", len(roster.running)),
            "vllm:num_requests_waiting": ("Sequences that wait.", len(roster.waiting)),
            "vllm:kv_cache_usage_perc": ("Share of the blocks that are held.", manager.usage),
        }
        counters = {
            "vllm:prefix_cache_queries": ("Prompt tokens looked up.", hits.queries),
            "vllm:prefix_cache_hits": ("Prompt tokens found.", hits.hits),
            "vllm:num_preemptions": ("Sequences that gave way.", stats.num_preemptions),
            "kvdist:recomputed": ("Sequences computed anew.", stats.num_recomputed),
            "kvdist:failed_steps": ("Steps that failed.", stats.num_failed_steps),
            "kvdist:malformed_outputs": ("Answers to no question.", stats.num_malformed_outputs),
        }
        for name, (what, value) in gauges.items():
            gauge = GaugeMetricFamily(name, what, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge
        for name, (what, value) in counters.items():
            counter = CounterMetricFamily(name, what, labels=["model_name"])
            counter.add_metric([self._model], value)
            yield counter
