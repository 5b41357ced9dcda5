"""B. Memory reused while a transfer is live."""

import pytest

from tests.town import Town, prompt


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_b1(seed: int, one_sided: bool) -> None:
    """`d` gives up a load, the writer goes on: nobody gets the blocks before it is quiet."""
    town = Town(seed=seed, one_sided=one_sided, blocks={"p": 40, "d": 12})
    town.faults(write_on=1.0)
    first = town.come(prompt(1, 40))
    town.until(town.is_pulling)
    town.abort(first)
    town.until(lambda: not town.d.manager.ledger().pull)
    assert town.d.manager.ledger().quarantine == 10
    town.finish(town.come(prompt(2, 20), "local"))
    town.rest()


@pytest.mark.parametrize("one_sided", [False, True])
def test_b2(one_sided: bool) -> None:
    """A lease of a second, a reader that stands still for three, an owner that needs the blocks."""
    town = Town(
        one_sided=one_sided, blocks={"p": 16, "d": 40}, lease_s=1.0, renewal_s=0.2, life_s=1.0
    )
    late = town.come(prompt(1, 17))
    town.until(town.leases)
    town.d.pause(3.0)
    town.run(1.5)
    assert not town.leases()
    town.finish(*[town.come(prompt(i, 40), "local", decode="p") for i in (7, 8, 9)])
    town.finish(late)
    town.rest()


def test_b3() -> None:
    """A ticket that comes when its lease has long run out is refused by the owner, not by guess."""
    town = Town(lease_s=5.0, renewal_s=1.0, blocks={"p": 16, "d": 40})
    late = town.come(prompt(1), answer_delay=3600.0)
    town.until(town.leases)
    town.finish(*[town.come(prompt(i, 40), "local", decode="p") for i in (7, 8, 9)])
    town.run(3600.0)
    town.finish(late)
    assert "the owner says gone" in str([entry.about for entry in town.world.log])
    town.rest()


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_b11(seed: int, one_sided: bool) -> None:
    """A transfer fails half way; the same prompt and others afterwards are right."""
    town = Town(seed=seed, one_sided=one_sided)
    failing = town.come(prompt(1, 40))
    town.until(town.is_pulling)
    town.links[0].cut_from_outside()
    others = [town.come(prompt(i, 40)) for i in (1, 2, 1)]
    town.finish(failing, *others)
    town.rest()


@pytest.mark.parametrize("seed", range(6))
def test_b13(seed: int) -> None:
    """Of two source ranks one fails fast, and the other's bytes land later."""
    town = Town(seed=seed, ranks={"p": 2, "d": 1}, blocks={"p": 40, "d": 12})
    town.faults(write_on=1.0)
    failing = town.come(prompt(1, 40))
    town.until(lambda: len(town.links) == 2 and town.is_pulling())
    town.links[0].cut(town.d.workers[0])
    town.until(lambda: not town.d.manager.ledger().pull)
    assert town.d.manager.ledger().quarantine == 10, "some of it is still landing"
    town.finish(failing, town.come(prompt(2, 20), "local"))
    town.rest()
