"""One request over many groups: the hit that all agree on, and all or nothing (S3, S14, S29)."""

import pytest

from kvdist.cache.coordinator import (
    HybridKVCacheCoordinator,
    KVCacheCoordinator,
    UnitaryKVCacheCoordinator,
)
from tests.make import Node, full, mamba, window
from tests.unit.snapshot import unchanged

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def hit(node: Node, num_tokens: int, text: str = LETTERS) -> tuple[object, ...]:
    """Tokens, blocks of each group, junction."""
    found = node.manager.get_computed_blocks(node.request("probe", text[:num_tokens]))
    return found.num_tokens, found.blocks.get_block_ids(), found.junction


def test_the_coordinator_that_fits_the_settings() -> None:
    for node, kind in (
        (Node(enable_caching=False), KVCacheCoordinator),
        (Node(full(), full(8), enable_caching=False), KVCacheCoordinator),
        (Node(), UnitaryKVCacheCoordinator),
        (Node(full(), full()), HybridKVCacheCoordinator),
    ):
        assert type(node.manager.coordinator) is kind


def test_without_caching_nothing_is_found_or_published() -> None:
    node = Node(full(), window(5), enable_caching=False)
    request = node.start("a", LETTERS[:16])
    node.finish(request)
    assert node.cached == []
    assert hit(node, 17) == (0, ([], []), 0)


# -- the common boundary -------------------------------------------------------------------------


@pytest.fixture
def hybrid() -> Node:
    """A full group with blocks 1 to 4 and a window of 5 with blocks 5 to 8, both of A-P."""
    node = Node(full(), window(5))
    node.finish(node.start("a", LETTERS[:16]))
    return node


def test_s3_all_groups_have_to_agree(hybrid: Node) -> None:
    assert hit(hybrid, 17) == (16, ([1, 2, 3, 4], [0, 0, 0, 8]), 0)
    assert hit(hybrid, 13) == (12, ([1, 2, 3], [0, 0, 7]), 0)


def test_s3_a_sparse_group_lowers_the_hit_and_the_junction_tells_how_far_others_went(
    hybrid: Node,
) -> None:
    hybrid.manager.evict_blocks([7])
    assert hit(hybrid, 13) == (8, ([1, 2], [0, 6]), 12)
    assert hit(hybrid, 17) == (16, ([1, 2, 3, 4], [0, 0, 0, 8]), 0)


def test_s3_the_full_group_lowers_the_hit(hybrid: Node) -> None:
    hybrid.manager.evict_blocks([3])
    assert hit(hybrid, 17)[:2] == (8, ([1, 2], [0, 6]))
    hybrid.manager.evict_blocks([1])
    assert hit(hybrid, 17)[:2] == (0, ([], []))


def test_s29_the_boundary_is_not_the_minimum_of_the_longest_hits() -> None:
    # Each group could resume alone, at 16, 12 and 16: the window and the states meet at 4 only.
    node = Node(full(), window(5), mamba(), num_blocks=31)
    request = node.request("a", LETTERS[:16])
    tables: list[list[int]] = [[], [], []]
    for size in (4, 4, 4, 4):
        node.manager.new_step_starts()
        if request.num_computed_tokens:
            node.compute(request, size)
        else:
            node.admit(request, size)
        for group, blocks in enumerate(tables):
            blocks.append(node.table(request, group)[-1])
    node.finish(request)
    node.manager.new_step_starts()
    node.manager.evict_blocks([tables[1][3], tables[2][2], tables[1][1]])
    expected = (4, (tables[0][:1], tables[1][:1], tables[2][:1]), 16)
    assert hit(node, 17) == expected


def test_s29_groups_with_one_spec_are_looked_up_together() -> None:
    node = Node(full(), full())
    node.start("a", LETTERS[:12])
    assert hit(node, 13) == (12, ([1, 2, 3], [4, 5, 6]), 0)
    node.manager.evict_blocks([5])
    assert hit(node, 13) == (4, ([1], [4]), 0)


# -- different block sizes -----------------------------------------------------------------------


def test_hits_end_where_all_groups_have_a_block_boundary() -> None:
    node = Node(full(8), window(5))
    node.start("a", LETTERS[:20])
    assert node.table(node.request("a", "x"), 0) == [1, 2, 3]
    assert node.cached == [1, 2, 5, 7]  # of the window's, only what can serve a hit
    assert [hit(node, n)[0] for n in (8, 9, 16, 17, 21)] == [0, 8, 8, 16, 16]
    assert hit(node, 17)[1] == ([1, 2], [0, 0, 0, 7])


def test_one_chain_of_hashes_serves_all_block_sizes() -> None:
    node = Node(full(4), full(8), full(16), num_blocks=31)
    request = node.start("a", LETTERS[:16])
    assert len(request.block_hashes) == 4
    for group, count in ((0, 4), (1, 2), (2, 1)):
        keys = [key for g, key, _ in node.pool.cached_blocks() if g == group]
        assert keys == request.block_hashes[2**group - 1 :: 2**group]
        assert len(keys) == count


def test_a_finer_hash_than_any_block() -> None:
    node = Node(full(8), hash_block_size=2)
    request = node.start("a", LETTERS[:17])
    assert len(request.block_hashes) == 8
    assert node.cached == [1, 2]
    assert node.hit("b", LETTERS[:17]) == (16, 1, 2)


# -- a draft model -------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_tokens", "tokens"), [(5, 0), (9, 4), (13, 8), (17, 12), (20, 12)])
def test_a_draft_group_lowers_the_hit_by_one_of_its_blocks(num_tokens: int, tokens: int) -> None:
    node = Node(full(), window(5), eagle=[1])
    node.start("a", LETTERS[:16])
    found = hit(node, num_tokens)
    assert found[0] == tokens
    assert found[2] == tokens + 4


def test_a_draft_group_s_block_past_the_boundary_is_published_too() -> None:
    node = Node(full(8), window(5), eagle=[1])
    node.start("a", LETTERS[:12])
    assert hit(node, 13) == (8, ([1], [0, 4]), 0)


def test_s29_a_lowered_candidate_loses_the_draft_group_s_block_anew() -> None:
    node = Node(full(), window(5), mamba(), eagle=[1], num_blocks=61)
    request = node.request("a", LETTERS[:24])
    tables: list[list[int]] = [[], [], []]
    for _ in range(6):
        node.manager.new_step_starts()
        if request.num_computed_tokens:
            node.compute(request, 4)
        else:
            node.admit(request, 4)
        for group, blocks in enumerate(tables):
            blocks.append(node.table(request, group)[-1])
    node.finish(request)
    node.manager.new_step_starts()
    assert hit(node, 25)[0] == 20
    node.manager.evict_blocks(tables[2][2:])  # states at 4 and 8 are left
    assert hit(node, 25)[0] == 8
    node.manager.evict_blocks([tables[1][2]])  # to resume at 8 the draft model reads 8 to 11
    assert hit(node, 25)[0] == 4


def test_a_draft_model_without_marked_groups_lowers_all() -> None:
    node = Node(full(), full(8), use_eagle=True)
    node.start("a", LETTERS[:24])
    assert [hit(node, n)[0] for n in (9, 17, 25)] == [0, 8, 16]


# -- retention: what sparse groups keep ----------------------------------------------------------


def test_without_an_interval_every_useful_block_is_kept() -> None:
    node = Node(full(), window(5), num_blocks=31)
    node.start("a", LETTERS[:18])
    assert node.cached == [1, 2, 3, 4, 6, 7, 8, 9]


def test_with_an_interval_of_0_only_the_prompt_s_end_is_kept() -> None:
    node = Node(full(), window(5), num_blocks=31, retention_interval=0)
    request = node.start("a", LETTERS[:18])
    assert node.cached == [1, 2, 3, 4, 9]
    node.say(request, "012345")
    assert hit(node, 17)[0] == 16
    assert hit(node, 13) == (0, ([], []), 12)


def test_with_an_interval_its_multiples_are_kept_too() -> None:
    node = Node(full(), window(5), num_blocks=31, retention_interval=8)
    node.start("a", LETTERS[:18])
    assert node.cached == [1, 2, 3, 4, 7, 9]
    assert [hit(node, n)[0] for n in (9, 13, 17)] == [8, 8, 16]


def test_a_prompt_s_end_is_kept_for_a_draft_model_too() -> None:
    node = Node(full(), window(5), eagle=[1], num_blocks=31, retention_interval=0)
    node.start("a", LETTERS[:18])
    assert hit(node, 18) == (12, ([1, 2, 3], [0, 0, 8]), 16)


def test_a_shared_prefix_that_was_missed_once_is_kept_from_then_on() -> None:
    node = Node(full(), window(5), num_blocks=31, retention_interval=0)
    node.start("a", LETTERS[:18])
    second = node.request("b", LETTERS[:12] + "0123456")
    assert node.admit(second) is not None
    assert second.shared_prefix_boundary == 12
    third = node.request("c", LETTERS[:12] + "xyzxyzxyz")
    found = node.admit(third)
    assert found is not None and (found.num_tokens, found.junction) == (12, 0)


# -- two phases ----------------------------------------------------------------------------------


def test_s14_group_0_does_not_evict_what_group_1_hits() -> None:
    node = Node(full(), full(), num_blocks=9)
    node.finish(node.start("a", LETTERS[:8]))  # 1, 2 and 3, 4; all others are taken and free again
    filler = node.request("f", range(8))
    node.admit(filler)
    node.finish(filler)
    node.manager.evict_blocks([5, 6, 7, 8])
    first_in_line = node.pool.free_block_queue.get_all_free_blocks()[0].block_id
    request = node.request("b", LETTERS[:12])
    found = node.admit(request)
    assert found is not None and found.num_tokens == 8
    assert found.blocks.get_block_ids() == ([1, 2], [3, 4])
    assert node.table(request, 0)[:2] == [1, 2]
    assert node.table(request, 1)[:2] == [3, 4]
    assert first_in_line in (1, 2, 3, 4)
    assert node.pool.num_evicted_blocks == 0


def test_s14_external_tokens_do_not_evict_a_hit_either() -> None:
    node = Node(full(), full(), num_blocks=7)
    node.finish(node.start("a", LETTERS[:4]))  # blocks 1 and 2
    node.finish(node.start("f", range(8)))  # all others, behind them in the queue from now on
    assert node.queue == [1, 2, 4, 3, 6, 5]
    request = node.request("b", LETTERS[:13])
    found = node.admit(request, 0, num_external_computed_tokens=8, delay_cache_blocks=True)
    assert found is not None and found.num_tokens == 4
    assert node.table(request, 0) == [1, 4, 3]
    assert node.table(request, 1) == [2, 6, 5]
    assert node.cached == [1, 2]


def test_s12_the_needs_of_all_groups_are_added_up() -> None:
    node = Node(full(), full(), num_blocks=8)
    request = node.request("a", LETTERS[:16])
    with unchanged(node.manager):
        assert node.admit(request) is None  # four for each group, seven are free
    assert node.admit(node.request("b", LETTERS[:12])) is not None


def test_s19_groups_are_freed_one_after_the_other() -> None:
    node = Node(full(), full())
    node.finish(node.start("a", LETTERS[:9]))
    assert node.queue == [6, 3, 7, 8, 9, 10, 2, 1, 5, 4]
