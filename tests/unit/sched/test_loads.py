"""Loads under way and the holds that go with them."""

from kvdist.cache import HoldKind
from kvdist.ids import BlockId
from kvdist.sched.loads import Loads
from kvdist.sched.sequence import Sequence, SequenceStatus
from tests.make import Node


class Loading:
    """A load of `num_external` tokens behind what is cached of the prompt."""

    def __init__(self, prompt: list[int], num_external: int) -> None:
        self.node = Node()
        self.node.finish(self.node.start("before", prompt[:5]))
        self.loads = Loads(self.node.manager)
        self.request = self.node.request("r", prompt)
        self.sequence = Sequence(self.request, max_len=99, arrival=1)
        hit = self.node.manager.get_computed_blocks(self.request)
        self.node.manager.allocate_slots(
            self.request, 0, hit, num_external_computed_tokens=num_external, delay_cache_blocks=True
        )
        self.loads.begin(self.sequence, hit, num_external)

    @property
    def held(self) -> tuple[int, int, int, int]:
        """Blocks under pull, quarantine, request; and free ones."""
        ledger = self.node.manager.ledger()
        return ledger.pull, ledger.quarantine, ledger.request, ledger.free


def test_only_what_is_loaded_is_held() -> None:
    loading = Loading(list(range(13)), 9)
    assert loading.held == (3, 0, 1, 6)
    assert "r" in loading.loads and len(loading.loads) == 1
    assert list(loading.loads.sequences()) == [loading.sequence]


def test_loaded_whole_but_the_last_token_is_computed_again() -> None:
    """T8: the block that it writes is published by its own step."""
    loading = Loading(list(range(12)), 8)
    load = loading.loads.loaded("r")
    assert load is not None and load.num_tokens == 11
    assert loading.held == (0, 0, 3, 7)
    assert len(loading.node.cached) == 2
    assert loading.loads.loaded("r") is None


def test_a_load_is_spoilt_by_what_it_adopted_and_its_own_bytes_are_not() -> None:
    loading = Loading(list(range(13)), 9)
    loading.loads.spoil({BlockId(9)})
    table = loading.node.table(loading.request)
    loading.loads.spoil({BlockId(table[0])})
    load = loading.loads.loaded("r")
    assert load is not None and load.spoilt
    assert loading.node.cached == table[:3]


def test_what_failed_is_in_quarantine_until_it_is_quiet() -> None:
    loading = Loading(list(range(13)), 9)
    load = loading.loads.failed("r")
    assert load is not None
    loading.node.finish(loading.request)
    assert loading.held == (0, 3, 0, 7)
    assert loading.loads.failed("r") is None
    assert loading.loads.quiet(load.block_ids)
    assert loading.held == (0, 0, 0, 10)
    assert not loading.loads.quiet(load.block_ids), "said twice"


def test_who_has_ended_waits_for_nothing() -> None:
    loading = Loading(list(range(13)), 9)
    loading.sequence.status = SequenceStatus.FINISHED_ABORTED
    assert list(loading.loads.sequences()) == []


def test_lent_and_returned() -> None:
    node = Node()
    loads, request = Loads(node.manager), node.start("r", range(8))
    blocks = node.manager.get_block_ids("r")[0]
    loads.lend(blocks)
    node.finish(request)
    assert node.manager.ledger().lease == 2
    assert loads.returned(blocks[:1])
    assert not loads.returned(blocks), "one of them is back already: nothing changes"
    assert node.manager.ledger().lease == 1
    assert loads.returned(blocks[1:])
    assert not loads.returned([BlockId(10**6)])
    assert node.manager.ledger().free == 10


def test_holds_of_others_are_left_alone() -> None:
    node = Node()
    loads = Loads(node.manager)
    node.manager.hold_blocks([1], HoldKind.PULL)
    assert not loads.quiet([BlockId(1)])
    assert not loads.returned([BlockId(1)])
    assert node.manager.ledger().pull == 1
