"""Clusters in which some nodes speak the version before ours: all goes on, in fewer ways."""

from dataclasses import replace

import pytest

from kvdist import check
from kvdist.connector.messages import OLDEST_VERSION, VERSION
from kvdist.sim.faults import Faults, faults_of
from kvdist.sim.run import walk
from kvdist.sim.script import Walk


@pytest.fixture(autouse=True)
def _level_1() -> object:
    check.level = 1
    yield
    check.level = 2


def mixed(seed: int, faults: Faults, *, calm: bool = False) -> Walk:
    """The first node is of the version before; of the others every second one too."""
    steps = Walk(seed, 2 + seed % 2, faults, calm=calm)
    versions = {
        name: VERSION if index % 2 else OLDEST_VERSION
        for index, name in enumerate(steps.config.nodes)
    }
    steps.config = replace(steps.config, versions=versions)
    return steps


def test_nobody_hears_what_it_does_not_know() -> None:
    """No message is bad, and nothing but what is documented gets lost on the way."""
    dropped = 0
    for seed in range(12):
        report = walk(mixed(seed, Faults(), calm=True), seed, Faults(), 800)
        assert not report.failure, f"seed {seed}: {report.failure}"
        assert report.counts["sequences right"]
        assert not report.counts["sequences failed honestly"]
        assert not report.counts["bad messages"]
        assert not report.counts["messages of a later version than was agreed on"]
        nodes = report.script.config.nodes.values()
        if len({node.kv_cache_groups for node in nodes}) == 1:  # sizes can't be named in version 1
            assert not report.counts["peers refused"]
        dropped += report.counts["messages that an older peer doesn't know"]
    assert dropped, "nothing was tried: streams are asked for before hello"


@pytest.mark.parametrize("kind", ["post", "links", "deaths", "all"])
def test_whatever_fails(kind: str) -> None:
    faults = faults_of([kind])
    for seed in range(10):
        report = walk(mixed(seed, faults), seed, faults, 600)
        assert not report.failure, f"seed {seed}: {report.failure}"
        assert report.counts["sequences right"]
