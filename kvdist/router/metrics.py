"""What a router counts, as Prometheus text.

Owns:   the counters of requests; of the nodes it is read when asked.
Knows nothing of: HTTP routes.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Literal, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvdist.router.nodes import Node
from kvdist.router.usage import Found, Sources

_SECONDS: Final = (0.001, 0.005, *(0.01 * 2**power for power in range(14)))

#: How a request is answered.
Way: TypeAlias = Literal[
    "overlap", "ticket", "short", "several prompts", "no prefill", "prefill failed", "both", "asked"
]
_WAYS: Final[tuple[Way, ...]] = (
    *("overlap", "ticket", "short", "several prompts", "no prefill", "prefill failed"),
    *("both", "asked"),
)


class Metrics:
    """A registry of its own, since a process may have several."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._registry = CollectorRegistry()
        self._answered = self._counter("requests", "Requests, by status.", "status")
        self._ways = self._counter(
            "tries", "Times that nodes were asked, by way: how, or why without prefill.", "way"
        )
        for way in _WAYS:
            self._ways.labels(way)
        self._failed = self._counter(
            "node_failures", "Nodes that didn't answer.", "node", "role", "reason"
        )
        self._released = self._counter("releases", "Leases given back, since nobody came for them.")
        self._prompt = self._counter(
            "prompt_tokens_by_source", "Prompt tokens, by where their K/V came from.", "source"
        )
        self._prefilled = self._counter(
            "prefill_tokens_by_source",
            "Tokens of prompts at prefill nodes, by where their K/V came from.",
            "source",
        )
        self._first = Histogram(
            "kvdist:router_time_to_first_byte_seconds",
            "From a request to the first byte of its answer.",
            registry=self._registry,
            buckets=_SECONDS,
        )
        self._registry.register(_NodeNumbers(nodes))

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"kvdist:router_{name}", what, labels, registry=self._registry)

    def text(self) -> bytes:
        """All of it, in Prometheus' format."""
        return generate_latest(self._registry)

    # -- what happens --------------------------------------------------------------------------

    def answered(self, status: int) -> None:
        """A request has got an answer; 499: the client was gone."""
        self._answered.labels(status).inc()

    def tried(self, way: Way) -> None:
        """Nodes are asked in this way."""
        self._ways.labels(way).inc()

    def failed(self, node: Node, role: str, *, is_busy: bool) -> None:
        """A node that was asked in this role didn't answer."""
        self._failed.labels(node.name, role, "busy" if is_busy else "lost").inc()

    def released(self) -> None:
        """A lease is given back."""
        self._released.inc()

    def first_byte(self, seconds: float) -> None:
        """The client has its first byte."""
        self._first.observe(seconds)

    def prompt(self, sources: Sources) -> None:
        """A prompt has been answered."""
        for source, num_tokens in (
            ("local_cache_hit", sources.cached),
            ("remote_cache_hit", sources.remote_cached),
            ("remote_compute", sources.remote_computed),
            ("local_compute", sources.computed),
        ):
            self._prompt.labels(source).inc(num_tokens)

    def prefilled(self, found: Found) -> None:
        """A prefill node is done with a prompt, whose last token isn't its to compute."""
        computed = found.num_tokens - 1 - found.cached - found.remote
        for source, num_tokens in (
            ("local_cache_hit", found.cached),
            ("from_other_nodes", found.remote),
            ("local_compute", max(0, computed)),
        ):
            self._prefilled.labels(source).inc(num_tokens)


class _NodeNumbers(Collector):
    """Read when asked."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = nodes

    def collect(self) -> Iterator[Metric]:
        """One family for each number."""
        labels = ["node", "role"]
        asking = GaugeMetricFamily(
            "kvdist:router_node_requests", "Requests at a node.", labels=labels
        )
        ready = GaugeMetricFamily(
            "kvdist:router_node_ready", "1: it takes new work.", labels=labels
        )
        for node in self._nodes:
            asking.add_metric([node.name, node.role], node.num_requests)
            ready.add_metric([node.name, node.role], node.ready)
        yield asking
        yield ready
