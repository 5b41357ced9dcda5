"""What besides tokens decides a block's K/V, and that no two lists of keys look the same (S6)."""

from collections.abc import Callable

import pytest

from kvdist.cache import BlockHasher, ExtraKeys, LoRAKey, MultiModalItem, PromptEmbeds
from kvdist.cache.extra_keys import MAX_KEY_BYTES, ExtraKey, frame
from kvdist.errors import InvalidRequest

TOKENS = list(range(8))


def chain(keys: ExtraKeys) -> list[bytes]:
    return [bytes(key) for key in BlockHasher(4).start(keys).extend(TOKENS)]


def item(identifier: str, offset: int, length: int) -> ExtraKeys:
    return ExtraKeys(mm_items=(MultiModalItem(identifier, offset, length),))


def embeds(data: bytes, bytes_per_token: int = 1) -> ExtraKeys:
    return ExtraKeys(prompt_embeds=PromptEmbeds(data, bytes_per_token))


DIFFERENT = {
    "none": ExtraKeys(),
    "salt": ExtraKeys(cache_salt="a"),
    "other salt": ExtraKeys(cache_salt="b"),
    "adapter of the salt's name": ExtraKeys(lora=LoRAKey("a")),
    "adapter elsewhere": ExtraKeys(lora=LoRAKey("a", "b")),
    "adapter, name and path otherwise cut": ExtraKeys(lora=LoRAKey("ab")),
    "adapter whose path is the name": ExtraKeys(lora=LoRAKey("", "a")),
    "adapter and salt": ExtraKeys(cache_salt="a", lora=LoRAKey("a")),
    "item of the salt's name": item("a", 0, 1),
    "item one later": item("a", 1, 1),
    "other item": item("b", 0, 1),
    "two items": ExtraKeys(mm_items=(MultiModalItem("a", 0, 1), MultiModalItem("b", 1, 1))),
    "two items changed": ExtraKeys(mm_items=(MultiModalItem("b", 0, 1), MultiModalItem("a", 1, 1))),
    "embeddings": embeds(b"a"),
    "other embeddings": embeds(b"b"),
    "longer embeddings": embeds(b"aa"),
}


def test_s6_different_keys_give_different_hashes() -> None:
    hashes = [chain(keys)[0] for keys in DIFFERENT.values()]
    assert len(set(hashes)) == len(DIFFERENT)


def test_s6_what_one_block_has_stays_in_all_after_it() -> None:
    hashes = [chain(keys)[1] for keys in DIFFERENT.values()]
    assert len(set(hashes)) == len(DIFFERENT)


def test_s6_keys_of_a_later_block_leave_the_earlier_alone() -> None:
    assert chain(item("a", 4, 1))[0] == chain(ExtraKeys())[0]
    assert chain(item("a", 4, 1))[1] != chain(ExtraKeys())[1]


def test_s6_where_an_item_sits_counts_in_each_block_it_covers() -> None:
    early, late = item("a", 2, 4), item("a", 3, 4)
    assert chain(early)[0] != chain(late)[0]
    assert chain(early)[1] != chain(late)[1]


def test_an_item_counts_from_each_block_s_start() -> None:
    keys = item("a", 2, 4)
    assert keys.of_block(0, 4) == [("mm", "a", 2)]
    assert keys.of_block(4, 8) == [("mm", "a", -2)]
    assert keys.of_block(8, 12) == []


def test_an_item_is_in_no_block_that_it_only_touches() -> None:
    keys = item("a", 4, 4)
    assert [len(keys.of_block(start, start + 4)) for start in (0, 4, 8)] == [0, 1, 0]


def test_embeddings_name_the_rows_of_each_block() -> None:
    first, second = embeds(b"aaaabbbb"), embeds(b"aaaabbbc")
    assert chain(first)[0] == chain(second)[0]
    assert chain(first)[1] != chain(second)[1]


def test_embeddings_may_end_inside_a_block() -> None:
    keys = embeds(b"aabbccddee", 2)
    assert keys.last_position == 5
    assert [len(keys.of_block(start, start + 4)) for start in (0, 4, 8)] == [1, 1, 0]


def test_the_rows_cut_otherwise_are_other_embeddings() -> None:
    assert chain(embeds(b"aabb", 1)) != chain(embeds(b"aabb", 2))


def test_keys_of_the_whole_request() -> None:
    keys = ExtraKeys(cache_salt="s", lora=LoRAKey("l", "p"))
    assert keys.of_request() == [("lora", "l", "p"), ("cache_salt", "s")]
    assert not keys.per_block
    assert item("a", 0, 1).per_block
    assert embeds(b"a").per_block


def test_an_empty_salt_is_none() -> None:
    assert chain(ExtraKeys(cache_salt="")) == chain(ExtraKeys())


def test_the_last_position_is_the_end_of_all_keys() -> None:
    assert ExtraKeys().last_position == 0
    assert item("a", 3, 4).last_position == 7
    both = ExtraKeys(
        mm_items=(MultiModalItem("a", 0, 2), MultiModalItem("b", 2, 3)),
        prompt_embeds=PromptEmbeds(bytes(9), 1),
    )
    assert both.last_position == 9


def test_no_keys_no_frame() -> None:
    assert frame([]) == b""


def test_frames_of_different_lists_differ() -> None:
    lists: list[list[ExtraKey]] = [
        [("cache_salt", "ab")],
        [("cache_salt", "a"), ("cache_salt", "b")],
        [("lora", "a", "b")],
        [("lora", "ab", "")],
        [("lora", "", "ab")],
        [("mm", "a", 0)],
        [("mm", "a", -1)],
        [("prompt_embeds", "a")],
    ]
    assert len({frame(keys) for keys in lists}) == len(lists)


def test_a_frame_says_its_own_length() -> None:
    data = frame([("lora", "name", "path"), ("cache_salt", "s")])
    assert data[:4] == b"\xff\xff\xff\xff"
    assert int.from_bytes(data[4:8], "little") == len(data) - 8


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: LoRAKey("a" * (MAX_KEY_BYTES + 1)), id="long name"),
        pytest.param(lambda: LoRAKey("a", "a" * (MAX_KEY_BYTES + 1)), id="long path"),
        pytest.param(lambda: ExtraKeys(cache_salt="ä" * (MAX_KEY_BYTES // 2 + 1)), id="long salt"),
        pytest.param(lambda: MultiModalItem("a" * (MAX_KEY_BYTES + 1), 0, 1), id="long item"),
        pytest.param(lambda: MultiModalItem("a", -1, 1), id="item before the start"),
        pytest.param(lambda: MultiModalItem("a", 0, 0), id="item of no tokens"),
        pytest.param(lambda: PromptEmbeds(b"abc", 2), id="half a row"),
        pytest.param(lambda: PromptEmbeds(b"abc", 0), id="rows of no bytes"),
        pytest.param(lambda: ExtraKeys(cache_salt="\ud800"), id="half a letter"),
        pytest.param(
            lambda: ExtraKeys(mm_items=(MultiModalItem("a", 0, 3), MultiModalItem("b", 2, 1))),
            id="items that overlap",
        ),
        pytest.param(
            lambda: ExtraKeys(mm_items=(MultiModalItem("a", 4, 1), MultiModalItem("b", 0, 1))),
            id="items out of order",
        ),
    ],
)
def test_keys_out_of_range_are_refused(build: Callable[[], object]) -> None:
    with pytest.raises(InvalidRequest):
        build()


def test_the_longest_keys_are_allowed() -> None:
    keys = ExtraKeys(cache_salt="a" * MAX_KEY_BYTES, lora=LoRAKey("b" * MAX_KEY_BYTES))
    assert len(chain(keys)) == 2
