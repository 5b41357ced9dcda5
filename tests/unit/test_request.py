"""A request's tokens and their hashes (S8)."""

from collections.abc import Sequence

import pytest

from kvdist.cache import BlockHasher, ExtraKeys, MultiModalItem, PromptEmbeds, Request
from kvdist.errors import InvalidRequest
from tests.unit.snapshot import unchanged

HASHER = BlockHasher(4)
LARGEST_TOKEN = 2**32 - 2


def test_a_new_request_has_computed_nothing() -> None:
    request = Request("a", [1, 2, 3, 4, 5], HASHER)
    assert (request.num_prompt_tokens, request.num_tokens) == (5, 5)
    assert (request.num_computed_tokens, request.num_in_flight_tokens) == (0, 0)
    assert (request.num_preemptions, request.shared_prefix_boundary) == (0, 0)
    assert list(request.all_token_ids) == [1, 2, 3, 4, 5]
    assert len(request.block_hashes) == 1
    assert request.hash_block_size == 4
    assert "Request('a', num_tokens=5, num_computed_tokens=0)" in repr(request)


def test_the_caller_s_list_is_its_own() -> None:
    prompt = [1, 2, 3]
    request = Request("a", prompt, HASHER)
    prompt.append(4)
    assert request.num_tokens == 3


@pytest.mark.parametrize("steps", [[1] * 11, [3, 8], [11], [4, 4, 3], [0, 11, 0]])
def test_s8_appending_gives_the_hashes_of_the_whole(steps: list[int]) -> None:
    tokens = list(range(100, 117))
    request = Request("a", tokens[:6], HASHER)
    for step in steps:
        start = request.num_tokens
        request.append_output_token_ids(tokens[start : start + step])
        assert request.block_hashes == Request("b", tokens[: start + step], HASHER).block_hashes
    assert request.num_tokens == 17
    assert request.num_prompt_tokens == 6


def test_s8_one_token_at_a_time() -> None:
    request = Request("a", [0], HASHER)
    for token in range(1, 40):
        request.append_output_token_ids(token)
        assert len(request.block_hashes) == request.num_tokens // 4
    assert request.block_hashes == Request("b", range(40), HASHER).block_hashes


def test_a_request_without_a_hasher_has_no_hashes() -> None:
    request = Request("a", range(40))
    request.append_output_token_ids([1] * 9)
    request.append_output_token_ids(2)
    assert request.block_hashes == []
    assert request.num_tokens == 50
    assert request.hash_block_size is None


@pytest.mark.parametrize("prompt", [[0], [LARGEST_TOKEN], (1, 2), range(3)])
def test_prompts_at_the_edges(prompt: Sequence[int]) -> None:
    assert Request("a", prompt, HASHER).num_tokens == len(prompt)


@pytest.mark.parametrize("hasher", [HASHER, None])
@pytest.mark.parametrize("bad", [-1, 2**32 - 1, 2**40])
def test_a_token_out_of_range_is_refused(bad: int, hasher: BlockHasher | None) -> None:
    with pytest.raises(InvalidRequest):
        Request("a", [1, bad], hasher)
    request = Request("a", [1, 2, 3], hasher)
    with unchanged(request):
        with pytest.raises(InvalidRequest):
            request.append_output_token_ids(bad)
        with pytest.raises(InvalidRequest):
            request.append_output_token_ids([4, bad])
        with pytest.raises(InvalidRequest):
            request.append_output_token_ids([4, 5, 6, 7, 8, bad])


def test_after_a_refusal_the_hashes_go_on_rightly() -> None:
    request = Request("a", [1, 2, 3], HASHER)
    with pytest.raises(InvalidRequest):
        request.append_output_token_ids([4, 5, 6, 7, 8, -1])
    request.append_output_token_ids([4, 5, 6, 7, 8])
    assert request.block_hashes == Request("b", range(1, 9), HASHER).block_hashes


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="the prompt is empty"):
        Request("a", [], HASHER)


@pytest.mark.parametrize("name", ["", None, 7, b"a"])
def test_an_id_is_a_text(name: str) -> None:
    with pytest.raises(InvalidRequest, match="a request id is a text"):
        Request(name, [1], HASHER)


@pytest.mark.parametrize(
    "keys",
    [
        ExtraKeys(mm_items=(MultiModalItem("a", 2, 2),)),
        ExtraKeys(prompt_embeds=PromptEmbeds(bytes(4), 1)),
    ],
)
def test_keys_that_reach_past_the_prompt_are_refused(keys: ExtraKeys) -> None:
    with pytest.raises(InvalidRequest, match="past its prompt"):
        Request("a", [1, 2, 3], HASHER, extra_keys=keys)
    assert Request("a", [1, 2, 3, 4], HASHER, extra_keys=keys).num_tokens == 4


def test_keys_of_prompt_blocks_stay_in_the_hashes_of_what_follows() -> None:
    keys = ExtraKeys(mm_items=(MultiModalItem("img", 1, 2),))
    plain, with_item = (
        Request("a", [1, 2, 3], HASHER),
        Request("b", [1, 2, 3], HASHER, extra_keys=keys),
    )
    for request in (plain, with_item):
        request.append_output_token_ids([4, 5, 6, 7, 8])
    assert not set(plain.block_hashes) & set(with_item.block_hashes)


def test_the_bytes_of_its_keys() -> None:
    """Those of the whole request stand before its first token, as in a block's hash."""
    item = MultiModalItem("cat", 6, 2)
    request = Request("a", list(range(9)), extra_keys=ExtraKeys(cache_salt="s", mm_items=(item,)))
    bare = Request("a", list(range(9)))
    assert bare.key_bytes(0, 9) == b""
    assert b"s" in request.key_bytes(0, 4)
    assert b"cat" not in request.key_bytes(0, 6)
    assert request.key_bytes(4, 6) == request.key_bytes(8, 9) == b""
    assert b"cat" in request.key_bytes(4, 7) != request.key_bytes(5, 7), "where it sits counts"
