"""Clusters by seed: whatever fails, every token is right, and nothing is left."""

from random import Random

import pytest

from kvdist import check
from kvdist.sim.draw import make_config
from kvdist.sim.faults import KINDS, faults_of
from kvdist.sim.run import walk
from kvdist.sim.script import Walk


@pytest.fixture
def _level_1() -> object:
    check.level = 1
    yield
    check.level = 2


@pytest.mark.parametrize("kind", [*KINDS, "all"])
@pytest.mark.parametrize("num_nodes", [2, 3])
def test_after_every_change(kind: str, num_nodes: int) -> None:
    faults = faults_of([kind])
    for seed in range(6):
        report = walk(Walk(seed, num_nodes, faults), seed, faults, 400)
        assert not report.failure, f"seed {seed}: {report.failure}"
        assert report.counts["sequences right"]


@pytest.mark.usefixtures("_level_1")
def test_longer() -> None:
    faults = faults_of(["all"])
    for seed in range(100, 130):
        report = walk(Walk(seed, 2 + seed % 2, faults), seed, faults, 1200)
        assert not report.failure, f"seed {seed}: {report.failure}"


def test_clusters_are_of_many_kinds() -> None:
    """What tests/sim/test_unlike_nodes.py makes by hand is among what seeds draw."""
    seen = set()
    for seed in range(200):
        config = make_config(Random(seed), 2, calm=seed % 2 == 0)
        nodes = list(config.nodes.values())
        groups = nodes[0].kv_cache_groups
        seen |= {type(group.kv_cache_spec).__name__ for group in groups}
        if len({node.kv_cache_groups[0].kv_cache_spec.block_size for node in nodes}) > 1:
            seen.add("block sizes")
        if len(set(config.ranks.values())) > 1:
            seen.add("ranks")
        if max(config.ranks.values()) > config.num_heads:
            seen.add("more ranks than heads")
        if nodes[0].enable_partial_hits:
            seen.add("partial hits")
    assert seen >= {
        "block sizes", "ranks", "more ranks than heads", "partial hits", "FullAttentionSpec",
        "SlidingWindowSpec", "MambaSpec", "ChunkedLocalAttentionSpec",
    }  # fmt: skip
