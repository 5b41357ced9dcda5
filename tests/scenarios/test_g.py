"""G. Publication, load failure. What concerns events of others' indexes comes later (README)."""

import pytest

from kvdist.sched.budget import SchedulerConfig
from kvdist.sim.clients import Way
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


@pytest.mark.parametrize("seed", range(4))
def test_g3_of_several(seed: int) -> None:
    """Three share one pull, which fails: nobody computes where requests are to fail."""
    town = Town(seed=seed, on_failure="fail", max_rounds=1)
    name = town.come(n=3)
    town.until(town.is_pulling)
    town.links[0].cut_from_outside()
    town.until(lambda: town.is_over(name))
    (how,) = set(town.ended(name))
    assert how in ("right", "the link was lost", "the read failed")
    assert how == "right" or town.computed(name) == 0
    town.rest()


@pytest.mark.parametrize("way", ["ticket", "stream"])
def test_g3_without_a_pull(way: Way) -> None:
    """The owner dies before anything is pulled: that is a failure as any other."""
    town = Town(on_failure="fail", scheduler=SchedulerConfig(max_num_batched_tokens=4))
    name = town.come(way=way, answer_delay=5.0)
    town.until(town.leases if way == "ticket" else lambda: town.sequence_of(name) is not None)
    town.run(0.01 if way == "ticket" else 0.0)
    town.kill("p")
    town.until(lambda: town.is_over(name))
    assert "right" not in town.ended(name)
    assert town.computed(name) == 0
    town.rest()


def test_as_many_recompute_as_may() -> None:
    """P1: of two prompts whose owner has gone one is computed, for all that have it; the other
    fails.
    """
    town = Town(max_recompute_tokens=16)
    names = [town.come(prompt(i), n=2, answer_delay=5.0) for i in (1, 2)]
    town.until(lambda: town.leases() == 2)
    town.run(0.01)
    town.kill("p")
    town.until(lambda: town.is_over(*names))
    assert sorted(map(set, map(town.ended, names)), key=str)[-1] == {"right"}
    assert len([how for how in town.ended(*names) if how == "right"]) in (2, 4)
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
