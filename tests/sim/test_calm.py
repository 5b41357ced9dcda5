"""Where nothing is disturbed, everything comes at the first try, and nothing runs out."""

from kvdist import check
from kvdist.sim.run import calm_walk


def test_calm() -> None:
    check.level = 1
    for seed in range(20):
        report = calm_walk(seed, 2 + seed % 2, 800)
        assert not report.failure, f"seed {seed}: {report.failure}"
        assert report.counts["sequences right"]
    check.level = 2
