"""What the world is told: content stored, removed, all cleared, in order and without gaps."""

import pytest

from kvdist.cache import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
    ExtraKeys,
    HoldKind,
    LoRAKey,
    MultiModalItem,
    Request,
)
from kvdist.cache.events import EventLog
from tests.make import GROUP, Node, full, key_of, mamba, tokens_of, window


@pytest.fixture
def node() -> Node:
    return Node(enable_events=True)


def stored(event: CacheEvent) -> BlockStored:
    assert isinstance(event, BlockStored)
    return event


def only_stored(node: Node) -> BlockStored:
    (event,) = node.manager.take_events()
    return stored(event)


# -- the log alone -------------------------------------------------------------------------------


def test_events_are_taken_once_and_numbered_without_gaps() -> None:
    log = EventLog()
    log.removed(GROUP, [key_of(1)])
    log.cleared()
    assert log.take() == [BlockRemoved(0, GROUP, (key_of(1),)), AllBlocksCleared(1)]
    assert log.take() == []
    log.stored(GROUP, [key_of(1)], None, [1, 2], 2, None, [None])
    assert log.take() == [BlockStored(2, GROUP, (key_of(1),), None, (1, 2), 2, None, (None,))]
    assert log.next_seq == 3


def test_beyond_the_limit_the_oldest_go_and_the_gap_can_be_seen() -> None:
    log = EventLog(limit=3)
    for _ in range(5):
        log.cleared()
    assert [event.seq for event in log.take()] == [2, 3, 4]
    log.cleared()
    assert [event.seq for event in log.take()] == [5]


# -- from the manager ----------------------------------------------------------------------------


def test_off_by_default() -> None:
    node = Node()
    node.start("a", "ABCDEFGH")
    assert node.manager.take_events() == []


def test_an_admission_tells_its_full_blocks_as_one_run(node: Node) -> None:
    request = node.start("a", "ABCDEFGHIJ")
    event = only_stored(node)
    assert event == BlockStored(
        seq=0,
        group_id=GROUP,
        block_hashes=tuple(request.block_hashes[:2]),
        parent_block_hash=None,
        token_ids=tuple(tokens_of("ABCDEFGH")),
        block_size=4,
        lora_name=None,
        extra_keys=(None, None),
    )


def test_the_parent_is_the_key_right_before(node: Node) -> None:
    request = node.start("a", "ABCDEF")
    only_stored(node)
    node.say(request, "GH")
    event = only_stored(node)
    assert event.block_hashes == (request.block_hashes[1],)
    assert event.parent_block_hash == request.block_hashes[0]
    assert event.token_ids == tuple(tokens_of("EFGH"))


def test_a_copy_of_known_content_is_no_event(node: Node) -> None:
    first = node.start("a", "ABCDEFGH")
    only_stored(node)
    second = node.start("b", "ABCDEFGH")
    assert node.table(second) == [1, 3]  # its own copy of the last block
    assert node.manager.take_events() == []
    node.finish(first, second)
    node.manager.evict_blocks([2])
    assert node.manager.take_events() == []  # a copy is left
    node.manager.evict_blocks([3])
    (event,) = node.manager.take_events()
    assert event == BlockRemoved(1, GROUP, (first.block_hashes[1],))


def test_a_run_is_cut_where_content_was_known(node: Node) -> None:
    node.start("a", "ABCDEFGHIJKL")
    first = only_stored(node)
    node.manager.evict_blocks([1])  # the first block is forgotten, the others stay
    node.manager.take_events()
    request = node.start("b", "ABCDEFGHIJKLMNOP")
    events = [stored(event) for event in node.manager.take_events()]
    assert [event.block_hashes for event in events] == [
        first.block_hashes[:1],
        tuple(request.block_hashes[3:]),
    ]
    assert [event.parent_block_hash for event in events] == [None, first.block_hashes[2]]
    assert [event.token_ids for event in events] == [
        tuple(tokens_of("ABCD")),
        tuple(tokens_of("MNOP")),
    ]


def test_s21_taking_a_block_removes_its_content(node: Node) -> None:
    old = node.start("a", "ABCDEFGH")
    node.finish(old)
    node.manager.take_events()
    node.start("b", [ord("0") + i % 10 for i in range(36)])  # nine blocks: one of them was cached
    removed, added = node.manager.take_events()
    assert removed == BlockRemoved(1, GROUP, (old.block_hashes[1],))
    assert isinstance(added, BlockStored)


def test_an_eviction_tells_each_key(node: Node) -> None:
    request = node.start("a", "ABCDEFGH")
    node.manager.take_events()
    node.manager.evict_blocks([2, 1, 2, 5])
    events = node.manager.take_events()
    assert [event.seq for event in events] == [1, 2]
    assert [e.block_hashes for e in events if isinstance(e, BlockRemoved)] == [
        (request.block_hashes[1],),
        (request.block_hashes[0],),
    ]


def test_a_reset_is_one_event(node: Node) -> None:
    request = node.start("a", "ABCDEFGH")
    node.manager.take_events()
    assert not node.manager.reset_prefix_cache()
    assert node.manager.take_events() == []
    node.finish(request)
    assert node.manager.reset_prefix_cache()
    assert node.manager.take_events() == [AllBlocksCleared(1)]


def test_a_withdrawn_step_takes_back_what_it_told(node: Node) -> None:
    node.manager.new_step_starts(1)
    request = node.start("a", "ABCDEFGH")
    node.manager.take_events()
    node.manager.withdraw_step(1)
    gone = [
        key
        for event in node.manager.take_events()
        if isinstance(event, BlockRemoved)
        for key in event.block_hashes
    ]
    assert sorted(gone) == sorted(request.block_hashes)


def test_s15_nothing_is_told_before_external_content_is_verified(node: Node) -> None:
    request = node.request("a", "ABCDEFGHIJ")
    node.admit(request, 0, num_external_computed_tokens=8, delay_cache_blocks=True)
    assert node.manager.take_events() == []
    node.manager.cache_blocks(request, 8)
    assert only_stored(node).block_hashes == tuple(request.block_hashes[:2])


def test_extra_keys_are_told_with_the_blocks_they_belong_to(node: Node) -> None:
    keys = ExtraKeys(
        cache_salt="s", lora=LoRAKey("l", "p"), mm_items=(MultiModalItem("img", 6, 4),)
    )
    node.start("a", "ABCDEFGHIJKL", extra_keys=keys)
    event = only_stored(node)
    assert event.lora_name == "l"
    assert event.extra_keys == (
        (("lora", "l", "p"), ("cache_salt", "s")),
        (("mm", "img", 2),),
        (("mm", "img", -2),),
    )


def test_each_group_tells_its_own() -> None:
    node = Node(full(8), window(8), enable_events=True)
    request = node.start("a", "ABCDEFGHIJKLMNOP")
    events = {e.group_id: e for e in map(stored, node.manager.take_events())}
    assert [events[group].block_size for group in sorted(events)] == [8, 4]
    assert events[GROUP].block_hashes == tuple(request.block_hashes[1::2])
    assert len(events[GROUP].token_ids) == 16


def test_s10_a_partial_entry_is_told_from_its_block_s_start() -> None:
    node = Node(full(), mamba(16), enable_events=True, enable_partial_hits=True)
    request = node.start("a", "ABCDEFGHIJ")
    # The state after all ten tokens is no checkpoint: the one after eight is.
    assert {stored(event).group_id for event in node.manager.take_events()} == {0}
    node.finish(request)
    other = node.request("b", "QRSTUVWXYZ")
    node.admit(other, 8)
    events = [stored(event) for event in node.manager.take_events()]
    (state,) = [event for event in events if event.group_id == 1]
    assert state.block_hashes == (other.block_hashes[1],)
    assert state.block_size == 8
    assert state.token_ids == tuple(tokens_of("QRSTUVWX"))
    assert state.parent_block_hash is None


def test_a_listener_that_replays_the_events_knows_what_can_be_found(node: Node) -> None:
    known: set[bytes] = set()
    seqs: list[int] = []

    def listen() -> None:
        for event in node.manager.take_events():
            seqs.append(event.seq)
            if isinstance(event, BlockStored):
                assert known.isdisjoint(event.block_hashes)
                known.update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                assert known.issuperset(event.block_hashes)
                known.difference_update(event.block_hashes)
            else:
                known.clear()
        assert known == {key for _, key, _ in node.pool.cached_blocks()}

    running: list[Request] = []
    for turn in range(60):
        request = node.request(f"r{turn}", "ABCDEFGHIJKL"[: 4 + turn % 9] + "xyz0123"[turn % 3 :])
        while node.admit(request) is None:
            node.finish(running.pop(0))
            listen()
        running.append(request)
        listen()
        if turn % 11 == 10:
            node.manager.evict_blocks([1 + turn % 10])
        if turn % 7 == 6:
            node.manager.hold_blocks([turn % 7], HoldKind.LEASE)
            node.manager.end_hold([turn % 7], HoldKind.LEASE)
        listen()
    node.finish(*running)
    assert node.manager.reset_prefix_cache()
    listen()
    assert seqs == list(range(len(seqs)))
