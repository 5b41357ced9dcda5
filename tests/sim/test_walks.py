"""Clusters by seed: whatever fails, every token is right, and nothing is left."""

import pytest

from kvdist import check
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
