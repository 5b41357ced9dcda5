"""A. Lost releases and leaks."""

from dataclasses import replace

import pytest

from kvdist.connector.messages import Hello, Stream
from kvdist.ids import Incarnation
from tests.town import Town, prompt


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_a3(policy: str) -> None:
    """Bytes that never come and never fail: the wait ends, and the client hears how."""
    town = Town(stall_s=4.0, on_failure=policy, max_rounds=1)
    town.faults(stuck=1.0)
    name = town.come()
    town.until(lambda: town.is_over(name), within=30.0)
    (how,) = town.ended(name)  # either side may be the first to see that nothing moves
    assert how in ({"right"} if policy == "recompute" else {"no progress", "the read failed"})
    town.rest()


def test_a4() -> None:
    """The same prompt again: nothing moves, and `p` has its blocks back at once."""
    town = Town()
    town.finish(town.come(prompt(1)))
    moved = town.num_external()
    town.finish(town.come(prompt(1)))
    assert town.num_external() == moved == 16
    town.until(lambda: not town.leases(), within=0.1)
    town.rest()


def test_a7() -> None:
    """Three children of one prompt: loaded once, and no lease has to run out."""
    town = Town()
    name = town.come(n=3)
    town.finish(name)
    assert town.ended(name) == ["right"] * 3
    assert town.num_external() == 16
    town.until(lambda: not town.leases(), within=0.1)
    town.rest()


def test_a8() -> None:
    """A lease that is renewed for ever, and one behind it that has run out."""
    town = Town(lease_s=2.0, renewal_s=0.3, blocks={"p": 40, "d": 12})
    busy = town.come(prompt(1, 10), "local", new=30)
    town.until(lambda: town.d.scheduler.roster.running)
    town.faults(long_step=1.0)
    waiting = town.come(prompt(2, 40))
    town.until(town.leases)
    town.come(prompt(3), answer_delay=300.0)
    town.until(lambda: town.leases() == 2)
    town.run(12.0)
    assert town.leases() == 1, "the forgotten one is over, the other isn't"
    town.finish(busy, waiting, within=300.0)
    town.rest()


def test_a9() -> None:
    """Twenty repeats at a warm cache: what is in use doesn't grow."""
    town = Town()
    for _ in range(20):
        town.finish(town.come(prompt(1)))
        town.until(lambda: not town.leases(), within=1.0)
        assert town.d.manager.ledger().free == town.p.manager.ledger().free == 40
    town.rest()


@pytest.mark.parametrize("seed", range(4))
def test_a10(seed: int) -> None:
    """Two ask for one content at once, and the first goes away: one copy, freed in the end."""
    town = Town(seed=seed)
    town.finish(town.come(prompt(1), "local", decode="p"))
    first, second = town.come(prompt(1), "hash"), town.come(prompt(1), "hash")
    town.until(lambda: len(town.d.half.borrower._by_lease) == 2)
    assert town.num_external() == 16
    town.abort(first)
    town.finish(second)
    assert town.num_external() == 16
    town.rest()


def test_a11() -> None:
    """A node that only reads, a hundred times: nothing stays held."""
    town = Town()
    for i in range(100):
        town.finish(town.come(prompt(i % 30), new=1))
    town.run(1.0)
    assert town.d.manager.ledger().free == 40
    assert town.d.half.borrower.num_open == 0
    town.rest()


def test_a12() -> None:
    """Every message comes twice: releases end their own lease, once, and are counted."""
    town = Town()
    town.faults(duplicate=1.0)
    town.finish(*[town.come() for _ in range(6)])
    town.run(1.0)
    assert town.p.half.counts["release of an unknown lease"]
    assert not town.leases()
    town.rest()


@pytest.mark.parametrize(("owners", "readers"), [(4, 1), (4, 2), (1, 4), (2, 4)])
def test_a15(owners: int, readers: int) -> None:
    """Ranks whose heads others have as well own nothing of a pull, and nobody waits for them."""
    town = Town(heads=2, ranks={"p": owners, "d": readers})
    town.finish(*[town.come() for _ in range(4)])
    town.rest()


def test_a16() -> None:
    """Ten thousand questions about nothing: a bounded table, and everybody else is served."""
    town = Town()
    hello = Hello("", Incarnation(1), town.p.fingerprint)

    def flood() -> None:
        for i in range(50):
            town.p.half.node_seen(f"stranger {i}", Incarnation(1))
            town.p.half.from_node(f"stranger {i}", replace(hello, node=f"stranger {i}"))
        for i in range(10_000):
            town.p.half.from_node(f"stranger {i % 50}", Stream(f"nothing {i}"))

    town.p.do(flood)
    assert len(town.p.half.lender.transfers) == 256
    town.finish(town.come(), town.come(way="stream"))
    town.run(5.0)
    assert len(town.p.half.lender.transfers) == 0
    town.rest()


def test_a17() -> None:
    """The client goes away between `p`'s answer and `d`: the lease ends at its short bound."""
    town = Town(lease_s=5.0, renewal_s=1.0)
    name = town.come(answer_delay=1.0)
    town.until(town.leases)
    town.run(0.1)
    town.abort(name)
    town.run(4.0)
    assert town.leases()
    town.run(1.0)
    assert not town.leases()
    town.rest()


def test_a18() -> None:
    """Reading along at a warm cache: nothing is left to move, and it is released at once."""
    town = Town()
    town.finish(town.come(prompt(1), "stream"))
    town.finish(town.come(prompt(1), "stream"))
    town.until(lambda: not town.leases(), within=1.0)
    town.rest()


@pytest.mark.parametrize("seed", range(6))
def test_a18_given_up_while_queued(seed: int) -> None:
    town = Town(seed=seed, blocks={"p": 40, "d": 12})
    town.come(prompt(1, 10), "local", new=30)
    town.until(lambda: town.d.scheduler.roster.running)
    queued = town.come(prompt(2, 40), "stream")
    town.run(0.2)
    town.abort(queued)
    town.until(lambda: not town.leases(), within=2.0)
    town.rest()
