"""What people found who tried to break the block manager, as small as it gets."""

from typing import Any, cast

import pytest

from kvdist.cache import (
    BlockHasher,
    CacheHit,
    FreeKVCacheBlockQueue,
    FullAttentionSpec,
    HoldKind,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    MambaSpec,
    Request,
    SlidingWindowSpec,
)
from kvdist.errors import IllegalAllocation, InvariantViolation
from tests.make import GROUP, Node, full, make_blocks, mamba, window

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def admit(manager: KVCacheManager, request: Request, new: int, external: int = 0) -> bool:
    hit = manager.get_computed_blocks(request)
    blocks = manager.allocate_slots(request, new, hit, num_external_computed_tokens=external)
    return blocks is not None


def test_a_hit_of_another_manager_with_the_same_history() -> None:
    config = KVCacheConfig.single(FullAttentionSpec(block_size=4), num_blocks=9)
    first, second, hasher = KVCacheManager(config), KVCacheManager(config), BlockHasher(4)
    for manager in (first, second):
        old = Request("old", range(9), hasher)
        assert admit(manager, old, 9)
        manager.free(old)
    request = Request("new", range(9), hasher)
    hit = first.get_computed_blocks(request)
    assert hit.num_tokens == 8
    with pytest.raises(IllegalAllocation, match="not a hit of this manager"):
        second.allocate_slots(request, 1, hit)
    for manager in (first, second):
        manager.check()


def test_s27_what_a_window_leaves_waits_for_the_step_that_names_it() -> None:
    node = Node(window(5))
    node.manager.new_step_starts(1)
    request = node.start("a", LETTERS[:12])
    node.manager.new_step_starts(2)
    node.say(request, "x")
    assert node.table(request)[0] == 0, "the window has left the first block"
    held = {1, 2} - set(node.table(request))
    free = {block.block_id for block in node.pool.free_block_queue}
    assert held and not held & free, "step 1 may still read it"
    node.manager.settle_step(1)
    free = {block.block_id for block in node.pool.free_block_queue}
    assert held <= free


def test_s15_unverified_external_tokens_are_not_published_by_later_steps() -> None:
    node = Node()
    request = node.request("a", LETTERS[:14])
    hit = node.manager.get_computed_blocks(request)
    node.manager.allocate_slots(
        request, 0, hit, num_external_computed_tokens=12, delay_cache_blocks=True
    )
    request.num_computed_tokens = 12
    node.manager.allocate_slots(request, 2)
    request.num_computed_tokens = 14
    assert node.hit("other", LETTERS[:14])[0] == 0
    node.manager.cache_blocks(request, 8)
    assert node.hit("other", LETTERS[:14])[0] == 8
    node.manager.cache_blocks(request, 12)
    assert node.hit("other", LETTERS[:14])[0] == 12


def test_s15_a_load_that_was_given_up_is_computed_and_published() -> None:
    node = Node()
    request = node.request("a", LETTERS[:14])
    hit = node.manager.get_computed_blocks(request)
    node.manager.allocate_slots(
        request, 0, hit, num_external_computed_tokens=12, delay_cache_blocks=True
    )
    request.num_computed_tokens = 0
    node.manager.allocate_slots(request, 14)
    request.num_computed_tokens = 14
    assert node.hit("other", LETTERS[:14])[0] == 12


def test_s12_external_tokens_before_a_state_need_two_blocks() -> None:
    manager = KVCacheManager(KVCacheConfig.single(MambaSpec(block_size=4), num_blocks=2))
    request = Request("r", range(16), BlockHasher(4))
    assert not admit(manager, request, 4, external=12)
    assert manager.ledger().free == 1
    manager.check()


def test_s12_a_hit_state_that_external_tokens_push_out_is_not_counted_twice() -> None:
    manager = KVCacheManager(KVCacheConfig.single(MambaSpec(block_size=4), num_blocks=3))
    hasher = BlockHasher(4)
    first = Request("a", range(5), hasher)
    assert admit(manager, first, 4)
    manager.free(first)
    manager.new_step_starts()
    assert admit(manager, Request("r", range(13), hasher), 4, external=4)
    assert manager.get_block_ids("r") == ([0, 2, 1],)


def test_i3_ends_for_any_claim() -> None:
    node = Node()
    request = node.start("a", "ABCDE")
    request.num_computed_tokens = 1 << 40
    with pytest.raises(InvariantViolation, match="no block at index 2") as caught:
        node.manager.check()
    assert len(str(caught.value)) < 500


def test_s20_the_order_survives_clearing_away() -> None:
    blocks = make_blocks(2000)
    queue = FreeKVCacheBlockQueue(blocks[:1000])
    queue.prepend_n(blocks[1000:])
    order = list(queue)
    queue.remove_n(order[::2])
    queue.remove_n(order[1001::2])
    assert list(queue) == order[1:1001:2]
    assert queue.popleft_n(500) == order[1:1001:2]


def test_t1_keys_that_move_to_a_copy_are_unsettled_until_it_is_made() -> None:
    config = KVCacheConfig(
        num_blocks=30,
        kv_cache_groups=(
            KVCacheGroupSpec(FullAttentionSpec(block_size=4)),
            KVCacheGroupSpec(MambaSpec(block_size=8)),
        ),
        enable_partial_hits=True,
    )
    manager = KVCacheManager(config)
    request = Request("r", range(14), BlockHasher(4))
    for step, tokens in ((1, 8), (2, 4)):
        manager.new_step_starts(step)
        hit = manager.get_computed_blocks(request) if step == 1 else None
        manager.allocate_slots(request, tokens, hit)
        request.num_computed_tokens += tokens
        manager.settle_step(step)
    manager.new_step_starts(3)
    manager.allocate_slots(request, 2)
    (copy,) = manager.take_block_copies()
    assert not manager.is_settled(copy.target)
    manager.release_block_copies()
    manager.settle_step(3)
    assert manager.is_settled(copy.target)


def test_t1_keys_are_as_unsettled_as_the_step_that_moves_them() -> None:
    node = Node()
    request = node.request("a", LETTERS[:8])
    pool = node.pool
    pool.steps.open(1)
    source, target = pool.get_new_blocks(2, GROUP)
    pool.cache_full_blocks(request, [source], 0, 4, GROUP)
    pool.steps.settle(1)
    assert pool.is_settled(source)
    pool.steps.open(2)
    pool.move_block_hashes(source, target)
    assert not pool.is_settled(target)


def test_a_withdrawn_tail_needs_no_copy() -> None:
    node = Node(full(), mamba(8), enable_partial_hits=True)
    node.manager.new_step_starts(1)
    request = node.request("a", LETTERS[:13])
    node.admit(request, 8)
    node.manager.settle_step(1)
    node.manager.new_step_starts(2)
    node.manager.allocate_slots(request, 4)
    node.manager.withdraw_step(2)
    node.manager.settle_step(2)
    node.manager.new_step_starts(3)
    node.manager.allocate_slots(request, 4)
    assert node.manager.take_block_copies() == []


def test_a_withdrawn_publication_is_not_put_on_another_request_of_the_same_name() -> None:
    node = Node(num_blocks=30, enable_events=True)
    node.manager.new_step_starts(1)
    node.finish(node.start("a", LETTERS[:9]))
    node.manager.settle_step(1)
    node.manager.new_step_starts(2)
    node.finish(node.start("a", LETTERS[9:18]))
    again = node.start("a", LETTERS[:9])
    assert node.manager.coordinator.managers[0].num_cached_block["a"] == 2
    node.manager.withdraw_step(2)
    assert node.manager.coordinator.managers[0].num_cached_block["a"] == 2
    node.finish(again)


def test_many_copies_of_one_key_go_one_by_one() -> None:
    node = Node(num_blocks=400)
    requests = []
    for i in range(100):
        request = Request(f"r{i}", list(map(ord, "ABCDE")), node.hasher)
        node.manager.allocate_slots(request, 5)
        requests.append(request)
    (index,) = node.pool.cached_block_hash_to_block
    (key,) = index.oldest
    for i, request in enumerate(requests[:-1]):
        assert index.oldest[key] is node.pool.blocks[1 + 2 * i]
        node.manager.evict_blocks([1 + 2 * i])
        node.manager.free(request)
    assert not index.copies


@pytest.mark.parametrize("damage", ["num_slots", "next_publication", "next_skip"])
def test_the_audit_finds_a_quiet_bound_that_is_too_high(damage: str) -> None:
    node = Node(window(5))
    node.start("a", "ABCDEFGHIJ")
    setattr(node.manager.live_requests["a"], damage, 10**9)
    with pytest.raises(InvariantViolation, match=damage):
        node.manager.check()


def test_the_audit_finds_a_copy_without_its_pins() -> None:
    node = Node(full(), mamba(8), enable_partial_hits=True)
    request = node.request("a", LETTERS[:14])
    node.admit(request, 8)
    node.manager.allocate_slots(request, 4)
    request.num_computed_tokens = 12
    node.manager.allocate_slots(request, 2)
    request.num_computed_tokens = 14
    (copy,) = node.manager.take_block_copies()
    node.manager.check()
    node.pool.end_hold([node.pool.blocks[copy.source]], HoldKind.COPY)
    with pytest.raises(InvariantViolation, match="I4"):
        node.manager.check()


def test_a_forged_hit() -> None:
    node = Node()
    request = node.request("a", "ABCDE")
    hit = node.manager.get_computed_blocks(request)
    assert isinstance(hit, CacheHit)
    tokens: list[Any] = [1.5, True, None]
    for forged in [*(hit._replace(num_tokens=number) for number in tokens), cast("CacheHit", 5)]:
        with pytest.raises(IllegalAllocation):
            node.manager.allocate_slots(request, 5, forged)
    node.manager.check()


def test_hit_and_external_tokens_together_are_known_tokens() -> None:
    node = Node()
    node.finish(node.start("a", LETTERS[:9]))
    request = node.request("b", LETTERS[:13])
    hit = node.manager.get_computed_blocks(request)
    with pytest.raises(IllegalAllocation, match=r"8 \+ 6 tokens to adopt, 13 are known"):
        node.manager.allocate_slots(request, 0, hit, num_external_computed_tokens=6)


def test_windows_with_several_groups_wait_too() -> None:
    node = Node(full(), SlidingWindowSpec(block_size=4, sliding_window=5))
    node.manager.new_step_starts(1)
    request = node.start("a", LETTERS[:12])
    node.manager.new_step_starts(2)
    node.manager.remove_skipped_blocks(request, 12)
    assert node.manager.ledger().total == node.pool.num_blocks - 1
    node.manager.check()


@pytest.mark.parametrize("nonsense", [None, "r0", 5])
def test_what_is_no_request(nonsense: Any) -> None:
    manager = Node().manager
    calls = (
        lambda: manager.get_computed_blocks(nonsense),
        lambda: manager.allocate_slots(nonsense, 1),
        lambda: manager.cache_blocks(nonsense, 1),
        lambda: manager.free(nonsense),
        lambda: manager.remove_skipped_blocks(nonsense, 1),
    )
    for call in calls:
        with pytest.raises(IllegalAllocation, match="a Request, not"):
            call()
