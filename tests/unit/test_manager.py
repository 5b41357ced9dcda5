"""What a scheduler sees: look up, allocate, publish, free (S1, S9, S12, S15-S19, S22, S23)."""

import pytest

from kvdist.cache import ExtraKeys, HoldKind, KVCacheSpec, LoRAKey, Request
from kvdist.errors import LocalMisuse
from tests.make import Node, full, mamba, window
from tests.unit.snapshot import unchanged

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


# -- lookup --------------------------------------------------------------------------------------


def test_s9_a_lookup_changes_nothing() -> None:
    node = Node()
    node.finish(node.start("a", LETTERS[:16]))
    with unchanged(node.manager):
        for n in (1, 5, 16, 20):
            node.hit("b", LETTERS[:n])


def test_s6_other_keys_do_not_hit() -> None:
    node = Node()
    node.start("a", LETTERS[:16])
    for keys in (ExtraKeys(cache_salt="s"), ExtraKeys(lora=LoRAKey("s"))):
        assert node.hit("b", LETTERS[:16], extra_keys=keys) == (0,)


def test_who_does_not_read_the_cache_still_fills_it() -> None:
    node = Node()
    node.start("a", LETTERS[:8])
    assert node.hit("b", LETTERS[:9], skip_reading_prefix_cache=True) == (0,)
    node.start("b", LETTERS[8:16], skip_reading_prefix_cache=True)
    assert node.hit("c", LETTERS[8:17]) == (8, 3, 4)


# -- allocation ----------------------------------------------------------------------------------


def test_s12_the_document_s_example_two_and_two_are_more_than_three() -> None:
    node = Node(num_blocks=6)
    node.finish(node.start("a", LETTERS[:8]))
    node.start("b", range(8))
    assert node.queue == [5, 2, 1]
    request = node.request("c", LETTERS[:16])
    assert node.manager.get_computed_blocks(request).num_tokens == 8
    with unchanged(node.manager, request):
        assert node.admit(request) is None  # two hits that are idle, two new ones, three free
    assert node.admit(node.request("d", LETTERS[:12])) is not None


def test_s12_hits_that_are_in_use_take_nothing() -> None:
    node = Node(num_blocks=6)
    node.start("a", LETTERS[:8])
    request = node.request("c", LETTERS[:20])
    assert node.admit(request) is not None
    assert node.table(request) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("specs", [(full(),), (window(9),), (full(), window(9))])
def test_s12_what_does_not_fit_changes_nothing(specs: tuple[KVCacheSpec, ...]) -> None:
    node = Node(*specs, num_blocks=9)
    node.finish(node.start("a", LETTERS[:16]))
    node.manager.hold_blocks([7, 8], HoldKind.LEASE)
    for n in range(17, 60):
        request = node.request("b", (LETTERS * 3)[:n])
        with unchanged(node.manager, request):
            assert node.admit(request, num_lookahead_tokens=40) is None


def test_a_new_request_needs_no_lookup() -> None:
    node = Node()
    request = node.request("a", LETTERS[:5])
    new = node.manager.allocate_slots(request, 5)
    assert new is not None and new.get_block_ids() == ([1, 2],)


def test_a_prompt_in_chunks() -> None:
    node = Node()
    request = node.request("a", LETTERS[:14])
    tables = []
    for size in (5, 3, 4, 2):
        if request.num_computed_tokens:
            node.compute(request, size)
        else:
            node.admit(request, size)
        tables.append((node.table(request), node.cached))
    assert tables == [
        ([1, 2], [1]),
        ([1, 2], [1, 2]),
        ([1, 2, 3], [1, 2, 3]),
        ([1, 2, 3, 4], [1, 2, 3]),
    ]


def test_a_preempted_request_comes_back_to_its_own_blocks() -> None:
    node = Node()
    request = node.start("a", LETTERS[:10])
    node.preempt(request)
    assert node.queue == [3, 4, 5, 6, 7, 8, 9, 10, 2, 1]
    hit = node.admit(request)
    assert hit is not None and hit.num_tokens == 8
    assert node.table(request) == [1, 2, 3]


# -- the gates (S17) -----------------------------------------------------------------------------


def test_s17_a_reservation_has_to_stay_free() -> None:
    node = Node()
    request = node.request("a", LETTERS[:24])  # six blocks of ten
    with unchanged(node.manager, request):
        assert node.admit(request, reserved_blocks=5) is None
    assert node.admit(request, reserved_blocks=4) is not None


def test_s17_the_gate_asks_for_the_whole_sequence() -> None:
    node = Node()
    node.start("a", LETTERS[:24])
    request = node.request("b", range(20))
    hit = node.manager.get_computed_blocks(request)
    with unchanged(node.manager, request):
        assert node.manager.allocate_slots(request, 4, hit, full_sequence_must_fit=True) is None
    assert node.manager.allocate_slots(request, 4, hit) is not None


def test_s17_the_gate_takes_hits_into_account() -> None:
    node = Node()
    node.start("a", LETTERS[:24])
    request = node.request("b", LETTERS[:24] + "0123456789012345")
    assert node.admit(request, 4, full_sequence_must_fit=True) is not None


def test_s17_a_window_counts_at_its_largest_only() -> None:
    node = Node(window(5), max_in_flight_tokens=8)
    request = node.request("a", range(200))
    assert node.admit(request, 8, full_sequence_must_fit=True) is not None
    whole = Node(window(5))
    assert whole.admit(whole.request("a", range(200)), 8, full_sequence_must_fit=True) is None


def test_s17_the_watermark_is_for_those_who_wait() -> None:
    node = Node(watermark=0.2)  # two blocks of eleven
    request = node.request("a", range(36))
    with unchanged(node.manager, request):
        assert node.admit(request, apply_watermark=True) is None
    assert node.admit(request) is not None
    small = Node(watermark=0.2)
    assert small.admit(small.request("a", range(32)), apply_watermark=True) is not None


# -- publishing ----------------------------------------------------------------------------------


def test_s15_external_tokens_are_published_when_they_have_arrived() -> None:
    node = Node()
    request = node.request("a", LETTERS[:14])
    node.admit(request, 0, num_external_computed_tokens=13, delay_cache_blocks=True)
    assert node.table(request) == [1, 2, 3, 4]
    assert node.cached == []
    assert node.hit("b", LETTERS[:14]) == (0,)
    node.manager.cache_blocks(request, 8)
    assert node.cached == [1, 2]
    node.manager.cache_blocks(request, 13)
    assert node.cached == [1, 2, 3]
    node.compute(request, 1)
    assert node.hit("b", LETTERS[:14]) == (12, 1, 2, 3)


def test_s15_with_a_hit_before_them() -> None:
    node = Node()
    node.start("a", LETTERS[:8])
    request = node.request("b", LETTERS[:18])
    hit = node.admit(request, 0, num_external_computed_tokens=8, delay_cache_blocks=True)
    assert hit is not None and hit.num_tokens == 8
    assert node.table(request) == [1, 2, 3, 4]
    assert node.cached == [1, 2]
    node.manager.cache_blocks(request, 16)
    assert node.cached == [1, 2, 3, 4]


def test_s15_a_failed_transfer_publishes_nothing() -> None:
    node = Node()
    request = node.request("a", LETTERS[:14])
    node.admit(request, 0, num_external_computed_tokens=12, delay_cache_blocks=True)
    node.preempt(request)
    assert node.cached == []
    assert node.queue == [3, 2, 1, 4, 5, 6, 7, 8, 9, 10]


def test_s22_the_same_content_twice() -> None:
    node = Node()
    first = node.start("a", LETTERS[:8])
    second = node.start("b", LETTERS[:8])
    assert (node.table(first), node.table(second)) == ([1, 2], [1, 3])
    assert node.cached == [1, 2, 3]
    assert node.hit("c", LETTERS[:9]) == (8, 1, 2)
    node.manager.evict_blocks([2])
    assert node.hit("c", LETTERS[:9]) == (8, 1, 3)


def test_who_publishes_first_is_the_oldest_even_if_freed_first() -> None:
    node = Node()
    first = node.start("a", LETTERS[:8])
    node.start("b", LETTERS[:8])
    node.finish(first)
    assert node.hit("c", LETTERS[:9]) == (8, 1, 2)


# -- freeing and evicting ------------------------------------------------------------------------


def test_s19_the_tail_of_a_request_is_evicted_before_its_head() -> None:
    node = Node()
    node.finish(node.start("a", LETTERS[:16]))
    hits = []
    for i in range(10):
        node.start(f"f{i}", [i + 100])
        hits.append(node.hit("b", LETTERS[:17])[0])
    assert hits == [16] * 6 + [12, 8, 4, 0]


def test_s19_without_caching_the_last_freed_is_the_first_reused() -> None:
    node = Node(enable_caching=False)
    first, second = node.start("a", LETTERS[:8]), node.start("b", LETTERS[:8])
    node.finish(first)
    assert node.queue == [2, 1, 5, 6, 7, 8, 9, 10]
    node.finish(second)
    assert node.queue == [4, 3, 2, 1, 5, 6, 7, 8, 9, 10]


def test_a_hit_moves_a_block_to_the_back_when_it_is_freed_again() -> None:
    node = Node()
    node.finish(node.start("a", LETTERS[:4]), node.start("b", range(4)))
    assert node.queue[-2:] == [1, 2]
    node.finish(node.start("c", LETTERS[:5]))
    assert node.queue[-2:] == [2, 1]


def test_s18_free_blocks_count_as_free_although_they_can_be_found() -> None:
    node = Node()
    node.finish(node.start("a", LETTERS))
    assert node.manager.usage == 0.0
    assert len(node.cached) == 6


def test_s23_evicting_leaves_a_running_request_alone() -> None:
    node = Node()
    request = node.start("a", LETTERS[:8])
    node.manager.evict_blocks([1, 2])
    assert node.hit("b", LETTERS[:9]) == (0,)
    assert node.table(request) == [1, 2]
    node.say(request, "IJKL")
    assert node.cached == [3]
    node.finish(request)
    assert node.queue == [2, 1, 4, 5, 6, 7, 8, 9, 10, 3]


def test_s23_a_reset_waits_until_nothing_is_held() -> None:
    node = Node()
    request = node.start("a", LETTERS[:8])
    with unchanged(node.manager):
        assert not node.manager.reset_prefix_cache()
    node.finish(request)
    assert node.manager.reset_prefix_cache()
    assert node.cached == []
    assert node.hit("b", LETTERS[:9]) == (0,)


# -- copies (S10) --------------------------------------------------------------------------------


def test_s10_copies_end_one_by_one_or_all_at_once() -> None:
    node = Node(full(16), mamba(16), hash_block_size=4, enable_partial_hits=True)
    node.admit(node.request("a", LETTERS[:22]), 20)
    node.manager.new_step_starts()
    node.admit(node.request("b", LETTERS[:20] + "xyz"))
    first, second = node.manager.take_block_copies()
    assert node.manager.ledger().copy == 4
    node.manager.release_block_copies([first])
    assert node.manager.ledger().copy == 2
    with unchanged(node.manager), pytest.raises(LocalMisuse):
        node.manager.release_block_copies([first])
    node.manager.release_block_copies()
    assert node.manager.ledger().copy == 0
    with unchanged(node.manager):
        node.manager.release_block_copies()
    with unchanged(node.manager), pytest.raises(LocalMisuse):
        node.manager.release_block_copies([second])


def test_a_manager_without_requests_is_as_new() -> None:
    node = Node(full(8), window(6, 4), num_blocks=41)
    requests: list[Request] = [node.start(f"r{i}", range(i, i + 17)) for i in range(3)]
    for request in requests:
        node.say(request, range(9))
    node.finish(*requests)
    assert node.counts == {}
    assert node.manager.usage == 0.0
    assert node.manager.live_requests == {}
    assert node.manager.reset_prefix_cache()
    assert sorted(node.queue) == list(range(1, 41))
