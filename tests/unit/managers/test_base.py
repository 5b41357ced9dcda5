"""What all kinds share: tables, prediction, adoption of hits, publishing, giving back (S4, S12)."""

import pytest

from kvdist.cache import KVCacheSpec
from kvdist.cache.managers.base import NEVER, cdiv
from kvdist.cache.token_space import TokenSpace
from tests.make import Node, full, ids, mamba, window
from tests.unit.snapshot import unchanged


@pytest.mark.parametrize(
    ("dividend", "divisor", "quotient"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (-1, 4, 0)]
)
def test_cdiv_rounds_up(dividend: int, divisor: int, quotient: int) -> None:
    assert cdiv(dividend, divisor) == quotient


def space(name: str, *, local: int = 0, total: int = 0, slots: int) -> TokenSpace:
    return TokenSpace(name, local, max(local, total), slots, slots)


def test_s12_new_blocks_are_predicted_from_slots() -> None:
    (manager,) = Node().manager.coordinator.managers
    for slots, blocks in ((0, 0), (1, 1), (4, 1), (5, 2), (40, 10)):
        assert manager.get_num_blocks_to_allocate(space("a", slots=slots), (), False) == blocks


def test_s12_owned_blocks_are_not_needed_again() -> None:
    node = Node()
    node.start("a", "ABCDE")
    (manager,) = node.manager.coordinator.managers
    for slots, blocks in ((5, 0), (8, 0), (9, 1), (13, 2)):
        assert manager.get_num_blocks_to_allocate(space("a", slots=slots), (), False) == blocks


def test_s12_idle_hits_are_needed_too_and_used_ones_are_not() -> None:
    node = Node()
    first = node.start("a", "ABCDEFGH")
    (manager,) = node.manager.coordinator.managers
    hit = node.manager.get_computed_blocks(node.request("b", "ABCDEFGHI")).blocks.blocks[0]
    asked = space("b", local=8, slots=9)
    assert manager.get_num_blocks_to_allocate(asked, hit, False) == 1
    node.finish(first)
    assert manager.get_num_blocks_to_allocate(asked, hit, False) == 3


@pytest.mark.parametrize("spec", [full(), window(8), mamba()])
def test_s12_a_prediction_changes_nothing(spec: KVCacheSpec) -> None:
    node = Node(spec)
    node.start("a", "ABCDE")
    (manager,) = node.manager.coordinator.managers
    with unchanged(node.manager):
        manager.get_num_blocks_to_allocate(space("a", slots=30), (), False)
        manager.get_num_blocks_to_allocate(space("b", slots=30), (), True)


def test_what_was_predicted_is_what_is_taken() -> None:
    node = Node(num_blocks=41)
    finished = [node.start(f"f{i}", range(i, i + 20)) for i in range(4)]
    node.finish(*finished)
    for i in range(4):
        request = node.request(f"r{i}", range(i, i + 26))
        hit = node.manager.get_computed_blocks(request)
        asked = space(request.request_id, local=hit.num_tokens, slots=26)
        needed = node.manager.coordinator.get_num_blocks_to_allocate(asked, hit.blocks.blocks)
        free = node.pool.get_num_free_blocks()
        assert node.manager.allocate_slots(request, 26 - hit.num_tokens, hit) is not None
        assert free - node.pool.get_num_free_blocks() == needed > 0


def test_a_table_begins_with_the_hit() -> None:
    node = Node()
    node.start("a", "ABCDEFGH")
    request = node.start("b", "ABCDEFGHIJ")
    assert node.table(request) == [1, 2, 3]
    (manager,) = node.manager.coordinator.managers
    assert ids(manager.req_to_blocks["b"]) == [1, 2, 3]


def test_a_block_is_published_once() -> None:
    node = Node()
    request = node.start("a", "ABCDEFGH")
    with unchanged(node.manager):
        node.manager.cache_blocks(request, 8)
        node.manager.cache_blocks(request, 4)
    assert node.cached == [1, 2]


def test_a_request_is_forgotten_tail_first() -> None:
    node = Node()
    node.start("a", "ABCDEFGHI")
    (manager,) = node.manager.coordinator.managers
    assert ids(manager.pop_blocks_for_free("a")) == [3, 2, 1]
    assert manager.pop_blocks_for_free("a") == []
    assert "a" not in manager.req_to_blocks
    assert "a" not in manager.num_cached_block


def test_by_default_nothing_is_skipped() -> None:
    (manager,) = Node().manager.coordinator.managers
    assert manager.get_num_skipped_tokens(10**9) == 0
    assert manager.next_skip(10**9) == NEVER
    assert manager.resumable_blocks(9) == range(3)
