"""H deadlock, K order and loss, L and M identity, N counting, P router and client.

H2, H5, I5, I7, J4 and L1 are the scheduler's (test_scheduler.py).
"""

import random

import pytest

from kvdist.cache import BlockHasher, ExtraKeys, LoRAKey, MultiModalItem
from kvdist.connector.local import PartEnded
from kvdist.connector.messages import Confirmed, Release, Released
from kvdist.connector.params import Lend, write_params
from kvdist.errors import InvalidRequest
from kvdist.ids import BlockHash
from tests.make import full
from tests.town import Town, prompt


def test_h6() -> None:
    """Many loads and long outputs in a pool of hardly more than one: all end."""
    town = Town(blocks={"p": 200, "d": 14})
    names = [town.come(prompt(i, 20), new=25) for i in range(12)]
    town.finish(*names)
    town.rest()


def test_h7() -> None:
    """Room for one at a time, eight that wait: in order, and nobody is busy for nothing."""
    town = Town(blocks={"p": 200, "d": 12})
    names = [town.come(prompt(i, 40), new=1) for i in range(8)]
    before = town.world.num_events
    town.finish(*names)
    assert town.world.num_events - before < 100 * len(names)
    town.rest()


def test_k2() -> None:
    """There is next to nothing to move, and it is done at once: one verdict, one release."""
    town = Town(one_sided=True)
    town.finish(*[town.come(prompt(i, 2)) for i in range(10)])
    released = [entry for entry in town.world.log if isinstance(entry.about, Release)]
    assert len({entry.about for entry in released}) == 10
    town.rest()


@pytest.mark.parametrize("seed", range(5))
def test_k3(seed: int) -> None:
    """Notes get lost: whoever needs an answer asks again, and nobody hangs."""
    town = Town(seed=seed, blocks=100)
    town.faults(drop=0.2)
    names = [town.come(way=way) for way in ("ticket", "hash", "stream") * 4]
    town.finish(*names)
    town.rest()


def test_k3_one_release() -> None:
    """The very note that gives the blocks back is lost."""
    town = Town()
    town.gate.keep(Release)
    town.finish(town.come())
    town.until(lambda: len(town.gate))
    town.gate.drop()
    town.until(lambda: not town.leases(), within=2.0)
    town.gate.keep(Released)
    town.finish(town.come())
    town.until(lambda: len(town.gate))
    town.gate.drop()
    town.until(lambda: not town.d.half.borrower.num_open, within=2.0)
    town.rest()


@pytest.mark.parametrize("seed", range(8))
def test_k5(seed: int) -> None:
    """`d` asks before `p` has heard of the request, or after: it is matched either way."""
    town = Town(seed=seed)
    town.finish(town.come(prompt(1, 30), "stream"))
    assert town.num_external() == 29
    town.rest()


def test_k6() -> None:
    """A request whose load is over is reported once more when it runs again."""
    town = Town(blocks={"p": 100, "d": 13})
    names = [town.come(prompt(i, 20), new=20) for i in range(3)]
    town.until(lambda: town.d.scheduler.stats.num_preemptions)
    parts = [entry.about.part for entry in town.world.log if isinstance(entry.about, PartEnded)]
    assert parts

    def again() -> None:
        for part in parts:
            town.d.half.borrower.on_part_ended(PartEnded(part, ""))
            town.d.half.borrower.on_part_quiet(part)

    town.d.do(again)
    assert town.d.half.counts["verdicts twice"] == len(parts)
    town.finish(*names)
    town.rest()


def test_l2() -> None:
    """Two requests under one transfer id: the second is refused, both nodes live."""
    town = Town()
    params = write_params(Lend("room"))

    def add() -> None:
        town.p.scheduler.add("one", prompt(1), prefill_only=True, kv_transfer_params=params)
        with pytest.raises(InvalidRequest, match="transfer_id"):
            town.p.scheduler.add("two", prompt(2), prefill_only=True, kv_transfer_params=params)

    town.p.do(add)
    town.finish(town.come(), town.come(way="stream"))
    town.run(40.0)
    town.rest()


def hashes(keys: ExtraKeys) -> tuple[BlockHash, ...]:
    return tuple(BlockHasher(4).start(keys).extend(list(prompt(1))))


IMAGES = [ExtraKeys(mm_items=(MultiModalItem(name, 0, 8),)) for name in ("cat", "dog")]
ADAPTERS = [ExtraKeys(lora=LoRAKey(name, f"/adapters/{name}")) for name in ("a", "b")]
SALTS = [ExtraKeys(cache_salt=name) for name in ("mine", "yours")]


@pytest.mark.parametrize(
    ("mine", "yours"), [ADAPTERS, IMAGES, SALTS], ids=["m1 adapters", "m3 images", "m3 salts"]
)
def test_m1_and_m3(mine: ExtraKeys, yours: ExtraKeys) -> None:
    """The same tokens under other keys are other content, for peers too."""
    town = Town()

    def add() -> None:
        town.p.scheduler.add("mine", prompt(1), extra_keys=mine)

    town.p.do(add)
    town.run(1.0)
    lend = town.p.half._holdings.lend
    assert lend(hashes(yours), 4, 10) is None
    assert lend(hashes(ExtraKeys()), 4, 10) is None
    found = lend(hashes(mine), 4, 10)
    assert found is not None
    assert found[1] == 16


def test_m5() -> None:
    """A client names a node that nobody knows: no address is reached, and it is computed here."""
    town = Town(tries=2)
    name = town.come(way="hash", prefill="10.6.6.6:666")
    town.finish(name)
    assert not town.links
    town.rest()


def test_n1() -> None:
    """Tokens of a load are counted once, when it is admitted."""
    town = Town()
    town.finish(town.come(), town.come())
    assert town.num_external() == 32
    town.rest()


def test_p1() -> None:
    """`p` refuses under load: `d` is asked to compute, openly, and it is counted."""
    town = Town(blocks={"p": 20, "d": 100})
    names = [town.come(answer_delay=5.0) for _ in range(8)]
    town.until(lambda: town.is_over(*names) or town.p.half.lender.is_full())
    town.finish(town.come())
    assert town.cluster.clients.num_refused == 1
    town.finish(*names)
    assert town.num_external() < 16 * len(names), "some had no ticket"
    town.rest()


def test_p3() -> None:
    """A failed load with policy fail is a failure, with its reason, never an empty answer."""
    town = Town(on_failure="fail", max_rounds=1)
    name = town.come()
    town.gate.keep(Confirmed)
    town.until(lambda: len(town.gate))
    town.kill("p")
    town.gate.drop()
    town.until(lambda: town.is_over(name))
    assert town.ended(name)[0] in ("the owner says gone", "the link was lost")
    town.rest()


def test_p4() -> None:
    """`p` dies after its prefill and before its answer; the router tries again elsewhere."""
    town = Town(nodes=("p", "q", "d"))
    name = town.come(answer_delay=1.0)
    town.until(town.leases)
    town.kill("p")
    again = town.come(prompt(1), prefill="q")
    town.finish(again)
    town.until(lambda: town.is_over(name))
    town.rest()


@pytest.mark.parametrize("one_sided", [False, True])
def test_p5(one_sided: bool) -> None:
    """Hundreds of clients go away at any time, many just as their request ends."""
    chance = random.Random(5)
    town = Town(full(), one_sided=one_sided, blocks=60)
    names = []
    for _ in range(250):
        way = chance.choice(("ticket", "hash", "stream", "local"))
        tokens = prompt(chance.randrange(5), chance.randrange(2, 30))
        names.append(
            town.come(tokens, way, new=chance.randrange(1, 4), abort_after=chance.random() * 0.3)  # type: ignore[arg-type]
        )
        town.run(chance.random() * 0.05)
    town.until(lambda: town.is_over(*names))
    assert {"right", "aborted"} == set(town.ended(*names))
    town.rest()
