"""Memory of one rank, and when it is poisoned."""

from kvdist.sim.memory import POISON, Memory, Poisoner
from tests.make import Node


def test_cells_are_the_memory_itself() -> None:
    memory = Memory(num_blocks=3, num_slots=4, heads=[7])
    memory.cells(2, 7)[1:3] = [5, 6]
    assert memory.cells(2, 7) == [POISON, 5, 6, POISON]
    view = memory.cells(2, 7)
    memory.poison([2])
    assert view == [POISON] * 4


def test_a_copy_is_a_block_of_its_own() -> None:
    memory = Memory(3, 2, [0, 1])
    memory.cells(1, 1)[0] = 5
    memory.copy(1, 2)
    memory.cells(1, 1)[0] = 6
    assert memory.cells(2, 1)[0] == 5


def test_poisoned_when_taken_and_when_freed_without_a_key() -> None:
    node, memory = Node(), Memory(11, 4)
    poison = Poisoner(node.pool, [memory])
    request = node.start("r", range(6))
    poison()
    for block in (1, 2):
        memory.cells(block, 0)[:] = [block] * 4
    poison()
    assert memory.cells(2, 0) == [2] * 4, "in use"
    node.finish(request)
    poison()
    assert memory.cells(1, 0) == [1] * 4, "free, but it can be found"
    assert memory.cells(2, 0) == [POISON] * 4
    node.start("s", [9] * 40)
    poison()
    assert memory.cells(1, 0) == [POISON] * 4
