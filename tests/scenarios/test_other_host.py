"""The halves behind vLLM's contract, on hosts that share nothing with our scheduler."""

from random import Random

import pytest

from kvdist.connector.geometry import Group
from kvdist.connector.params import ByTransfer, write_params
from tests.halves import a_ticket
from tests.other_host.pair import Pair
from tests.other_host.requests import RequestStatus as Status

FULL, WINDOW = Group("tokens", 4), Group("tokens", 4, window=9)


def prompt(number: int, num_tokens: int = 22) -> list[int]:
    return [1000 * number + i for i in range(num_tokens)]


def is_loading(pair: Pair) -> bool:
    """Bytes are on their way to some request of `d`."""
    return any(worker.half.fetcher.num_open for worker in pair.d.workers)


def loads(pair: Pair) -> tuple[int, int]:
    counts = pair.d.scheduler.counts
    return counts["loads"], counts["loads that failed"]


# -- all goes well ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sends", [True, False])
@pytest.mark.parametrize("groups", [(FULL,), (FULL, WINDOW)])
@pytest.mark.parametrize("ranks", [(1, 1), (1, 2), (2, 1), (4, 2)])
def test_blocks_travel(*, sends: bool, groups: tuple[Group, ...], ranks: tuple[int, int]) -> None:
    pair = Pair(*groups, sends=sends, ranks=ranks)
    for number in range(5):
        pair.come(f"r{number}", prompt(number, 9 + 5 * number))
    pair.rest()
    for name in pair.prompts:
        pair.check(name)
    assert loads(pair) == (5, 0)
    assert pair.p.scheduler.counts["preemptions"] == 0


def test_a_prompt_in_chunks() -> None:
    """P says again and again that blocks were allocated, each time more of them."""
    pair = Pair(FULL, WINDOW, budget=5)
    pair.come("r", prompt(1, 30))
    pair.rest()
    pair.check("r")
    assert loads(pair) == (1, 0)


def test_it_waits_for_room_and_is_asked_again() -> None:
    pair = Pair(blocks=(128, 14))
    for number in range(4):
        pair.come(f"r{number}", prompt(number))
    pair.rest()
    for name in pair.prompts:
        pair.check(name)
    assert pair.d.scheduler.counts["no room to load"]
    assert pair.d.scheduler.counts["asked again later"]
    assert loads(pair) == (4, 0)


def test_behind_a_local_hit_and_all_of_it_local() -> None:
    """The second prompt begins with the first; of the third, the same again, nothing is loaded."""
    pair = Pair(cached=True)
    long = prompt(1, 29)
    for name, tokens in (("first", long[:18]), ("second", long), ("third", list(long))):
        pair.come(name, tokens)
        pair.until(lambda name=name: name in pair.ended)  # type: ignore[misc]
    pair.rest()
    for name in pair.prompts:
        pair.check(name)
    assert loads(pair) == (2, 0)


def test_two_with_one_prompt_load_it_once() -> None:
    """T20: the second isn't told what to load while the first loads, and then has it."""
    pair = Pair(cached=True)
    for name in ("one", "other"):
        pair.come(name, prompt(1, 21))
    pair.rest()
    for name in pair.prompts:
        pair.check(name)
    assert loads(pair) == (1, 0)


# -- what goes wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [(FULL,), (FULL, WINDOW)])
@pytest.mark.parametrize("ranks", [(1, 1), (2, 2)])
def test_loads_that_fail_are_told_when_nothing_can_land(
    groups: tuple[Group, ...], ranks: tuple[int, int]
) -> None:
    """Reads fail, and go on after they were stopped: who uses the blocks then computes wrong."""
    pair = Pair(*groups, ranks=ranks)
    pair.fail_reads, pair.write_on = 1.0, 1.0
    for number in range(4):
        pair.come(f"r{number}", prompt(number))
    pair.rest()
    for name in pair.prompts:
        pair.check(name)
    loaded, failed = loads(pair)
    assert loaded == 0
    assert failed == 4 * pair.settings.max_rounds, "each time all of it, so it is asked again"


def test_what_was_there_before_a_failed_load_stays() -> None:
    """One group: blocks are named, and those before them are good."""
    pair = Pair(cached=True)
    long = prompt(1, 30)
    pair.come("first", long[:18])
    pair.until(lambda: "first" in pair.ended)
    pair.fail_reads = 1.0
    pair.come("second", long)
    pair.rest()
    pair.check("second")
    assert loads(pair) == (1, 1)


def test_failed_loads_may_fail_their_requests() -> None:
    pair = Pair(fails=True)
    pair.fail_reads = 1.0
    pair.come("r", prompt(1))
    pair.rest()
    assert pair.ended["r"].status is Status.FINISHED_ERROR


@pytest.mark.parametrize("write_on", [0.0, 1.0])
def test_aborted_while_it_loads(write_on: float) -> None:
    """Its blocks stay until nothing can land in them; then they come back, once."""
    pair = Pair()
    pair.write_on = write_on
    pair.come("r", prompt(1))
    pair.until(lambda: is_loading(pair))
    pair.abort("r")
    assert "r" in pair.d.scheduler.requests
    assert pair.d.blocks.num_free < pair.d.blocks.num_blocks - 1
    pair.rest()
    assert pair.ended["r"].status is Status.FINISHED_ABORTED
    assert loads(pair) == (0, 0)


def test_aborted_before_it_was_scheduled() -> None:
    """P hears of it at once, not when the lease runs out."""
    pair = Pair(lease_s=300.0)
    pair.come("r", prompt(1))
    pair.until(lambda: "r" in pair.d.scheduler.requests)
    pair.abort("r")
    pair.rest(seconds=5.0)


def test_nobody_takes_it() -> None:
    """The router has died between P and D: the lease runs out, and the blocks come back."""
    pair = Pair(lease_s=30.0)
    pair.p.scheduler.on_finished = lambda request, params: None
    pair.come("r", prompt(1))
    pair.prompts.clear()
    pair.until(pair.p.half.lender.leases.__len__)
    pair.rest(seconds=40.0)
    assert pair.p.half.counts["leases that ran out"] == 1


def test_the_prefill_is_aborted() -> None:
    """Its blocks are free at once; D is told that there is nothing to fetch, and computes."""
    pair = Pair(budget=4)
    pair.come("r", prompt(1, 30))
    pair.until(lambda: pair.p.scheduler.running)
    pair.p.scheduler.finish_requests("r-p", Status.FINISHED_ABORTED)
    pair.rest()
    pair.check("r")
    assert loads(pair) == (0, 0)


def test_an_abort_of_what_is_finished_and_held_is_ignored() -> None:
    pair = Pair()
    pair.come("r", prompt(1))
    pair.until(lambda: "r" in pair.d.scheduler.requests)
    pair.abort("r-p")
    pair.p.scheduler.finish_requests("r-p", Status.FINISHED_ABORTED)
    pair.rest()
    pair.check("r")


def test_the_prefill_is_preempted() -> None:
    """Nobody reads along, so it may be, at any time; the ticket comes at the end."""
    pair = Pair(budget=4)
    pair.come("r", prompt(1, 30))
    pair.until(lambda: pair.p.scheduler.requests["r-p"].num_computed_tokens > 8)
    pair.p.scheduler.preempt_all()
    pair.rest()
    pair.check("r")
    assert pair.p.scheduler.counts["preemptions"] == 1
    assert loads(pair) == (1, 0)


@pytest.mark.parametrize("budget", [4, 30])
def test_both_at_once(budget: int) -> None:
    """D asks while P computes, and P preempts without asking: nobody has read along (T12)."""
    pair = Pair(budget=budget)
    pair.come("r", prompt(1, 31))
    pair.p.scheduler.on_finished = lambda request, params: None
    pair.decode("r", write_params(ByTransfer("p", "r-p")))
    prefill = pair.p.scheduler.requests["r-p"]
    pair.until(lambda: prefill.num_computed_tokens == budget)
    pair.p.scheduler.preempt_all()
    blocks = pair.p.blocks
    blocks.free(blocks.take(blocks.num_free))  # each had other content meanwhile
    pair.rest()
    pair.check("r")
    assert loads(pair) == (1, 0)


def test_no_more_can_be_lent() -> None:
    """Leases leave room for one longest sequence (T10): P keeps nothing, and D computes."""
    pair = Pair(blocks=(18, 128))
    pair.come("r", prompt(1))
    pair.rest()
    pair.check("r")
    assert loads(pair) == (0, 0)


def test_preempted_after_its_load() -> None:
    """What was loaded is gone, and so is the lease: it computes."""
    pair = Pair()
    pair.come("r", prompt(1), max_tokens=8)
    pair.until(lambda: loads(pair)[0])
    pair.until(lambda: pair.d.scheduler.running)
    pair.d.scheduler.preempt_all()
    pair.rest()
    pair.check("r")
    assert pair.d.scheduler.counts["preemptions"] == 1


def test_a_preemption_while_others_load() -> None:
    """Who is loading keeps its blocks, whatever becomes of the others."""
    pair = Pair()
    pair.come("first", prompt(1), max_tokens=40)
    pair.until(lambda: pair.d.scheduler.running)
    pair.come("second", prompt(2))
    pair.until(lambda: is_loading(pair))
    pair.d.scheduler.preempt_all()
    assert is_loading(pair)
    pair.rest()
    for name in pair.prompts:
        pair.check(name)


def test_the_link_is_cut() -> None:
    pair = Pair(sends=False)
    pair.come("r", prompt(1))
    pair.until(lambda: is_loading(pair))
    pair.cut(pair.d.workers[0], pair.p.workers[0])
    pair.rest()
    pair.check("r")


def test_the_cache_is_reset() -> None:
    """T9: nothing that is lent counts any more."""
    pair = Pair()
    pair.come("r", prompt(1))
    pair.until(lambda: "r" in pair.d.scheduler.requests)
    assert not pair.p.connector.reset_cache()
    assert pair.p.connector.has_pending_block_frees()
    pair.rest()
    assert pair.p.connector.reset_cache()
    pair.check("r")


def test_parameters_that_cannot_be_read() -> None:
    pair = Pair()
    pair.prompts["r"] = prompt(1)
    pair.decode("r", {"do_remote_prefill": True, "remote_engine_id": 5})
    pair.rest()
    pair.check("r")
    assert pair.d.connector.num_rejected == 1


def test_a_ticket_that_means_nothing_to_its_owner() -> None:
    """An old run's: its pull is denied, and the request computes."""
    pair = Pair()
    pair.prompts["r"] = prompt(1)
    pair.decode("r", write_params(a_ticket(run=7)))
    pair.rest()
    pair.check("r")
    assert pair.p.half.counts["release of an unknown lease"]


@pytest.mark.parametrize("num_tokens", [3, 22])
def test_another_prompt_than_the_ticket_was_made_for(num_tokens: int) -> None:
    """The router mixes answers up: nobody gets K/V of another's tokens, or salt."""
    pair = Pair()
    pair.come("r", prompt(1, num_tokens), salt="mine")
    answers: list[object] = []
    pair.p.scheduler.on_finished = lambda request, params: answers.append(params)
    pair.until(lambda: answers)
    pair.prompts["other"] = prompt(1, num_tokens)
    pair.decode("other", answers[0], salt="another's")
    pair.prompts.pop("r")
    pair.rest()
    pair.check("other")
    assert loads(pair)[0] == 0


# -- everything at once ----------------------------------------------------------------------------


def disturb(pair: Pair, chance: Random, number: int) -> None:
    match chance.randrange(8):
        case 0:
            pair.abort(f"r{chance.randrange(number + 1)}")
        case 1:
            pair.d.scheduler.preempt_all()
        case 2:
            pair.p.scheduler.preempt_all()
        case 3:
            pair.cut(chance.choice(pair.d.workers), chance.choice(pair.p.workers))
        case _:
            pass


@pytest.mark.parametrize("seed", range(24))
def test_walks(seed: int) -> None:
    """Whatever happens, every client hears the truth and every block comes back."""
    chance = Random(seed)
    groups = chance.choice([(FULL,), (FULL, WINDOW), (WINDOW,)])
    pair = Pair(
        *groups,
        seed=seed,
        ranks=chance.choice([(1, 1), (2, 1), (1, 2), (2, 2)]),
        blocks=(chance.choice([60, 128]), chance.choice([40, 128])),
        sends=chance.random() < 0.5,
        cached=chance.random() < 0.5,
        budget=chance.choice([8, 64]),
    )
    pair.lose, pair.fail_reads, pair.write_on = 0.1, 0.15, 0.3
    for number in range(14):
        shared = prompt(chance.randrange(4), 12)
        pair.come(
            f"r{number}",
            shared + prompt(100 + number, chance.randrange(1, 22)),
            max_tokens=chance.randrange(1, 9),
        )
        for _ in range(chance.randrange(60)):
            pair.world.step()
        disturb(pair, chance, number)
    pair.lose = pair.fail_reads = 0.0
    pair.rest()
    for name, request in pair.ended.items():
        if request.status is not Status.FINISHED_ABORTED:
            pair.check(name)
