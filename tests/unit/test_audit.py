"""The auditor sees each thing that can break, names it, and ends on every broken structure.

A healthy manager, one thing broken by hand, one finding with the right label (S4, S5, S22, I1-I3,
I6, I7).
"""

from collections import OrderedDict
from collections.abc import Callable

import pytest

from kvdist.cache import HoldKind, Request
from kvdist.cache.audit import audit, audit_progress
from kvdist.cache.block import KVCacheBlock
from kvdist.cache.free_queue import FreeKVCacheBlockQueue
from kvdist.cache.live_request import LiveRequest
from kvdist.errors import InvariantViolation
from kvdist.ids import BlockHash, GroupId
from tests.make import Node, full, key_of, make_blocks, mamba, window

#: An audit of ten blocks takes a millisecond; one that walks a ring ends by pytest's timeout.
pytestmark = pytest.mark.timeout(30)


def healthy() -> Node:
    """Block 1 is shared, some are free and cached, some held, and a free waits for a step."""
    node = Node(num_blocks=21)
    node.start("a", "ABCDEFGHIJ")  # 1, 2, 3
    node.start("b", "ABCDxyzw5678")  # 1, 4, 5
    node.finish(node.start("gone", "0123456789"))  # 6, 7, 8
    node.manager.hold_blocks([7, 15], HoldKind.LEASE)
    node.manager.hold_blocks([15], HoldKind.QUARANTINE)
    node.manager.new_step_starts(1)
    late = node.request("late", "lmnopq")
    node.admit(late, num_lookahead_tokens=6)
    node.finish(late)
    node.manager.check()
    return node


def findings(node: Node) -> list[str]:
    return audit(node.manager.coordinator, node.manager.live_requests)


def labels(node: Node) -> set[str]:
    return {finding.split(":")[0] for finding in findings(node)}


def table(node: Node, name: str = "a") -> list[object]:
    return node.manager.coordinator.managers[0].req_to_blocks[name]  # type: ignore[return-value]


Damage = Callable[[Node], object]


def set_count(block_id: int, ref_cnt: int) -> Damage:
    return lambda node: setattr(node.pool.blocks[block_id], "ref_cnt", ref_cnt)


def swap_places(node: Node) -> None:
    blocks = node.pool.blocks
    blocks[1], blocks[2] = blocks[2], blocks[1]


def take_from_the_queue(node: Node) -> None:
    node.pool.free_block_queue.popleft()


def put_a_used_block_into_the_queue(node: Node) -> None:
    node.pool.free_block_queue.append(node.pool.blocks[2])


def put_a_free_block_in_twice(node: Node) -> None:
    node.pool.free_block_queue.append(node.pool.blocks[12])


def put_the_null_block_into_the_queue(node: Node) -> None:
    node.pool.free_block_queue.append(node.pool.null_block)


def put_a_stranger_into_the_queue(node: Node) -> None:
    node.pool.free_block_queue.append(make_blocks(13)[12])


def count_the_queue_wrongly(node: Node) -> None:
    node.pool.free_block_queue.num_free_blocks += 1


def empty_the_queue(node: Node) -> None:
    node.pool.free_block_queue = FreeKVCacheBlockQueue()


def drop_a_table(node: Node) -> None:
    del node.manager.coordinator.managers[0].req_to_blocks["a"]


def drop_a_table_s_last_block(node: Node) -> None:
    table(node).pop()


def use_a_block_twice_in_a_table(node: Node) -> None:
    table(node).append(table(node)[0])
    node.pool.blocks[1].ref_cnt += 1


def put_a_free_block_into_a_table(node: Node) -> None:
    table(node).append(node.pool.blocks[12])


def forget_who_lives(node: Node) -> None:
    del node.manager.live_requests["a"]


def drop_a_hold(node: Node) -> None:
    node.pool.holds.remove([node.pool.blocks[7]], HoldKind.LEASE)


def add_a_hold(node: Node) -> None:
    node.pool.holds.add([node.pool.blocks[2]], HoldKind.PULL)


def settle_behind_the_manager_s_back(node: Node) -> None:
    node.pool.steps.settle(1)


def drop_a_key(node: Node) -> None:
    node.pool.cached_block_hash_to_block[0].pop(key(node, 2), node.pool.blocks[2])


def drop_a_block_s_key(node: Node) -> None:
    node.pool.blocks[2].block_hash = None


def give_a_block_another_key(node: Node) -> None:
    node.pool.blocks[2].block_hash = key_of(1)


def give_a_key_another_block(node: Node) -> None:
    node.pool.cached_block_hash_to_block[0].oldest[key(node, 2)] = node.pool.blocks[12]


def exchange_two_keys(node: Node) -> None:
    """Map and metadata agree; only the content doesn't."""
    first, second = node.pool.blocks[1], node.pool.blocks[2]
    oldest = node.pool.cached_block_hash_to_block[0].oldest
    oldest[key(node, 1)], oldest[key(node, 2)] = second, first
    first.block_hash, second.block_hash = second.block_hash, first.block_hash


def give_a_block_another_group(node: Node) -> None:
    node.pool.blocks[2].group_id = GroupId(1)


def cache_the_null_block(node: Node) -> None:
    null = node.pool.null_block
    null.block_hash = key_of(1)
    node.pool.cached_block_hash_to_block[0].insert(key_of(1), null)


def leave_a_further_key_behind(node: Node) -> None:
    node.pool.further_keys[node.pool.blocks[2]] = [key_of(1)]


def copies_of(node: Node, block_id: int) -> OrderedDict[KVCacheBlock, None]:
    return OrderedDict.fromkeys([node.pool.blocks[block_id]])


def leave_a_tail_behind(node: Node) -> None:
    node.pool.tail_tokens[node.pool.blocks[12]] = 3


def leave_an_empty_list_of_copies(node: Node) -> None:
    node.pool.cached_block_hash_to_block[0].copies[key(node, 2)] = OrderedDict()


def list_the_oldest_as_a_copy(node: Node) -> None:
    node.pool.cached_block_hash_to_block[0].copies[key(node, 2)] = copies_of(node, 2)


def list_a_copy_without_an_oldest(node: Node) -> None:
    node.pool.cached_block_hash_to_block[0].copies[key_of(1)] = copies_of(node, 2)


def publish_more_than_is_known(node: Node) -> None:
    node.manager.coordinator.managers[0].num_cached_block["a"] = 9


def forget_that_a_cached_block_was_taken(node: Node) -> None:
    node.pool.blocks[2].generation = 0


def publish_for_nobody(node: Node) -> None:
    node.manager.coordinator.managers[0].num_cached_block["nobody"] = 1


def key(node: Node, block_id: int) -> BlockHash:
    found = node.pool.blocks[block_id].block_hash
    assert found is not None
    return found


DAMAGES: list[tuple[str, Damage]] = [
    ("S5", swap_places),
    ("S5", set_count(0, 0)),
    ("S5", set_count(0, 1)),
    ("S5", lambda node: setattr(node.pool.blocks[3], "block_id", 4)),
    ("S5", lambda node: setattr(node.pool, "null_block", node.pool.blocks[3])),
    ("I1", set_count(1, 1)),
    ("I1", set_count(1, 3)),
    ("I1", set_count(2, 0)),
    ("I1", set_count(2, -1)),
    ("I1", set_count(7, 2)),
    ("I1", set_count(12, 1)),
    ("I1", take_from_the_queue),
    ("I1", put_a_used_block_into_the_queue),
    ("I1", put_a_free_block_in_twice),
    ("I1", put_the_null_block_into_the_queue),
    ("I1", put_a_stranger_into_the_queue),
    ("I1", count_the_queue_wrongly),
    ("I1", empty_the_queue),
    ("I1", drop_a_table),
    ("I1", drop_a_table_s_last_block),
    ("I1", put_a_free_block_into_a_table),
    ("I1", forget_who_lives),
    ("I1", drop_a_hold),
    ("I1", add_a_hold),
    ("I1", settle_behind_the_manager_s_back),
    ("S4", use_a_block_twice_in_a_table),
    ("I2", drop_a_key),
    ("I2", drop_a_block_s_key),
    ("I2", give_a_block_another_key),
    ("I2", give_a_key_another_block),
    ("I2", exchange_two_keys),
    ("I2", give_a_block_another_group),
    ("I2", cache_the_null_block),
    ("I2", leave_a_further_key_behind),
    ("I2", leave_a_tail_behind),
    ("I2", forget_that_a_cached_block_was_taken),
    ("S22", leave_an_empty_list_of_copies),
    ("S22", list_the_oldest_as_a_copy),
    ("S22", list_a_copy_without_an_oldest),
    ("I6", publish_more_than_is_known),
    ("I6", publish_for_nobody),
    ("I7", count_the_queue_wrongly),
    ("I7", take_from_the_queue),
]


def name_of(damage: object) -> str:
    return getattr(damage, "__name__", str(damage))


def test_a_healthy_manager_has_no_findings() -> None:
    assert findings(healthy()) == []


@pytest.mark.parametrize(("label", "damage"), DAMAGES, ids=name_of)
def test_one_thing_broken_is_one_label_named(label: str, damage: Damage) -> None:
    node = healthy()
    damage(node)
    assert label in labels(node)
    with pytest.raises(InvariantViolation, match=label):
        node.manager.check()


def test_the_message_lists_every_finding() -> None:
    node = healthy()
    set_count(1, 7)(node)
    drop_a_key(node)
    with pytest.raises(InvariantViolation) as caught:
        node.manager.check()
    assert {"I1", "I2"} <= {part.split(":")[0] for part in str(caught.value).split("; ")}
    assert caught.value.blame == "us"


def test_an_audit_changes_nothing() -> None:
    node = healthy()
    set_count(1, 7)(node)
    assert findings(node) == findings(node)


# -- the two arrays of the queue -----------------------------------------------------------------


def arrays(node: Node) -> list[list[object]]:
    """The queue's arrays, with blocks in both."""
    queue = node.pool.free_block_queue
    return [queue._front, queue._back]  # type: ignore[list-item]


QUEUE_DAMAGES: dict[str, Callable[[list[object]], object]] = {
    "a hole": lambda array: array.__setitem__(-1, None),
    "holes only": lambda array: array.__setitem__(slice(None), [None] * len(array)),
    "garbage": lambda array: array.__setitem__(-1, "garbage"),
    "a number": lambda array: array.__setitem__(-1, 7),
    "more garbage": lambda array: array.extend(["garbage"] * 1_000),
    "a million times one block": lambda array: array.extend([array[-1]] * 1_000_000),
    "one block everywhere": lambda array: array.__setitem__(slice(None), [array[-1]] * len(array)),
    "turned round": lambda array: array.reverse(),
    "too short": lambda array: array.pop(),
    "empty": lambda array: array.clear(),
    "a list in the list": lambda array: array.append(array),
    "doubled": lambda array: array.extend(list(array)),
}


@pytest.mark.parametrize("which", [0, 1], ids=["front", "back"])
@pytest.mark.parametrize("damage", QUEUE_DAMAGES.values(), ids=QUEUE_DAMAGES.keys())
def test_a_broken_array_is_found_and_does_not_hold_the_audit_up(
    damage: Callable[[list[object]], object], which: int
) -> None:
    node = healthy()
    node.manager.settle_step(1)
    array = arrays(node)[which]
    assert len([block for block in array if block is not None]) > 1
    damage(array)
    assert "I1" in labels(node)
    with pytest.raises(InvariantViolation, match="I1"):
        node.manager.check()


@pytest.mark.parametrize("name", ["_head", "_dead"])
@pytest.mark.parametrize("value", [-3, 1, 5, 10**9])
def test_a_broken_count_of_the_arrays(name: str, value: int) -> None:
    node = healthy()
    queue = node.pool.free_block_queue
    setattr(queue, name, getattr(queue, name) + value)
    assert "I1" in labels(node)


# -- other structures that contain what they should not ------------------------------------------


@pytest.mark.parametrize("garbage", [None, "garbage", 7, [1]])
def test_garbage_in_a_table(garbage: object) -> None:
    node = healthy()
    table(node).append(garbage)
    with pytest.raises(InvariantViolation):
        node.manager.check()


def test_a_very_long_table() -> None:
    node = healthy()
    table(node).extend(table(node) * 100_000)
    assert {"I1", "S4"} <= labels(node)


def test_many_copies_of_one_key() -> None:
    node = healthy()
    copies = node.pool.cached_block_hash_to_block[0].copies
    copies[key(node, 2)] = OrderedDict.fromkeys(make_blocks(100_000))
    assert "I2" in labels(node)


# -- I3, which compares the scheduler's claim ----------------------------------------------------


def progress(node: Node, *requests: Request) -> list[str]:
    live = {request.request_id: LiveRequest(request) for request in requests}
    return audit_progress(node.manager.coordinator, live)


def test_i3_tokens_without_a_block_are_found() -> None:
    node = Node()
    request = node.start("a", "ABCDEFGHIJ")
    assert progress(node, request) == []
    request.num_computed_tokens = 12
    assert progress(node, request) == []
    request.num_computed_tokens = 13
    (finding,) = progress(node, request)
    assert finding.startswith("I3: request a: 13 tokens computed")
    with pytest.raises(InvariantViolation, match="I3"):
        node.manager.check()


def test_i3_a_window_needs_its_suffix_only() -> None:
    node = Node(full(), window(5))
    request = node.start("a", "ABCDEFGHIJKLMNOP")
    node.manager.remove_skipped_blocks(request, 16)
    assert node.table(request, 1) == [0, 0, 0, 8]
    assert progress(node, request) == []
    request.num_computed_tokens = 11  # as if the steps in between had never been
    assert [finding.split("but ")[1] for finding in progress(node, request)] == [
        "group 1 has no block at index 1",  # the first that is missing is enough
    ]


def test_i3_a_state_has_to_be_there() -> None:
    node = Node(mamba())
    request = node.start("a", "ABCDEFGHIJ")
    assert node.table(request) == [0, 0, 1]
    assert progress(node, request) == []
    request.num_computed_tokens = 8
    assert len(progress(node, request)) == 1


def test_i3_stands_apart_from_the_audit_after_each_change() -> None:
    node = Node()
    request = node.start("a", "ABCDEFGHIJ")
    request.num_computed_tokens = 40
    assert findings(node) == []
