"""First contact in a cluster: E2, E5 and E8 between two nodes, upgrades one node at a time, and
hellos that are rubbish or get lost.
"""

import pytest

from kvdist.connector.messages import OLDEST_VERSION, Hello, Refused
from kvdist.connector.tables.contact import State
from kvdist.sim.clients import Way
from tests.make import full, mamba
from tests.town import Town, prompt

WAYS: tuple[Way, ...] = ("ticket", "hash", "stream")
V1 = OLDEST_VERSION


def state(town: Town, node: str, of: str) -> State | None:
    contact = town.node(node).half.contacts[of]
    return None if contact is None else contact.machine.state


def fields(town: Town, node: str, of: str) -> list[str]:
    contact = town.node(node).half.contacts[of]
    assert contact is not None
    return [found.field for found in contact.differences]


# -- nodes that can't work together ----------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_e8(way: Way) -> None:
    """Unlike weights: refused on first contact, and the field is named; no byte is moved."""
    town = Town(weights={"p": "others"})
    town.finish(town.come(way=way), within=5.0)
    assert state(town, "d", "p") is state(town, "p", "d") is State.REFUSED
    assert fields(town, "d", "p") == fields(town, "p", "d") == ["weights"]
    assert not town.is_serving() and not town.cluster.num_refused
    before = town.num_external()
    town.finish(town.come(way=way), within=1.0)
    assert town.num_external() == before, "and from then on nothing is even tried"
    town.rest()


def test_e2() -> None:
    """Hybrids whose block sizes came out differently: the groups are named."""
    town = Town(per_node={"p": (full(4), mamba(4)), "d": (full(8), mamba(8))})
    town.finish(town.come(), within=5.0)
    assert {"block_size of group 0", "block_size of group 1"} <= set(fields(town, "d", "p"))
    town.rest()


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_e5(policy: str) -> None:
    """Ranks that can't exchange are found before any transfer, and no client waits for one: it is
    computed, or, by policy, fails at once and hears why.
    """
    town = Town(full(), mamba(), ranks={"p": 1, "d": 2}, on_failure=policy, max_rounds=1)
    names = [town.come(way=way) for way in WAYS]
    town.until(lambda: town.is_over(*names), within=2.0)
    refused = {
        "the nodes differ in num_ranks (states can't be cut)", "the owner's blocks are unlike ours"
    }  # fmt: skip
    assert set(town.ended(*names)) <= ({"right"} if policy == "recompute" else refused | {"right"})
    assert fields(town, "p", "d") == ["num_ranks (states can't be cut)"]
    town.rest()


def test_the_refused_node_comes_back_with_our_weights() -> None:
    town = Town(weights={"p": "others"})
    town.finish(town.come())
    town.cluster.config.weights.clear()
    town.kill("p")
    town.until(lambda: town.p.is_alive)
    town.finish(town.come())
    assert town.num_external()
    town.rest()


# -- one node of the version before ----------------------------------------------------------------


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("old", ["p", "d", "pd"])
def test_tickets_and_hashes_go_on(old: str, one_sided: bool) -> None:
    town = Town(versions=dict.fromkeys(old, V1), one_sided=one_sided)
    town.finish(town.come(prompt(1)))
    assert town.num_external() == 16
    town.finish(town.come(prompt(2), "local", decode="p"))
    town.finish(town.come(prompt(2), "hash"))
    assert town.num_external() == 32
    town.rest()
    assert not town.cluster.num_bad + town.cluster.post.num_bad


@pytest.mark.parametrize("old", ["p", "d", "pd"])
def test_who_cannot_read_along_asks_by_hash(old: str) -> None:
    """And has what the older node holds by then; the rest it computes."""
    town = Town(versions=dict.fromkeys(old, V1))
    town.finish(town.come(prompt(1), "local", decode="p"))
    town.finish(town.come(prompt(1), "stream"))
    assert town.num_external() == 16
    town.finish(town.come(prompt(2), "stream"))
    town.rest()
    assert not town.cluster.num_bad + town.cluster.post.num_bad


def test_block_sizes_of_an_older_node_are_ours() -> None:
    """It can't name them to who reads by itself."""
    town = Town(per_node={"p": (full(4),), "d": (full(8),)}, cache={"hash_block_size": 4})
    town.finish(town.come())
    assert town.num_external() == 16
    town.rest()
    town = Town(
        per_node={"p": (full(4),), "d": (full(8),)},
        cache={"hash_block_size": 4},
        versions={"p": V1},
    )
    town.finish(town.come())
    assert fields(town, "d", "p") == ["block_size of group 0"]
    town.rest()


def test_an_upgrade_in_the_midst_of_it() -> None:
    town = Town(versions={"p": V1})
    town.finish(town.come(way="stream"))
    town.cluster.config.versions.clear()
    town.kill("p")
    town.until(lambda: town.p.is_alive)
    town.finish(town.come(prompt(1)))  # the new run is met
    before = town.num_external()
    town.finish(town.come(prompt(3, 40), "stream"))
    assert town.num_external() == before + 39
    town.rest()


# -- hellos that don't come through ----------------------------------------------------------------


def test_hello_is_lost_for_a_while() -> None:
    """It is said again, and what waited is said then."""
    town = Town()
    town.gate.keep(Hello)
    name = town.come()
    town.until(lambda: len(town.gate))
    town.run(0.5)
    assert not town.is_over(name) and not town.is_serving()
    town.gate.drop()
    town.finish(name)
    assert town.num_external() == 16
    town.rest()


def test_no_hello_ever_comes() -> None:
    """Who never hears one computes by itself, and nothing waits for ever."""
    town = Town(lease_s=8.0, renewal_s=1.0)
    town.gate.keep(Hello, Refused)
    names = [town.come(way=way) for way in WAYS]
    town.finish(*names, within=30.0)
    assert not town.is_serving()
    town.gate.drop()
    town.run(10.0)
    town.rest()


@pytest.mark.parametrize("who", ["p", "d"])
def test_either_restarts_while_hello_is_under_way(who: str) -> None:
    town = Town()
    town.gate.keep(Hello)
    town.come()
    town.until(lambda: len(town.gate))
    town.kill(who)
    town.until(lambda: town.p.is_alive and town.d.is_alive)
    town.gate.let_go()
    town.finish(town.come(prompt(5)), town.come(prompt(6), "hash"))
    town.rest()
