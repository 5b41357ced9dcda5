"""A node's role changes while it runs: what was accepted goes on, what is new goes elsewhere."""

import pytest

from kvdist.connector.messages import Hello, Role
from kvdist.connector.params import ByHash, Lend, write_params
from kvdist.errors import WrongRole
from kvdist.sched.sequence import SamplingParams
from kvdist.sim.clients import Way
from tests.town import Town, prompt

PREFILL, DECODE, BOTH = Role.PREFILL, Role.DECODE, Role.BOTH
WAYS: tuple[Way, ...] = ("ticket", "hash", "stream")


def change(town: Town, node: str, role: Role) -> None:
    town.cluster.change_role(town.node(node), role)


def has_left(town: Town, node: str, duty: Role) -> bool:
    return town.node(node).half.has_left(duty)


# -- from prefill ----------------------------------------------------------------------------------


def test_what_is_lent_is_served_to_its_end() -> None:
    """The lease that was out, and its pull, which begins only now; then the duty is over."""
    town = Town()
    name = town.come(answer_delay=2.0)
    town.until(town.leases)
    change(town, "p", DECODE)
    assert town.leases() and not has_left(town, "p", PREFILL)
    town.finish(name)
    assert town.num_external() == 16
    town.until(lambda: has_left(town, "p", PREFILL))
    assert not town.leases()
    town.rest()


@pytest.mark.parametrize("way", ["ticket", "stream"])
def test_a_prefill_under_way_gets_its_ticket(way: Way) -> None:
    """The old role's queue is drained: whoever was promised K/V has them."""
    town = Town()
    name = town.come(prompt(1, 40), way)
    town.until(lambda: town.p.scheduler.roster.sequences)
    change(town, "p", DECODE)
    town.finish(name)
    assert town.num_external() == 39
    town.until(lambda: has_left(town, "p", PREFILL))
    town.rest()


def test_new_prefills_are_refused_and_nothing_has_changed() -> None:
    town = Town()
    change(town, "p", DECODE)
    with pytest.raises(WrongRole, match=r"role is decode.*ask one whose role is prefill or both"):
        town.p.scheduler.add(
            "new", prompt(1), prefill_only=True, kv_transfer_params=write_params(Lend("t"))
        )
    assert town.p.scheduler.idle and not town.p.half.lender.transfers
    assert has_left(town, "p", PREFILL)
    town.rest()


@pytest.mark.parametrize("way", WAYS)
def test_whoever_asks_is_told_at_once(way: Way) -> None:
    """No question waits for its time to run out, though the word of the change got lost."""
    town = Town()
    town.finish(town.come(prompt(1)))
    town.gate.keep(Hello)
    change(town, "p", DECODE)
    town.gate.drop()
    assert town.d.half.role_of("p") is BOTH
    before = town.num_external()
    town.finish(town.come(prompt(2), way), within=0.5)
    assert town.num_external() == before
    town.rest()


# -- from decode -----------------------------------------------------------------------------------


def test_a_pull_under_way_ends_well() -> None:
    town = Town()
    name = town.come(prompt(1, 40))
    town.until(town.is_pulling)
    change(town, "d", PREFILL)
    assert not has_left(town, "d", DECODE)
    town.finish(name)
    assert town.num_external() == 39
    town.until(lambda: has_left(town, "d", DECODE))
    town.rest()


def test_new_requests_with_a_source_are_refused() -> None:
    town = Town()
    change(town, "d", PREFILL)
    with pytest.raises(WrongRole, match=r"role is prefill.*ask one whose role is decode or both"):
        town.d.scheduler.add(
            "new", prompt(1), SamplingParams(), kv_transfer_params=write_params(ByHash("p"))
        )
    assert town.d.scheduler.idle and not town.d.half.borrower.num_open
    town.rest()


def test_the_router_goes_elsewhere() -> None:
    town = Town(nodes=("p", "d", "e"))
    change(town, "p", PREFILL)
    change(town, "d", PREFILL)
    town.finish(*[town.come(way=way) for way in WAYS])
    assert not town.num_external("d") and town.num_external("e")
    town.rest()


# -- both ------------------------------------------------------------------------------------------


def test_peers_hear_of_it() -> None:
    town = Town()
    town.finish(town.come())
    change(town, "p", PREFILL)
    change(town, "d", DECODE)
    town.run(0.1)
    assert town.d.half.role_of("p") is PREFILL and town.p.half.role_of("d") is DECODE
    town.finish(town.come())
    town.rest()


def test_there_and_back() -> None:
    """The same two nodes, the other way round, and back, with work under way each time."""
    town = Town()
    for p, d in ((PREFILL, DECODE), (DECODE, PREFILL), (BOTH, BOTH), (PREFILL, DECODE)):
        change(town, "p", p)
        change(town, "d", d)
        owner, reader = ("p", "d") if p.lends else ("d", "p")
        before = town.num_external(reader)
        names = [town.come(way=way, prefill=owner, decode=reader) for way in ("ticket", "stream")]
        town.until(lambda name=names[0]: town.is_over(name))  # type: ignore[misc]
        town.finish(*names)
        assert town.num_external(reader) > before
    town.rest()


def test_a_later_run_has_the_role_that_it_was_given() -> None:
    town = Town()
    change(town, "p", DECODE)
    town.kill("p")
    town.until(lambda: town.p.is_alive)
    assert town.p.half.role is DECODE and has_left(town, "p", PREFILL)
    town.finish(town.come(), within=1.0)
    assert town.d.half.role_of("p") in (DECODE, None)
    town.rest()
