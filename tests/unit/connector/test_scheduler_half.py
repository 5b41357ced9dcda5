"""The half in a node process: who gets which message, and what a request's parameters may ask."""

import pytest

from kvdist.connector.local import FromWorker
from kvdist.connector.messages import Hello, Refusal, Refused, Role
from kvdist.connector.params import Lend, write_params
from kvdist.errors import InvalidRequest
from kvdist.ids import Incarnation, Rank
from kvdist.sched.sequence import SamplingParams
from tests.town import Town, prompt

LEND = write_params(Lend("t"))


def test_only_prefills_are_lent() -> None:
    """Who samples as well would never have a ticket; nothing has changed then."""
    town = Town()
    with pytest.raises(InvalidRequest, match="do_remote_decode"):
        town.p.scheduler.add(
            "both", prompt(1), SamplingParams(max_new_tokens=2, n=2), kv_transfer_params=LEND
        )
    assert town.p.scheduler.idle
    assert not town.p.half.lender.transfers


def test_a_prefill_is_for_one() -> None:
    """Two under one transfer id: the second would be refused when the first is there already."""
    town = Town()
    with pytest.raises(InvalidRequest, match="for one"):
        town.p.scheduler.add(
            "two", prompt(1), SamplingParams(n=2), prefill_only=True, kv_transfer_params=LEND
        )
    assert town.p.scheduler.idle
    assert not town.p.half.lender.transfers


def test_a_prefill_pulls_by_a_hint_and_is_read_along_only_if_it_computes() -> None:
    """T2: what a load is to fill aren't its blocks any more when that has failed."""
    town = Town(one_sided=True)

    def had() -> None:
        town.d.scheduler.add("had", prompt(1, 40))

    town.d.do(had)
    town.run(2.0)
    town.faults(stuck=1.0)
    params = write_params(Lend("t", hint="d"))

    def add() -> None:
        town.p.scheduler.add("next", prompt(1, 37), prefill_only=True, kv_transfer_params=params)

    town.p.do(add)
    for _ in range(2):  # rounds
        town.until(lambda: town.p.half.borrower.num_quarantined or town.p.half.borrower._pulling)
        assert not town.p.half.lender.leases
        for link in town.links:
            link.cut(town.p.workers[0])
        town.until(lambda: not town.p.half.borrower._pulling)
    town.until(lambda: town.p.half.lender.leases)
    (lease,) = town.p.half.lender.leases.values()
    assert lease.request_id is not None and lease.settled in (0, 36)
    town.rest()


def test_not_ready_while_too_much_is_in_quarantine() -> None:
    """T17."""
    town = Town(one_sided=True, quarantine_share=1 / 8)
    town.faults(stuck=1.0)
    town.come(prompt(1, 40))
    town.until(town.is_pulling)
    assert town.d.half.is_ready
    town.links[0].cut(town.d.workers[0])
    town.until(lambda: not town.d.half.is_ready)
    assert town.d.half.borrower.num_quarantined == 10
    town.rest()
    town.until(lambda: town.d.half.is_ready)


def test_when_to_call_again() -> None:
    town = Town()
    assert town.p.half.next_at() is None
    town.come(answer_delay=10.0)
    town.until(town.leases)
    assert town.p.half.next_at() is not None
    town.rest()
    assert town.p.half.next_at() is None


def test_an_earlier_run_is_not_listened_to() -> None:
    """T21: not even when it refuses us, which its next run doesn't."""
    town = Town()
    half, p = town.d.half, town.p
    half.node_seen("p", Incarnation(1))
    half.node_seen("p", Incarnation(2))
    half.from_node("p", Hello("p", Incarnation(2), p.fingerprint))
    assert half.role_of("p") is Role.BOTH
    half.node_seen("p", Incarnation(1))
    half.from_node("p", Hello("p", Incarnation(1), p.fingerprint, role=Role.DECODE, changes=9))
    half.from_node("p", Refused(town.d.run, (Refusal("weights", "a", "b"),)))
    assert half.role_of("p") is Role.BOTH
    assert half.counts["messages of an earlier run"] == 2


def test_not_idle_before_the_host_has_its_blocks_back(monkeypatch: pytest.MonkeyPatch) -> None:
    town = Town()
    half, plain, seen = town.p.half, town.p.half.from_worker, []

    def from_worker(rank: Rank, message: FromWorker) -> None:
        plain(rank, message)
        if town.p.scheduler.manager.usage:
            seen.append(half.is_idle)

    monkeypatch.setattr(half, "from_worker", from_worker)
    town.come()
    town.rest()
    assert half.is_idle
    assert seen
    assert not any(seen)
