"""Clusters by seed whose nodes are unlike: blocks of other sizes, more ranks than heads, hits that
end inside a block, layers that read their own chunk.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from kvdist import check
from kvdist.cache import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec
from kvdist.sim.cluster import ClusterConfig
from kvdist.sim.faults import faults_of
from kvdist.sim.run import walk
from kvdist.sim.script import Walk
from tests.make import chunked, full, mamba, window

LONGEST = 32
Make = Callable[[Random], KVCacheConfig]


@pytest.fixture(autouse=True)
def _level_1() -> object:
    check.level = 1
    yield
    check.level = 2


def node(chance: Random, *specs: KVCacheSpec, **settings: bool | int) -> KVCacheConfig:
    """With room for one to three longest sequences."""
    longest = sum(-(-LONGEST // spec.block_size) for spec in specs)
    return KVCacheConfig(
        num_blocks=1 + longest * chance.choice((1, 2, 3)) + chance.randrange(4),
        kv_cache_groups=tuple(map(KVCacheGroupSpec, specs)),
        max_model_len=LONGEST,
        **settings,  # type: ignore[arg-type]
    )


def block_sizes(chance: Random) -> KVCacheConfig:
    return node(chance, full(chance.choice((2, 4, 8))), hash_block_size=2)


def hits_inside_blocks(chance: Random) -> KVCacheConfig:
    return node(chance, full(), window(9), hash_block_size=2, enable_partial_hits=True)


def chunks(chance: Random) -> KVCacheConfig:
    return node(chance, full(), chunked(8))


def states(chance: Random) -> KVCacheConfig:
    return node(chance, full(), mamba())


def unlike(like: ClusterConfig, seed: int, make: Make) -> ClusterConfig:
    """The same cluster of other nodes, with one, two or four ranks that share one or two heads."""
    chance = Random(seed)
    nodes = {name: make(chance) for name in like.nodes}
    ranks = {name: chance.choice((1, 2, 4)) for name in nodes}
    if make is states:  # they can't be cut
        ranks = dict.fromkeys(nodes, chance.choice((1, 2, 4)))
    return replace(like, nodes=nodes, ranks=ranks, num_heads=chance.choice((1, 2)), versions={})


@pytest.mark.parametrize("make", [block_sizes, hits_inside_blocks, chunks, states])
@pytest.mark.parametrize("kind", ["none", "all"])
def test_unlike_nodes(make: Make, kind: str) -> None:
    faults = faults_of([kind])
    for seed in range(6):
        steps = Walk(seed, 2 + seed % 2, faults)
        steps.config = unlike(steps.config, seed, make)
        report = walk(steps, seed, faults, 500)
        assert not report.failure, f"seed {seed}: {report.failure}"
        assert report.counts["sequences right"]
