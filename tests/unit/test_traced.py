"""The block manager that tells what it does: the document's numbers, and that it does no other."""

from pathlib import Path

import pytest

from kvdist.cache import KVCacheManager
from kvdist.cache.traced import TracedKVCacheManager
from kvdist.replay import trace as replay
from kvdist.trace.events import (
    Allocated,
    Count,
    Event,
    Evicted,
    Forgotten,
    Freed,
    Published,
    Waits,
)
from kvdist.trace.recorder import Recorder
from tests.make import Node, full, mamba, window

ORACLE = Path(__file__).parent.parent / "data" / "oracle"


class TracedNode(Node):
    """A node whose block manager is heard."""

    def _make_manager(self) -> KVCacheManager:
        self.events: list[Event] = []
        return TracedKVCacheManager(self.config, Recorder(self.events.append))

    def heard(self) -> list[Event]:
        """All since the last call."""
        heard = self.events.copy()
        self.events.clear()
        return heard

    def allocated(self) -> Allocated:
        (event,) = [event for event in self.heard() if isinstance(event, Allocated)]
        return event


# -- the document's walk-through; its block n is our n + 1 ----------------------------------------


def test_the_walk_through() -> None:
    node = TracedNode()
    r0 = node.start("R0", "ABCDEFGHIJKLMNO")
    taken, published = node.heard()
    assert isinstance(taken, Allocated)
    assert (taken.new, taken.free_before, taken.free_after) == (((1, 2, 3, 4),), 10, 6)
    assert taken.counts == (Count(target=4, owned=0, hits=0, idle_hits=0),)
    assert published == Published("R0", 0, 0, (1, 2, 3))  # M-O fill no block

    node.say(r0, "P")
    assert node.heard() == [Published("R0", 0, 3, (4,))]  # no new block for P
    node.say(r0, "Q")
    assert node.allocated().new == ((5,),)

    node.finish(r0)
    (freed,) = node.heard()
    assert freed == Freed("R0", "all", ((5, 4, 3, 2, 1),), ((1, 1, 1, 1, 1),), (4, 3, 2, 1))

    node.start("R1", "ABCDEFGHIJKLwxyz")
    event = node.allocated()
    assert (event.local_tokens, event.hit_limit) == (12, 15)
    assert (event.hit, event.hit_refs) == (((1, 2, 3),), ((0, 0, 0),))
    assert event.counts == (Count(target=4, owned=0, hits=3, idle_hits=3),)
    assert (event.needed, event.free_before, event.free_after) == (4, 10, 6)
    assert (event.new, event.evicted) == (((5,),), ())

    r2 = node.request("R2", [1000 + i for i in range(28)])
    assert node.admit(r2) is None
    assert node.heard() == [Waits("R2", "blocks", needed=7, free=6)]

    key = r0.block_hashes[3].hex()[:12]
    node.start("R3", [2000 + i for i in range(24)])
    event = node.allocated()
    assert event.new == ((6, 7, 8, 9, 10, 4),)
    assert event.evicted == (Evicted(4, key, gone=True),)


def test_two_idle_hits_and_two_more_are_four_of_three() -> None:
    """The document's own example: 2 <= 3 would be wrong, 2 + 2 > 3 is None."""
    node = TracedNode()
    node.finish(node.start("a", "ABCDEFGH"))
    node.start("b", [1000 + i for i in range(28)])
    assert node.pool.get_num_free_blocks() == 3
    node.heard()
    assert node.admit(node.request("c", "ABCDEFGHijklmnop")) is None
    assert node.heard() == [Waits("c", "blocks", needed=4, free=3)]
    assert node.pool.get_num_free_blocks() == 3


def test_ten_shared_tokens_are_a_hit_of_eight() -> None:
    node = TracedNode()
    node.start("a", "ABCDEFGHIJKLM")
    node.heard()
    second = node.request("b", "ABCDEFGHIJzzzz")
    node.admit(second)
    event = node.allocated()
    assert event.local_tokens == 8
    assert event.hit_refs == ((1, 1),)  # their owner still runs: nothing leaves the free queue
    assert event.counts[0].idle_hits == 0
    assert event.next_key == second.block_hashes[2].hex()[:12]


def test_the_last_token_is_always_computed() -> None:
    node = TracedNode()
    node.finish(node.start("a", "ABCDEFGH"))
    node.heard()
    node.start("b", "ABCDEFGH")
    event = node.allocated()
    assert (event.local_tokens, event.hit_limit) == (4, 7)


# -- more ------------------------------------------------------------------------------------------


def test_bytes_from_elsewhere_are_published_when_they_are_there() -> None:
    node = TracedNode()
    request = node.request("a", "ABCDEFGHIJ")
    node.admit(request, 0, num_external_computed_tokens=8, delay_cache_blocks=True)
    (event,) = node.heard()
    assert isinstance(event, Allocated)
    assert (event.external, event.new, event.external_tokens) == (((1, 2),), ((),), 8)
    node.manager.cache_blocks(request, 8)
    assert node.heard() == [Published("a", 0, 0, (1, 2))]


def test_a_free_waits_for_the_step_that_names_the_blocks() -> None:
    node = TracedNode()
    node.manager.new_step_starts(1)
    request = node.start("a", "ABCDEF")
    node.heard()
    node.finish(request)
    (freed,) = node.heard()
    assert freed == Freed("a", "all", ((2, 1),), ((1, 1),), (1,), after_step=1)
    node.manager.settle_step(1)
    node.manager.new_step_starts(2)
    again = node.start("b", "ABCDEF")
    node.manager.settle_step(2)
    node.heard()
    node.finish(again)
    (freed,) = node.heard()
    assert isinstance(freed, Freed)
    assert freed.after_step == 0


def test_what_a_window_leaves_behind() -> None:
    node = TracedNode(window(4))
    request = node.start("a", "ABCDEFGH")
    node.heard()
    node.say(request, "IJK")
    freed = [event for event in node.heard() if isinstance(event, Freed)]
    assert freed == [Freed("a", "window", ((1,),), ((1,),), (1,))]
    node.manager.remove_skipped_blocks(request, 11)
    assert [event for event in node.heard() if isinstance(event, Freed)] == [
        Freed("a", "window", ((2,),), ((1,),), (2,))
    ]


def test_what_is_forgotten_without_being_taken() -> None:
    node = TracedNode()
    node.manager.new_step_starts(1)
    request = node.start("a", "ABCDEFGH")
    node.heard()
    node.manager.evict_blocks([2])
    assert node.heard() == [Forgotten((2,), "evicted")]
    node.manager.withdraw_step(1)
    assert node.heard() == [Forgotten((1, 2), "withdrawn")]
    node.manager.settle_step(1)
    node.finish(request)
    node.finish(node.start("b", "MNOP"))
    node.heard()
    assert node.manager.reset_prefix_cache()
    (event,) = node.heard()
    assert isinstance(event, Forgotten)
    assert (event.why, len(event.blocks)) == ("reset", 1)


def test_who_owns_nothing_gives_nothing_back() -> None:
    node = TracedNode()
    node.manager.free(node.request("a", "ABCD"))
    assert node.heard() == []


def test_every_eviction_is_told() -> None:
    node = TracedNode(full(), window(6), num_blocks=17)
    told = 0
    for turn in range(40):
        request = node.request(f"r{turn}", "ABCDEFGHIJKLMNOP"[turn % 5 : 8 + turn % 9])
        assert node.admit(request) is not None
        node.finish(request)
        for event in node.heard():
            if isinstance(event, Allocated):
                told += len(event.evicted)
                assert all(lost.gone for lost in event.evicted)
    assert told == node.pool.num_evicted_blocks > 0


def test_states_are_heard_too() -> None:
    node = TracedNode(full(), mamba(), num_blocks=21)
    first = node.request("a", "ABCDEFGHIJ")
    assert node.admit(first, 8) is not None
    node.manager.new_step_starts()
    node.finish(first)
    node.heard()
    node.start("b", "ABCDEFGHxy")
    event = node.allocated()
    assert all(all(group) for group in (*event.new, *event.hit))  # null blocks are none
    assert event.local_tokens == 8
    assert [len(hit) for hit in event.hit] == [2, 1]  # all of the tokens, one state


@pytest.mark.parametrize(
    "name",
    [
        "a_walkthrough-bs4",
        "b_full-2",
        "c_evictable_hits-bs4",
        "e_sliding-1",
        "f_hybrid-3",
        "g_mamba-2",
        "h_chunked_local-1",
    ],
)
def test_who_is_heard_does_what_vllm_did(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    monkeypatch.setattr(
        replay,
        "KVCacheManager",
        lambda config: TracedKVCacheManager(config, Recorder(events.append)),
    )
    outcome = replay.replay_file(ORACLE / f"{name}.jsonl.gz")
    assert outcome.difference is None
    assert any(isinstance(event, Allocated) for event in events)
