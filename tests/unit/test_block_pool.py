"""The owner of every block: take, touch, free, publish, evict (S5, S18, S19, S21-S23)."""

from collections.abc import Sequence

import pytest

from kvdist.cache import BlockPool, KVCacheBlock
from kvdist.errors import DoubleFree, ForeignBlock, LocalMisuse
from kvdist.ids import GroupId
from tests.make import GROUP, Node, ids, make_pool, tokens_of
from tests.unit.snapshot import unchanged


def publish(pool: BlockPool, text: str, blocks: Sequence[KVCacheBlock], first: int = 0) -> None:
    """Make `blocks` findable as the blocks of a request with these letters."""
    request = Node().request("any", tokens_of(text))
    pool.cache_full_blocks(request, blocks, first, 4, GROUP)


def found(pool: BlockPool) -> dict[int, int]:
    """How many keys lead to each block."""
    keys: dict[int, int] = {}
    for _, _, block in pool.cached_blocks():
        keys[block.block_id] = keys.get(block.block_id, 0) + 1
    return keys


# -- taking --------------------------------------------------------------------------------------


def test_blocks_are_taken_in_order() -> None:
    pool = make_pool(6)
    assert (pool.get_num_free_blocks(), pool.get_usage()) == (5, 0.0)
    taken = pool.get_new_blocks(2, GROUP)
    assert ids(taken) == [1, 2]
    assert [(b.ref_cnt, b.generation) for b in taken] == [(1, 1), (1, 1)]
    assert (pool.get_num_free_blocks(), pool.get_usage()) == (3, 0.4)
    assert ids(pool.get_new_blocks(3, GROUP)) == [3, 4, 5]
    assert pool.get_usage() == 1.0


@pytest.mark.parametrize("count", [6, -1, 10**12])
def test_more_than_are_free_can_not_be_taken(count: int) -> None:
    pool = make_pool(6)
    with unchanged(pool), pytest.raises(LocalMisuse):
        pool.get_new_blocks(count, GROUP)


def test_none_can_be_taken() -> None:
    pool = make_pool(3)
    with unchanged(pool):
        assert pool.get_new_blocks(0, GROUP) == []


def test_a_block_knows_how_often_and_for_which_group_it_was_taken() -> None:
    pool = make_pool(3, num_groups=2)
    for turn in range(1, 4):
        (block,) = pool.get_new_blocks(1, GroupId(turn % 2))
        assert (block.block_id, block.generation, block.group_id) == (1, turn, turn % 2)
        pool.free_blocks([block])


def test_s21_the_key_of_a_taken_block_is_gone_before_it_is_handed_out() -> None:
    pool = make_pool(3)
    blocks = pool.get_new_blocks(2, GROUP)
    publish(pool, "ABCDEFGH", blocks)
    pool.free_blocks(reversed(blocks))
    assert found(pool) == {1: 1, 2: 1}
    (taken,) = pool.get_new_blocks(1, GROUP)
    assert (taken.block_id, taken.block_hash, taken.ref_cnt) == (2, None, 1)
    assert found(pool) == {1: 1}
    assert pool.num_evicted_blocks == 1


# -- touching ------------------------------------------------------------------------------------


def test_touching_takes_a_free_block_out_of_the_middle() -> None:
    pool = make_pool(6)
    pool.touch([pool.blocks[3]])
    assert ids(pool.free_block_queue) == [1, 2, 4, 5]
    pool.touch([pool.blocks[3], pool.blocks[1]])
    assert [b.ref_cnt for b in pool.blocks[1:4]] == [1, 0, 2]
    assert ids(pool.free_block_queue) == [2, 4, 5]


def test_the_null_block_s_count_is_not_maintained() -> None:
    pool = make_pool(6)
    with unchanged(pool):
        pool.touch([pool.null_block, pool.null_block])
        pool.release([pool.null_block])


# -- freeing -------------------------------------------------------------------------------------


def test_s19_blocks_without_a_key_go_to_the_front_in_the_given_order() -> None:
    pool = make_pool(6)
    taken = pool.get_new_blocks(3, GROUP)
    pool.free_blocks(reversed(taken))
    assert ids(pool.free_block_queue) == [3, 2, 1, 4, 5]


def test_s19_blocks_with_a_key_go_to_the_back() -> None:
    pool = make_pool(6)
    taken = pool.get_new_blocks(3, GROUP)
    publish(pool, "ABCDEFGH", taken[:2])
    pool.free_blocks(reversed(taken))
    assert ids(pool.free_block_queue) == [3, 4, 5, 2, 1]


def test_s18_a_freed_block_keeps_its_key() -> None:
    pool = make_pool(6)
    (block,) = pool.get_new_blocks(1, GROUP)
    publish(pool, "ABCD", [block])
    pool.free_blocks([block])
    assert found(pool) == {1: 1}
    assert block.block_hash is not None
    assert block.generation == 1


def test_a_shared_block_is_free_when_the_last_holder_goes() -> None:
    pool = make_pool(3)
    (block,) = pool.get_new_blocks(1, GROUP)
    pool.touch([block, block])
    pool.free_blocks([block, block])
    assert block not in pool.free_block_queue
    pool.free_blocks([block])
    assert block in pool.free_block_queue


def test_freeing_may_be_given_any_iterable() -> None:
    pool = make_pool(4)
    taken = pool.get_new_blocks(3, GROUP)
    pool.free_blocks(block for block in taken)
    assert ids(pool.free_block_queue) == [1, 2, 3]
    pool.free_blocks([])


@pytest.mark.parametrize("again", [[0], [1, 1], [2, 0], [1, 2, 0]])
def test_no_more_is_freed_than_was_taken(again: list[int]) -> None:
    pool = make_pool(6)
    taken = pool.get_new_blocks(3, GROUP)
    pool.free_blocks([taken[0]])
    with unchanged(pool), pytest.raises(DoubleFree):
        pool.free_blocks([taken[i] for i in again])


def test_a_block_that_was_never_taken_is_not_freed() -> None:
    pool = make_pool(6)
    with unchanged(pool), pytest.raises(DoubleFree):
        pool.free_blocks([pool.blocks[4]])


def test_a_block_of_another_pool_is_not_freed() -> None:
    pool, other = make_pool(6), make_pool(9)
    mine, theirs = pool.get_new_blocks(1, GROUP), other.get_new_blocks(8, GROUP)
    for block in (theirs[0], theirs[7]):
        with unchanged(pool, other), pytest.raises(ForeignBlock):
            pool.free_blocks([*mine, block])


# -- publishing ----------------------------------------------------------------------------------


def test_s22_two_blocks_may_hold_the_same_content() -> None:
    pool = make_pool(6)
    first, second = pool.get_new_blocks(2, GROUP)
    publish(pool, "ABCD", [first])
    publish(pool, "ABCD", [second])
    assert first.block_hash == second.block_hash
    assert found(pool) == {1: 1, 2: 1}
    key = first.block_hash
    assert key is not None
    (index,) = pool.cached_block_hash_to_block
    assert index.get_each([key]) == [first]
    pool.evict_blocks([1])
    assert index.get_each([key]) == [second]


def test_s6_the_same_content_of_two_groups_is_not_the_same_entry() -> None:
    pool = make_pool(6, num_groups=2)
    request = Node().request("any", "ABCD")
    for group in (GroupId(0), GroupId(1)):
        pool.cache_full_blocks(request, pool.get_new_blocks(1, group), 0, 4, group)
    assert [(g, b.block_id) for g, _, b in pool.cached_blocks()] == [(0, 1), (1, 2)]
    pool.evict_blocks([1])
    assert [(g, b.block_id) for g, _, b in pool.cached_blocks()] == [(1, 2)]


def test_a_chain_over_small_blocks_serves_their_multiples() -> None:
    pool = make_pool(6)
    request = Node().request("any", "ABCDEFGHIJKLMNOP")
    pool.cache_full_blocks(request, pool.get_new_blocks(2, GROUP), 0, 8, GROUP)
    assert [key for _, key, _ in pool.cached_blocks()] == request.block_hashes[1::2]


def test_s10_a_partial_entry_makes_way_for_a_longer_one() -> None:
    pool = make_pool(6)
    request = Node().request("any", "ABCDEFGHIJKLMNOP")
    (block,) = pool.get_new_blocks(1, GROUP)
    for num_tokens in (4, 12):
        key = pool.cache_partial_block(request, block, num_tokens, 16, GROUP)
        assert block.block_hash == key == request.block_hashes[num_tokens // 4 - 1]
        assert found(pool) == {1: 1}
    pool.cache_full_blocks(request, [block], 0, 16, GROUP)
    assert block.block_hash == request.block_hashes[3]
    assert found(pool) == {1: 1}
    assert not pool.tail_tokens


def test_s10_a_shorter_partial_entry_stays_beside_the_longer() -> None:
    pool = make_pool(6)
    request = Node().request("any", "ABCDEFGHIJKLMNOP")
    (block,) = pool.get_new_blocks(1, GROUP)
    pool.cache_full_blocks(request, [block], 0, 16, GROUP)
    for _ in range(2):  # the second time there is nothing to do
        pool.cache_partial_block(request, block, 8, 16, GROUP)
        assert found(pool) == {1: 2}
    pool.free_blocks([block])
    pool.evict_blocks([1])
    assert found(pool) == {}
    assert not pool.further_keys


def test_keys_move_to_a_private_copy() -> None:
    pool = make_pool(6)
    request = Node().request("any", "ABCDEFGHIJKLMNOP")
    source, target = pool.get_new_blocks(2, GROUP)
    pool.cache_partial_block(request, source, 8, 16, GROUP)
    pool.move_block_hashes(source, target)
    assert (source.block_hash, target.block_hash) == (None, request.block_hashes[1])
    assert found(pool) == {2: 1}
    assert list(pool.tail_tokens) == [target]


# -- evicting ------------------------------------------------------------------------------------


def test_s23_evicted_blocks_can_not_be_found_and_stay_where_they_are() -> None:
    pool = make_pool(6)
    taken = pool.get_new_blocks(4, GROUP)
    publish(pool, "ABCDEFGHIJKLMNOP", taken)
    pool.free_blocks(reversed(taken[2:]))
    before = ids(pool.free_block_queue)
    pool.evict_blocks([4, 1, 1, 5, 0])
    assert found(pool) == {2: 1, 3: 1}
    assert ids(pool.free_block_queue) == before == [5, 4, 3]
    assert [b.ref_cnt for b in pool.blocks[1:]] == [1, 1, 0, 0, 0]
    with unchanged(pool):
        pool.evict_blocks([4, 1])


@pytest.mark.parametrize("bad", [6, -1, 10**12])
def test_an_id_out_of_range_is_not_evicted(bad: int) -> None:
    pool = make_pool(6)
    (block,) = pool.get_new_blocks(1, GROUP)
    publish(pool, "ABCD", [block])
    with unchanged(pool), pytest.raises(ForeignBlock):
        pool.evict_blocks([1, bad])


def test_s23_a_reset_forgets_everything_once_nothing_is_held() -> None:
    pool = make_pool(6)
    taken = pool.get_new_blocks(2, GROUP)
    publish(pool, "ABCDEFGH", taken)
    with unchanged(pool):
        assert not pool.reset_prefix_cache()
    pool.free_blocks(reversed(taken))
    before = ids(pool.free_block_queue)
    assert pool.reset_prefix_cache()
    assert found(pool) == {}
    assert ids(pool.free_block_queue) == before
    assert all(block.block_hash is None for block in pool.blocks)
    assert pool.reset_prefix_cache()


def test_whatever_can_make_a_lookup_stale_counts_the_epoch_up() -> None:
    pool = make_pool(6)
    epochs = [pool.epoch]
    (block,) = pool.get_new_blocks(1, GROUP)
    epochs.append(pool.epoch)
    publish(pool, "ABCD", [block])
    assert pool.epoch == epochs[-1]
    pool.evict_blocks([1])
    epochs.append(pool.epoch)
    pool.free_blocks([block])
    assert pool.epoch == epochs[-1]
    pool.reset_prefix_cache()
    epochs.append(pool.epoch)
    assert epochs == sorted(set(epochs))


def test_without_caching_all_blocks_go_to_the_front() -> None:
    pool = make_pool(6, enable_caching=False)
    taken = pool.get_new_blocks(3, GROUP)
    pool.free_blocks(reversed(taken))
    assert ids(pool.free_block_queue) == [3, 2, 1, 4, 5]
