"""The seven breakpoints, with the numbers of one request."""

import pytest

from kvdist.cache import KVCacheSpec
from kvdist.sched.budget import SchedulerConfig
from kvdist.trace.explain import explain
from tests.make import full, mamba, window
from tests.rig import Rig

TITLES = [
    "1 KVCacheManager.get_computed_blocks",
    "2 get_num_blocks_to_allocate",
    "3 BlockPool.touch",
    "4 BlockPool.get_new_blocks",
    "5 SingleTypeKVCacheManager.free",
    "6 the worker's state of the request",
    "7 commit_block_table and compute_slot_mapping",
]


def rig(*specs: KVCacheSpec, num_blocks: int = 10) -> Rig:
    settings = SchedulerConfig(max_num_batched_tokens=16, max_steps_in_flight=1)
    return Rig(*specs, settings=settings, num_blocks=num_blocks + 1, traced=True)


def chapters(rig: Rig, name: str) -> dict[int, list[str]]:
    """What is said at each breakpoint."""
    title, *lines = explain(rig.entries, name)
    assert title.startswith(f"{name}: ")
    assert [line for line in lines if not line.startswith(" ")] == TITLES
    found: dict[int, list[str]] = {}
    for line in lines:
        if line.startswith(" "):
            found[len(found)].append(line.strip())
        else:
            found[len(found) + 1] = []
    return found


@pytest.fixture
def walk() -> Rig:
    """The document's walk-through: R0 of 15 tokens says P and Q, R1 shares 12 of them."""
    node = rig()
    node.add(list(range(1, 16)), max_new_tokens=3)
    node.run_to_the_end()
    node.add([*range(1, 13), 90, 91, 92, 93], max_new_tokens=1)
    node.run_to_the_end()
    return node


def test_the_walk_through_at_seven_breakpoints(walk: Rig) -> None:
    key = walk.sequences["client-2"].request.block_hashes[3].hex()[:12]
    assert chapters(walk, "client-2") == {
        1: [
            "step 4: 12 tokens hit, of at most 15 = num_tokens - 1: blocks 1-3, published by "
            "client-1; it ends before token 12, since a hit has at most 15 tokens, the last is "
            "computed for its logits"
        ],
        2: [
            "step 4: target 4, owned 0, hit 3, evictable hits 3; lookahead 0: 4 needed + 0 kept "
            "<= 10 free"
        ],
        3: ["step 4: blocks 1-3 ref_cnt 0 -> 1; 3 left the free queue: 10 -> 7 free"],
        4: ["step 4: block 5, none of them had a key; 6 free"],
        5: [
            "in this order: blocks 5, 3, 2, 1 ref_cnt 1 -> 0; free queue: "
            "blocks 5, 3, 2, 1 to the end, hashed"
        ],
        6: ["step 4: new, with its whole table [[1, 2, 3, 5]]"],
        7: ["step 4: row [[1, 2, 3, 5]], tokens 12-15 -> slots 20-23"],
    }
    assert key  # it is full, so it has one


def test_who_came_first(walk: Rig) -> None:
    found = chapters(walk, "client-1")
    assert found[2] == [
        "step 1: target 4, owned 0, hit 0, evictable hits 0; lookahead 0: 4 needed + 0 kept <= "
        "10 free",
        "step 3: target 5, owned 4, hit 0, evictable hits 0; lookahead 0: 1 needed + 0 kept <= "
        "6 free",
    ]
    assert found[3] == ["nothing in this trace"]
    assert found[5] == [
        "in this order: blocks 5, 4, 3, 2, 1 ref_cnt 1 -> 0; free queue: block 5 to the front, "
        "unhashed; blocks 4, 3, 2, 1 to the end, hashed"
    ]
    assert found[6] == [
        "step 1: new, with its whole table [[1, 2, 3, 4]]",
        "step 3: only what was appended, [[5]]",
        "1 step without a change of its table",
    ]
    assert found[7][1:] == [
        "step 2: row [[1, 2, 3, 4]], token 15 -> slot 19",
        "step 3: row [[1, 2, 3, 4, 5]], token 16 -> slot 20",
    ]


def test_a_block_that_had_a_key(walk: Rig) -> None:
    old = walk.sequences["client-1"].request.block_hashes[3].hex()[:12]
    walk.add([70] * 28, max_new_tokens=1)
    walk.run_to_the_end()
    taken = chapters(walk, "client-3")[4]
    assert f"block 4 was client-1's under {old}, whose key went first" in " ".join(taken)


def test_what_was_refused() -> None:
    node = rig(num_blocks=6)
    node.add([1] * 7, max_new_tokens=14)
    node.add([2] * 7, max_new_tokens=14)
    node.run_to_the_end()
    found = chapters(node, "client-1")
    assert "1 needed + 0 kept > 0 free: None, and nothing has changed" in found[2]
    assert "computed anew 1 time" in explain(node.entries, "client-2")[0]


def test_a_shared_block_is_kept_by_others() -> None:
    node = rig()
    node.add([1] * 8 + [2], max_new_tokens=9)
    node.step()
    node.step()
    node.add([1] * 8, max_new_tokens=1)
    node.run_to_the_end()
    found = chapters(node, "client-2")
    assert "block 1 ref_cnt 1 -> 2; 0 left the free queue" in found[3][0]
    assert "block 1 ref_cnt 2 -> 1; free queue: " in found[5][0]


def test_several_groups() -> None:
    node = rig(full(), window(4), mamba(), num_blocks=40)
    node.add([1] * 16, max_new_tokens=4)
    node.run_to_the_end()
    found = chapters(node, "client-1")
    assert found[2][0].startswith("step 1: group 0: target 4, owned 0")
    assert "(behind the window)" in found[5][0]
    assert found[7][0].count("slots") == 2  # a state has no slots


def test_without_a_lookup() -> None:
    node = rig()
    node.add([1] * 9, max_new_tokens=1, skip_reading_prefix_cache=True)
    node.run_to_the_end()
    assert chapters(node, "client-1")[1] == ["step 1: no lookup"]


def test_of_many_the_first_and_the_last() -> None:
    node = rig(num_blocks=20)
    node.add([1] * 4, max_new_tokens=30)
    node.run_to_the_end()
    *_, folded, last = chapters(node, "client-1")[7]
    assert folded == "... 25 more like these"
    assert last.startswith("step 30: ")
