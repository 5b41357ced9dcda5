"""Why a block is held, and the ledger over it (I1, I7, ADR-0005)."""

from collections.abc import Callable

import pytest

from kvdist.cache import BlockPool, HoldKind, Ledger
from kvdist.cache.holds import HoldTable
from kvdist.errors import DoubleFree, ForeignBlock, LocalMisuse
from tests.make import GROUP, Node, ids, make_blocks, make_pool
from tests.unit.snapshot import unchanged

LEASE, PULL, COPY, QUARANTINE = (
    HoldKind.LEASE,
    HoldKind.PULL,
    HoldKind.COPY,
    HoldKind.QUARANTINE,
)


def test_the_order_of_strength() -> None:
    assert list(HoldKind) == sorted(HoldKind)
    assert HoldKind.REQUEST < LEASE < PULL < COPY < QUARANTINE


def test_holds_are_counted_by_kind() -> None:
    first, second = make_blocks(2)
    holds = HoldTable()
    holds.add([first, first, second], LEASE)
    holds.add([first], PULL)
    assert [holds.count(first, kind) for kind in HoldKind] == [0, 2, 1, 0, 0]
    assert (holds.total(first), holds.total(second)) == (3, 1)
    assert list(holds) == [first, second]
    assert (holds.strongest(LEASE), holds.strongest(PULL), holds.strongest(COPY)) == (1, 1, 0)
    holds.remove([first, first], LEASE)
    holds.remove([first], PULL)
    assert len(holds) == 1
    assert holds.total(first) == 0


@pytest.mark.parametrize("ended", [[0, 0, 0], [1, 0], [0, 2]])
def test_more_than_there_are_can_not_end(ended: list[int]) -> None:
    blocks = make_blocks(3)
    holds = HoldTable()
    holds.add([blocks[0], blocks[0]], LEASE)
    holds.add([blocks[1]], PULL)
    with pytest.raises(DoubleFree):
        holds.remove([blocks[i] for i in ended], LEASE)
    assert [holds.total(block) for block in blocks] == [2, 1, 0]


def test_i1_a_hold_takes_a_free_block_out_of_the_queue() -> None:
    pool = make_pool(5)
    pool.hold(pool.blocks[2:4], LEASE)
    assert ids(pool.free_block_queue) == [1, 4]
    assert ids(pool.get_new_blocks(2, GROUP)) == [1, 4]
    pool.end_hold([pool.blocks[3], pool.blocks[2]], LEASE)
    assert ids(pool.free_block_queue) == [3, 2]


def test_i1_a_block_stays_as_long_as_anyone_holds_it() -> None:
    node = Node()
    request = node.start("a", "ABCDEFGH")
    node.manager.hold_blocks([1, 2], LEASE)
    node.manager.hold_blocks([2], PULL)
    node.finish(request)
    assert node.counts == {1: 1, 2: 2}
    node.manager.end_hold([2, 1], LEASE)
    assert node.counts == {2: 1}
    assert node.queue[-1] == 1
    node.manager.end_hold([2], PULL)
    assert node.queue == [3, 4, 5, 6, 7, 8, 9, 10, 1, 2]
    assert node.hit("b", "ABCDEFGHI") == (8, 1, 2)  # freed, not erased


def test_a_block_may_be_held_twice_for_one_reason() -> None:
    pool = make_pool(5)
    block = pool.blocks[1]
    pool.hold([block, block], LEASE)
    assert block.ref_cnt == 2
    pool.end_hold([block], LEASE)
    assert block not in pool.free_block_queue
    pool.end_hold([block], LEASE)
    assert block in pool.free_block_queue


def test_a_held_block_without_content_is_reused_first() -> None:
    pool = make_pool(5)
    pool.hold([pool.blocks[3]], QUARANTINE)
    pool.end_hold([pool.blocks[3]], QUARANTINE)
    assert ids(pool.free_block_queue) == [3, 1, 2, 4]


def test_a_pull_becomes_a_quarantine_without_a_gap() -> None:
    node = Node()
    node.manager.hold_blocks([4, 5], PULL)
    with unchanged(node.manager):
        node.manager.change_hold([4, 5], PULL, QUARANTINE)
        assert node.counts == {4: 1, 5: 1}
        assert node.manager.ledger().quarantine == 2
        node.manager.change_hold([5, 4], QUARANTINE, PULL)


def test_i7_every_block_counts_once_under_its_strongest_hold() -> None:
    node = Node()
    node.start("a", "ABCDEFGHIJKLMNOPQRST")  # blocks 1 to 5
    for block_ids, kind in (([1, 2, 3, 4], LEASE), ([2, 3, 8], PULL), ([3, 9], QUARANTINE)):
        node.manager.hold_blocks(block_ids, kind)
    ledger = node.manager.ledger()
    assert ledger == Ledger(quarantine=2, copy=0, pull=2, lease=2, request=1, free=3)
    assert ledger.total == 10


def test_i7_a_copied_block_counts_as_copied() -> None:
    pool = make_pool(5)
    pool.hold([pool.blocks[1]], PULL)
    pool.hold([pool.blocks[1]], COPY)
    assert pool.ledger() == Ledger(quarantine=0, copy=1, pull=0, lease=0, request=0, free=3)


def test_the_null_block_is_passed_over() -> None:
    node = Node()
    with unchanged(node.manager):
        node.manager.hold_blocks([0], LEASE)
        node.manager.change_hold([0], LEASE, PULL)
        node.manager.end_hold([0], PULL)


@pytest.mark.parametrize("kind", [HoldKind.REQUEST, HoldKind.COPY])
def test_the_manager_s_own_kinds_are_not_the_caller_s(kind: HoldKind) -> None:
    node = Node()
    node.manager.hold_blocks([1], LEASE)
    with unchanged(node.manager):
        calls: tuple[Callable[[], None], ...] = (
            lambda: node.manager.hold_blocks([1], kind),
            lambda: node.manager.end_hold([1], kind),
            lambda: node.manager.change_hold([1], kind, LEASE),
            lambda: node.manager.change_hold([1], LEASE, kind),
        )
        for call in calls:
            with pytest.raises(LocalMisuse, match=kind.name):
                call()


def test_holds_do_not_end_twice() -> None:
    node = Node()
    node.manager.hold_blocks([1, 2], LEASE)
    node.manager.end_hold([1], LEASE)
    for block_ids in ([1], [2, 1], [2, 2], [3]):
        with unchanged(node.manager), pytest.raises(DoubleFree):
            node.manager.end_hold(block_ids, LEASE)
        with unchanged(node.manager), pytest.raises(DoubleFree):
            node.manager.change_hold(block_ids, LEASE, PULL)
    with unchanged(node.manager), pytest.raises(DoubleFree, match="PULL"):
        node.manager.end_hold([2], PULL)


def test_blocks_of_another_pool_are_not_held() -> None:
    pool: BlockPool = make_pool(5)
    foreign = make_pool(5).blocks[1]
    with unchanged(pool):
        calls: tuple[Callable[[], None], ...] = (
            lambda: pool.hold([pool.blocks[1], foreign], LEASE),
            lambda: pool.end_hold([foreign], LEASE),
            lambda: pool.change_hold([foreign], LEASE, PULL),
        )
        for call in calls:
            with pytest.raises(ForeignBlock):
                call()
