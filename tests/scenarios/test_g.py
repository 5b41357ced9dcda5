"""G. Publication, load failure. What concerns events of others' indexes comes later (README)."""

import pytest

from tests.make import full, mamba
from tests.town import Town, prompt


@pytest.mark.parametrize("seed", range(4))
def test_g1(seed: int) -> None:
    """Three share a block that fails: it is computed once, and nothing stale is found."""
    town = Town(seed=seed, max_rounds=1)
    name = town.come(n=3)
    town.until(town.is_pulling)
    town.links[0].cut_from_outside()
    town.finish(name)
    town.finish(town.come(prompt(1), "local"))
    town.rest()


@pytest.mark.parametrize("seed", range(4))
def test_g2(seed: int) -> None:
    """Four loads, two of one prompt, all rejected: as if there were nobody to load from."""
    town = Town(seed=seed, max_rounds=1)
    names = [town.come(prompt(i)) for i in (1, 2, 1, 3)]
    town.until(town.is_pulling)
    for link in town.links:
        link.cut_from_outside()
    town.finish(*names)
    town.rest()


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_g3(policy: str) -> None:
    """A load fails on a model of several groups: one request hears of it, the node lives."""
    town = Town(full(), mamba(), blocks=100, on_failure=policy, max_rounds=1)
    failing = town.come()
    town.until(town.is_pulling)
    town.links[0].cut_from_outside()
    town.until(lambda: town.is_over(failing))
    assert town.ended(failing)[0] in ("right", "the link was lost", "the read failed")
    assert (town.ended(failing) == ["right"]) == (policy == "recompute")
    town.finish(town.come(), town.come())
    town.rest()


def test_g4() -> None:
    """One of eight reads fails: that request hears so, and goes on with nothing of it."""
    town = Town(one_sided=True, blocks=100, on_failure="fail", max_rounds=1)
    names = [town.come() for _ in range(8)]
    town.until(town.is_pulling)
    (part, (landing, _)), *_ = town.d.workers[0]._landings.items()
    landing.force()
    town.until(lambda: town.is_over(*names))
    assert sorted(town.ended(*names)) == ["right"] * 7 + ["the read failed"], part
    town.rest()
