"""A workload through the block manager: what is found again is what was found by other means."""

import json
from pathlib import Path

import pytest

from kvdist import check
from kvdist.cache import BlockHasher, FullAttentionSpec, KVCacheConfig, KVCacheManager, Request
from kvdist.errors import ConfigError, FormatError
from kvdist.replay.belady import most_hits
from kvdist.replay.workload import (
    Counts,
    Lengths,
    Prompt,
    Workload,
    WorkloadReplay,
    read_workload,
)

CONVERSATION = Path(__file__).parent.parent / "data" / "workload" / "conversation_trace.jsonl.gz"

#: Per cent of the full blocks found again, by usable blocks; None is unlimited.
FOUND = {
    (Lengths.HASH_IDS, 1_000): 4.45,
    (Lengths.HASH_IDS, 10_000): 21.13,
    (Lengths.HASH_IDS, None): 36.60,
    (Lengths.TRUE, 1_000): 4.70,
    (Lengths.TRUE, 10_000): 22.42,
    (Lengths.TRUE, None): 38.19,
}


@pytest.fixture(scope="module", params=list(Lengths))
def conversation(request: pytest.FixtureRequest) -> Workload:
    return read_workload(CONVERSATION, 512, request.param)


def _serve(workload: Workload, num_blocks: int | None) -> Counts:
    replay = WorkloadReplay(workload, num_blocks)
    for prompt in workload.prompts:
        replay.serve(prompt)
    replay.manager.check()
    return replay.counts


@pytest.mark.parametrize("num_blocks", [1_000, 10_000, None])
def test_the_conversation(
    conversation: Workload, num_blocks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "level", 0)  # level 2 looks at the whole pool after every call
    counts = _serve(conversation, num_blocks)
    share = 100 * counts.hit_blocks / conversation.num_full_blocks
    assert share == pytest.approx(FOUND[conversation.lengths, num_blocks], abs=0.005)
    assert counts.refused_requests == 0
    best = most_hits(conversation.references(), num_blocks)
    if num_blocks is None:
        assert counts.evicted_blocks == 0
        assert counts.hit_blocks + counts.given_up_blocks == best
    else:
        assert counts.hit_blocks < best


def test_how_much_the_conversation_is(conversation: Workload) -> None:
    assert len(conversation.prompts) == 12_031
    if conversation.lengths is Lengths.HASH_IDS:
        assert conversation.num_full_blocks == conversation.num_blocks == 288_500
    else:
        assert conversation.num_tokens == 144_793_823
        assert conversation.num_full_blocks == 276_491


@pytest.mark.parametrize("num_blocks", [1_000, 10_000, 30_000, None])
def test_the_best_for_the_conversation(conversation: Workload, num_blocks: int | None) -> None:
    references = conversation.references()
    share = 100 * most_hits(references, num_blocks) / len(references)
    # From 10,000 blocks on, all that comes back can be kept.
    best = {Lengths.HASH_IDS: (19.06, 36.64), Lengths.TRUE: (19.88, 38.19)}
    expected = best[conversation.lengths][num_blocks != 1_000]
    assert share == pytest.approx(expected, abs=0.005)


def test_real_blocks_give_the_same(conversation: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first requests with 512 tokens a block, as they would really come."""
    monkeypatch.setattr(check, "level", 0)
    first = Workload(512, conversation.lengths, conversation.prompts[:300])
    config = KVCacheConfig.single(FullAttentionSpec(block_size=512), num_blocks=1_001)
    manager, hasher = KVCacheManager(config), BlockHasher(512)
    hit_tokens = 0
    for prompt in first.prompts:
        tokens = [i for i in prompt.hash_ids for _ in range(512)]
        tokens += [7] * (prompt.num_tokens - len(tokens))
        request = Request("real", tokens, hasher)
        hit = manager.get_computed_blocks(request)
        hit_tokens += hit.num_tokens
        assert manager.allocate_slots(request, len(tokens) - hit.num_tokens, hit) is not None
        request.num_computed_tokens = len(tokens)
        manager.free(request)
    counts = _serve(first, 1_000)
    assert hit_tokens == 512 * counts.hit_blocks > 0
    assert counts.evicted_blocks == manager.block_pool.num_evicted_blocks > 0


def test_the_last_token_gives_up_a_block() -> None:
    whole = Prompt([1, 2], 8, has_tail=False)
    counts = _serve(Workload(4, Lengths.TRUE, [whole, whole]), None)
    assert (counts.hit_blocks, counts.given_up_blocks) == (1, 1)


def test_a_tail_is_never_found_but_saves_the_last_block() -> None:
    prompt = Prompt([1, 2], 9, has_tail=True)
    counts = _serve(Workload(4, Lengths.TRUE, [prompt, prompt]), None)
    assert (counts.hit_blocks, counts.given_up_blocks) == (2, 0)


def test_what_does_not_fit_is_counted_and_left_out() -> None:
    small, large = Prompt([1, 2], 9, has_tail=True), Prompt([1, 2, 3, 4], 16, has_tail=False)
    counts = _serve(Workload(4, Lengths.TRUE, [small, large, small]), 3)
    assert (counts.refused_requests, counts.hit_blocks) == (1, 2)


def test_more_blocks_than_are_ever_needed() -> None:
    workload = Workload(4, Lengths.TRUE, [Prompt([1, 2], 9, has_tail=True)] * 2)
    replay = WorkloadReplay(workload, 10**30)
    assert replay.manager.block_pool.num_blocks == 7


@pytest.mark.parametrize("num_blocks", [0, -1])
def test_a_pool_has_a_block(num_blocks: int) -> None:
    with pytest.raises(ConfigError):
        WorkloadReplay(Workload(4, Lengths.TRUE, [Prompt([1], 4, has_tail=False)]), num_blocks)


def test_lengths(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text(
        '{"input_length": 6, "hash_ids": [3, 4]}\n{"input_length": 8, "hash_ids": [3, 5]}\n'
    )
    assert read_workload(path, 4, Lengths.TRUE).prompts == [
        Prompt([3], 6, has_tail=True),
        Prompt([3, 5], 8, has_tail=False),
    ]
    assert read_workload(path, 4, Lengths.HASH_IDS).prompts == [
        Prompt([3, 4], 8, has_tail=False),
        Prompt([3, 5], 8, has_tail=False),
    ]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({}, "hash_ids"),
        ({"hash_ids": [], "input_length": 1}, "hash_ids"),
        ({"hash_ids": 3, "input_length": 1}, "hash_ids"),
        ({"hash_ids": ["3"], "input_length": 1}, "hash_ids"),
        ({"hash_ids": [True], "input_length": 1}, "hash_ids"),
        ({"hash_ids": [-1], "input_length": 1}, "hash id is not within"),
        ({"hash_ids": [10**30], "input_length": 1}, "hash id is not within"),
        ({"hash_ids": [1]}, "input_length"),
        ({"hash_ids": [1], "input_length": 0}, "input_length"),
        ({"hash_ids": [1], "input_length": 10**30}, "input_length"),
        ({"hash_ids": [1], "input_length": "1"}, "input_length"),
        ({"hash_ids": [1], "input_length": 5}, "not blocks of 4 tokens"),
        ({"hash_ids": [1, 2], "input_length": 4}, "not blocks of 4 tokens"),
    ],
)
def test_rows_that_are_no_requests(tmp_path: Path, row: object, told: str) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text('{"hash_ids": [1], "input_length": 4}\n' + json.dumps(row) + "\n")
    with pytest.raises(FormatError, match=rf"w\.jsonl:2: .*{told}"):
        read_workload(path, 4, Lengths.TRUE)


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text("")
    with pytest.raises(FormatError, match="empty"):
        read_workload(path, 4, Lengths.TRUE)


@pytest.mark.parametrize("block_size", [0, -4, 10**30])
def test_a_block_has_a_token(block_size: int) -> None:
    with pytest.raises(ConfigError):
        read_workload(CONVERSATION, block_size, Lengths.TRUE)
