"""The digest of what K/V are of: the same tokens and keys, and nothing else, have the same."""

import pytest

from kvdist.cache import BlockHasher, ExtraKeys, MultiModalItem, Request
from kvdist.connector.content import digest, digest_of_hash

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def a_request(tokens: list[int], size: int | None = 4, salt: str | None = None) -> Request:
    hasher = BlockHasher(size) if size else None
    return Request("r", tokens, hasher, extra_keys=ExtraKeys(cache_salt=salt))


@pytest.mark.parametrize("size", [4, None])
@pytest.mark.parametrize("num_tokens", [1, 3, 4, 5, 8, 9, 10])
def test_a_prefix_decides(size: int | None, num_tokens: int) -> None:
    whole = digest(a_request(PROMPT, size), num_tokens)
    assert digest(a_request(PROMPT[:num_tokens], size), num_tokens) == whole
    assert digest(a_request([*PROMPT, 11], size), num_tokens) == whole
    for index in range(num_tokens):
        other = [*PROMPT[:index], 99, *PROMPT[index + 1 :]]
        assert digest(a_request(other, size), num_tokens) != whole, index


def test_as_many_tokens() -> None:
    assert len({digest(a_request(PROMPT), num_tokens) for num_tokens in range(1, 11)}) == 10


@pytest.mark.parametrize("size", [4, None])
@pytest.mark.parametrize("num_tokens", [2, 9])
def test_salt(size: int | None, num_tokens: int) -> None:
    """Also where no whole block says so."""
    mine = digest(a_request(PROMPT, size, salt="mine"), num_tokens)
    assert mine != digest(a_request(PROMPT, size), num_tokens)


def test_of_a_hash() -> None:
    request = a_request(PROMPT)
    assert digest(request, 8) == digest_of_hash(request.block_hashes[1])


def test_of_a_hash_within_an_image() -> None:
    """What is lent by hash is known by its hash alone."""
    keys = ExtraKeys(mm_items=(MultiModalItem("cat", 6, 4),))
    request = Request("r", PROMPT, BlockHasher(4), extra_keys=keys)
    assert digest(request, 8) == digest_of_hash(request.block_hashes[1])


def test_an_image_behind_the_last_whole_block() -> None:
    """Its placeholders are the same tokens as another's."""

    def with_image(name: str) -> Request:
        keys = ExtraKeys(mm_items=(MultiModalItem(name, 8, 2),))
        return Request("r", PROMPT, BlockHasher(4), extra_keys=keys)

    assert digest(with_image("cat"), 8) == digest(with_image("dog"), 8)
    assert digest(with_image("cat"), 9) == digest(with_image("cat"), 9)
    assert digest(with_image("cat"), 9) != digest(with_image("dog"), 9)
