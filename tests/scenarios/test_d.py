"""D. Death, restart, stale peers."""

import pytest

from kvdist.connector.messages import Opened
from kvdist.sched.budget import SchedulerConfig
from tests.town import Town, prompt


def test_d1() -> None:
    """`d` dies and comes back at the same address, twenty times, under traffic."""
    town = Town()
    for i in range(20):
        lost = town.come(prompt(2 * i))
        town.run(0.02)
        town.kill("d")
        town.until(lambda: town.d.is_alive)
        assert town.is_over(lost), "its client heard of the end"
        town.finish(town.come(prompt(2 * i + 1)))
    assert town.cluster.clients.num_failed <= 20, "the one that was there"
    town.rest()


@pytest.mark.parametrize("one_sided", [False, True])
def test_d2(one_sided: bool) -> None:
    """`p` dies with transfers under way: `d` lives, and computes by itself."""
    town = Town(one_sided=one_sided)
    names = [town.come() for _ in range(6)]
    town.until(town.is_pulling)
    before = town.d
    town.kill("p")
    town.finish(*names)
    assert town.d is before
    town.rest()


def test_d5() -> None:
    """Many wait in `d`'s queue for much longer than a lease: none runs out."""
    one = SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=64)
    town = Town(
        scheduler=one, blocks={"p": 400, "d": 12}, lease_s=2.0, renewal_s=0.5, max_rounds=1,
        on_failure="fail",
    )  # fmt: skip
    names = [town.come(prompt(i, 20)) for i in range(40)]
    town.until(lambda: town.leases() == 40 or town.is_over(names[0]))
    town.faults(long_step=0.3)
    town.finish(*names, within=280.0)
    assert town.world.now > 20.0
    town.rest()


def test_d13() -> None:
    """The two can't reach each other for twenty seconds, then they can again."""
    town = Town()
    names = [town.come() for _ in range(4)]
    town.until(town.is_pulling)
    town.cluster.post.separate("p", "d", town.world.now + 20.0)
    names += [town.come(way="stream"), town.come(way="hash")]
    town.run(20.0)
    town.finish(*names, town.come())
    town.rest()
    assert not town.leases()


def test_d14() -> None:
    """`p` dies and comes back under its name: what was promised before means nothing."""
    town = Town()
    old = town.come(answer_delay=5.0)
    town.until(town.leases)
    town.run(0.01)
    town.kill("p")
    town.until(lambda: town.p.is_alive)
    new = town.come()
    town.finish(old, new)
    town.rest()


@pytest.mark.parametrize("one_sided", [False, True])
def test_d15(one_sided: bool) -> None:
    """A ticket of `p`'s first run arrives when the same blocks belong to somebody else."""
    town = Town(one_sided=one_sided, blocks={"p": 16, "d": 40})
    late = town.come(prompt(1), answer_delay=5.0)
    town.until(town.leases)
    town.run(0.01)
    town.kill("p")
    town.until(lambda: town.p.is_alive)
    others = [town.come(prompt(i, 40), "local", decode="p") for i in (7, 8, 9)]
    town.finish(*others)
    town.finish(late)
    served = [entry for entry in town.world.log if isinstance(entry.about, Opened)]
    assert not served, "not one byte of theirs left"
    town.rest()
