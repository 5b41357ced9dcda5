"""The edges: full pools, caps, pools of two blocks, restarts without end, peers that lie."""

import random
from collections.abc import Callable
from functools import partial
from typing import Final

import pytest

from kvdist.connector.effects import SendToNode, ServeKey
from kvdist.connector.messages import (
    MAX_TOKENS,
    Borrow,
    Confirmed,
    Denied,
    Heads,
    Hello,
    Lent,
    Message,
    NodeMessage,
    Opened,
    Progress,
    Release,
    Released,
    Renew,
    Settled,
    Stream,
    StreamState,
    Ticket,
    TokenSpans,
    Why,
    Withdrawn,
)
from kvdist.ids import BlockHash, BlockId, Incarnation, LeaseId, PullId, Rank
from kvdist.sim.clients import Way
from kvdist.sim.links import DataLink
from kvdist.sim.worker import SimWorker
from tests.make import full
from tests.town import Town, prompt

WAYS: Final[tuple[Way, ...]] = ("ticket", "hash", "stream")


@pytest.mark.parametrize("one_sided", [False, True])
def test_a_pool_exactly_full_of_loads(one_sided: bool) -> None:
    """Four loads of ten blocks in a pool of forty, and four that wait behind them."""
    town = Town(one_sided=one_sided, blocks={"p": 200, "d": 40})
    town.gate.keep(Opened)
    names = [town.come(prompt(i, 37), new=1) for i in range(8)]
    town.until(lambda: len(town.d.scheduler.roster.loads) == 4)
    ledger = town.d.manager.ledger()
    assert (ledger.pull, ledger.free) == (36, town.d.scheduler.reserved_blocks)
    town.gate.let_go()
    town.finish(*names)
    town.rest()


def test_leases_at_their_cap() -> None:
    """As many leases as may be, readers that never come, and `p`'s own work goes on."""
    town = Town(blocks={"p": 40, "d": 40}, lease_s=5.0, renewal_s=1.0)
    lost = [town.come(answer_delay=1000.0) for _ in range(20)]
    town.until(town.p.half.lender.is_full)
    assert town.p.half.lender.num_leased <= 40 - 12
    town.finish(*[town.come(prompt(50 + i, 40), "local", decode="p") for i in range(6)], within=4.0)
    town.run(20.0)
    assert not town.leases()
    town.finish(*lost, within=1100.0)
    town.rest()


@pytest.mark.parametrize("seed", range(4))
def test_both_directions_full(seed: int) -> None:
    """Each is owner and reader at once, in small pools."""
    town = Town(seed=seed, blocks=24)
    names = []
    for i in range(16):
        there, here = ("p", "d") if i % 2 else ("d", "p")
        names.append(town.come(prompt(i, 20), prefill=there, decode=here, new=8))
    town.finish(*names, within=200.0)
    town.rest()


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_pools_of_two_blocks(way: Way, one_sided: bool) -> None:
    """There is never room to lend, so all is computed, one after the other."""
    town = Town(blocks=2, one_sided=one_sided, cache={"max_model_len": 8})
    names = [town.come(prompt(i % 3, 5), way) for i in range(12)]
    town.finish(*names)
    town.rest()


@pytest.mark.parametrize("way", WAYS)
def test_blocks_of_one_token(way: Way) -> None:
    town = Town(full(1), blocks=60, cache={"max_model_len": 10})
    names = [town.come(prompt(i % 3, 5), way) for i in range(12)]
    town.finish(*names)
    town.rest()


@pytest.mark.parametrize("num_restarts", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_restarts_without_end(num_restarts: int) -> None:
    """One of the two dies, again and again, in the middle of whatever it does."""
    chance = random.Random(7)
    town = Town(blocks=60)
    for i in range(num_restarts):
        name = town.come(prompt(i % 7, 20), chance.choice(WAYS))
        town.run(chance.random() * 0.05)
        town.kill(chance.choice("pd"))
        town.until(lambda: town.p.is_alive and town.d.is_alive)
        town.until(partial(town.is_over, name))
        town.cluster.clients.forget_ended()
    assert town.cluster.num_restarts == num_restarts
    town.finish(town.come(), town.come(way="stream"))
    town.rest()


# -- a peer that lies ------------------------------------------------------------------------------


def random_node_message(chance: random.Random, leases: list[LeaseId]) -> NodeMessage:
    """Well formed, and made up."""
    lease = chance.choice([*leases, LeaseId(chance.randbytes(16))])
    run, number = Incarnation(chance.choice((0, 1, 2, 1 << 63))), PullId(chance.randrange(5))
    ticket = Ticket(
        lease, chance.choice(("p", "d", "evil")), run, chance.choice((0, 1, 16, 17, MAX_TOKENS)),
        chance.choice((0, MAX_TOKENS)), Rank(chance.choice((0, 1, 2, 3, 1 << 16))),
    )  # fmt: skip
    transfer = f"job{chance.randrange(5)}-x"
    some = chance.choice((ticket, None))
    hashes = tuple(BlockHash(chance.randbytes(chance.choice((0, 32)))) for _ in range(3))
    return chance.choice(
        (
            Release(lease, run), Released(lease), Renew((lease,) * 5), Withdrawn(lease),
            Borrow(number, run, hashes, chance.choice((0, 4, MAX_TOKENS))),
            Lent(number, run, some), Stream(transfer),
            StreamState(transfer, chance.choice(list(Progress)), some),
        )
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_says_anything(seed: int) -> None:
    """Thousands of made-up messages of a member, under traffic of two others: nothing breaks, and
    nothing stays.
    """
    chance = random.Random(seed)
    town = Town(seed=seed, nodes=("p", "d", "evil"), blocks=60)
    names = []
    for i in range(20):
        names.append(
            town.come(prompt(i % 6, 20), chance.choice(WAYS), prefill=chance.choice(("p", "evil")))
        )
        for _ in range(100):
            victim = chance.choice("pd")
            message = random_node_message(chance, [])
            town.cluster.post.send("evil", Incarnation(1), SendToNode(victim, message))
        town.run(0.02)
    town.until(lambda: town.is_over(*names))
    assert "right" in town.ended(*names)
    town.run(40.0)
    town.rest()


Lie = Callable[[Message], list[Message]]


def _short_tables(message: Message) -> list[Message]:
    if isinstance(message, Opened):
        return [Opened(message.part, ((BlockId(1),),), message.settled, (4,))]
    return [message]


def _twice(message: Message) -> list[Message]:
    return [message, message]


def _never(_: Message) -> list[Message]:
    return []


def _confirmed_first(message: Message) -> list[Message]:
    part = getattr(message, "part", None)
    return [Confirmed(part), message] if part is not None else [message]


def _denied_afterwards(message: Message) -> list[Message]:
    part = getattr(message, "part", None)
    return [message, Denied(part, Why.GONE)] if part is not None else [message]


def _other_parts(message: Message) -> list[Message]:
    if isinstance(message, Opened):
        number = PullId(message.part.pull + 1)
        other = type(message.part)(number, message.part.reader, message.part.owner)
        return [Opened(other, ()), Settled(other, 0), Confirmed(other), message]
    return [message]


LIES = [_short_tables, _twice, _never, _confirmed_first, _denied_afterwards, _other_parts]


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("lie", LIES, ids=[lie.__name__ for lie in LIES])
def test_a_worker_that_lies(lie: Lie, one_sided: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`p`'s worker says other things than it should: requests end, and no byte is taken for good
    that wasn't confirmed.
    """
    before = DataLink.send

    def send(self: DataLink, sender: SimWorker, message: Message, version: int) -> None:
        lies = sender.node_id == "p" and not isinstance(message, Hello)
        for one in lie(message) if lies else [message]:
            before(self, sender, one, version)  # type: ignore[arg-type]

    monkeypatch.setattr(DataLink, "send", send)
    town = Town(one_sided=one_sided)
    town.finish(*[town.come() for _ in range(5)])
    town.rest()


@pytest.mark.parametrize("one_sided", [False, True])
def test_garbage(one_sided: bool) -> None:
    """Of what is said every third message is none."""
    town = Town(one_sided=one_sided, blocks=60)
    town.faults(garbage=0.3)
    names = [town.come(way=way) for way in WAYS * 4]
    town.until(lambda: town.is_over(*names))
    assert town.cluster.post.num_bad + town.cluster.num_bad
    town.rest()


def test_a_body_of_another_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """`p` announces what is wanted, and sends less, or more."""
    before = SimWorker.land

    def land(
        self: SimWorker,
        link: DataLink,
        key: ServeKey,
        spans: TokenSpans,
        heads: Heads,
        values: list[int],
    ) -> None:
        values = values[:-1] if len(town.world.log) % 2 else [*values, 0]
        before(self, link, key, spans, heads, values)

    monkeypatch.setattr(SimWorker, "land", land)
    town = Town()
    town.finish(*[town.come() for _ in range(4)])
    town.rest()
