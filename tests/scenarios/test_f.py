"""F. Prefix hits, block counts, partial blocks. F6 and F13 are in test_scheduler.py."""

import pytest

from tests.make import full, mamba, window
from tests.town import Town, prompt


@pytest.mark.parametrize("extra", [0, 1, 2, 5])
def test_f1(extra: int) -> None:
    """`d`'s prompt is a whole number of blocks and a little more than what `p` has."""
    town = Town()
    town.finish(town.come(prompt(1, 16), "local", decode="p"))
    town.finish(town.come(prompt(1, 16 + extra), "hash"))
    assert town.num_external() == (12 if extra == 0 else 16)
    town.rest()


@pytest.mark.parametrize("way", ["ticket", "hash", "stream"])
def test_f2(way: str) -> None:
    """`d` holds the first three of eight blocks: the tail comes, and lands where it should."""
    town = Town()
    town.finish(town.come(prompt(1, 13), "local"))
    if way == "hash":
        town.finish(town.come(prompt(1, 33), "local", decode="p"))
    town.finish(town.come(prompt(1, 33), way))  # type: ignore[arg-type]
    assert town.num_external() == 20
    town.rest()


@pytest.mark.parametrize("length", [13, 14, 16, 17])
def test_f3(length: int) -> None:
    """A state's table is placeholders but for its last block; they are never sent or filled."""
    town = Town(full(), mamba(), blocks=100)
    town.finish(town.come(prompt(1, length)))
    assert town.num_external() == length - 1
    town.finish(town.come(prompt(1, length)))
    town.rest()


@pytest.mark.parametrize("one_sided", [False, True])
def test_f11(one_sided: bool) -> None:
    """Loads behind hits that end inside a block: blocks are copied, and tables stay the same."""
    town = Town(
        one_sided=one_sided,
        blocks=100,
        cache={"enable_partial_hits": True, "hash_block_size": 2},
    )
    for n in (7, 9, 10, 11, 13, 14, 18, 22, 23, 30):
        town.finish(town.come(prompt(1, n), new=2))
        town.finish(town.come(prompt(1, n), "hash", new=2))
    town.rest()


@pytest.mark.parametrize("length", [16, 17, 18])
def test_f14(length: int) -> None:
    """A state that was kept after 16 tokens is used by whoever goes on there, and nobody else."""
    town = Town(full(), mamba(), window(9), blocks=100)
    town.finish(town.come(prompt(1, 17), "local", new=1, decode="p"))
    town.finish(town.come(prompt(1, length), "hash"))
    assert town.num_external() in (0, 12, 16)
    town.rest()
