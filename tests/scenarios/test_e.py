"""E. Geometry. E2, E3, E5, E7 and E8 are in test_hello.py and unit/connector/test_compat.py."""

from collections.abc import Callable
from typing import Any

import pytest

from kvdist.connector.effects import SendBytes
from tests.make import full, mamba, window
from tests.town import Town, prompt


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize(("owner", "reader"), [(4, 16), (16, 4)])
def test_e1(owner: int, reader: int, one_sided: bool) -> None:
    """Blocks of 4 and of 16 tokens, both ways, prompts of every length: equal tokens."""
    town = Town(
        one_sided=one_sided,
        blocks=300,
        per_node={"p": (full(owner),), "d": (full(reader),)},
        cache={"hash_block_size": 4},
    )
    names = [town.come(prompt(length, length), new=1) for length in range(1, 34)]
    names += [town.come(prompt(50 + n, n), "stream", new=1) for n in range(17, 34, 4)]
    town.finish(*names)
    assert town.num_external()
    town.rest()


@pytest.mark.parametrize(("owner", "reader"), [(16, 64), (64, 16)])
def test_e1_as_it_was_seen(owner: int, reader: int) -> None:
    town = Town(
        blocks=100,
        per_node={"p": (full(owner),), "d": (full(reader),)},
        cache={"hash_block_size": 16, "max_model_len": 200},
    )
    town.finish(*[town.come(prompt(n, n), new=1) for n in (63, 64, 65, 66, 80, 129, 150)])
    town.rest()


def test_e3() -> None:
    """Groups that count in blocks of 4 and of 16 tokens, in one model."""
    town = Town(full(4), full(16), blocks=400, cache={"hash_block_size": 4})
    town.finish(*[town.come(prompt(n, n)) for n in range(1, 35, 3)])
    town.finish(*[town.come(prompt(n, n), "hash") for n in range(1, 35, 3)])
    assert town.num_external()
    town.rest()


def test_e6() -> None:
    """What moves is described by blocks, however many heads there are."""
    town = Town(heads=4, ranks={"p": 2, "d": 1})
    sends: list[SendBytes] = []
    for worker in town.p.workers:
        _listen(worker, sends)
    town.finish(*[town.come() for _ in range(6)])
    assert len(sends) == 6 * 2, "a send a part"
    assert max(len(send.pieces) for send in sends) == 4, "a piece a block"
    town.rest()


def _listen(worker: Any, sends: list[SendBytes]) -> None:
    before: Callable[[SendBytes], None] = worker._send_bytes

    def send(effect: SendBytes) -> None:
        sends.append(effect)
        before(effect)

    worker._send_bytes = send


@pytest.mark.parametrize("spec", [window(9), mamba()], ids=["window", "state"])
@pytest.mark.parametrize("way", ["ticket", "hash", "stream"])
def test_other_kinds_of_layers(spec: Any, way: Any) -> None:
    """Whatever the second group keeps, every token is right."""
    town = Town(full(), spec, blocks=200)
    town.finish(*[town.come(prompt(n, n), way) for n in range(2, 30, 3)])
    town.finish(*[town.come(prompt(n, n), way) for n in range(2, 30, 3)])
    town.rest()
